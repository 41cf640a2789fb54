"""`make_captured_spec`: the plan in words that a launch plan is priced as; lines for differences.

The words of a launch file are those of `--given` (`plans.given`). If a word has no counterpart
there, the nearest is priced and a line says so. A launch plan is refused if the step would differ
by more than such a line can explain.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gnnplace.errors import InputError
from gnnplace.launch.launch_plan import (
    PRICED_OPTIMIZERS,
    LaunchPlan,
    check_plan_words,
)
from gnnplace.plans import PlanSpec


def complete_launch_plan(
    plan: LaunchPlan, devices: int, batch: int | None = None
) -> LaunchPlan:
    """Return a plan with the replicas and the batch that its file leaves open.

    Args:
        plan: The plan as it was read.
        devices: The number of devices of the cluster.
        batch: Examples of a step, where they are said elsewhere.

    Raises:
        InputError: If the degrees do not divide the devices, or batch and micro-batch are not
            known.
    """
    if plan.dp is None:
        plan = plan.with_dp(devices, plan.source)
    batch = batch or plan.batch
    if batch is None and plan.microbatch_size is not None and plan.dp is not None:
        # Launchers assume this.
        batch = plan.dp * plan.microbatch_size * (plan.accumulation or 1)
    size = plan.microbatch_size
    if size is None and batch is not None and plan.accumulation and plan.dp is not None:
        # DeepSpeed computes it in this way.
        size = batch // (plan.dp * plan.accumulation) or 1
    return check_plan_words(
        replace(plan, batch=batch, microbatch_size=size), plan.source
    )


def find_priced_optimizer(plan: LaunchPlan) -> str | None:
    """Return the optimizer that a plan is priced with; a line of `not_priced` says the rest."""
    if plan.optimizer in (None, *PRICED_OPTIMIZERS):
        return plan.optimizer
    return "adamw"


def list_assumed_values(plan: LaunchPlan, precision: str) -> list[str]:
    """Return a line for each value that neither the file nor its launcher has."""
    lines = []
    if plan.precision is None:
        lines.append(
            f"precision: the file leaves it open; priced as {precision}, or --precision"
        )
    return lines


def with_missing(
    plan: LaunchPlan,
    *,
    batch: int | None = None,
    microbatch_size: int | None = None,
    precision: str | None = None,
    gpus: int | None = None,
) -> LaunchPlan:
    """Return a plan with values for what its file leaves open.

    Args:
        plan: The plan as it was read.
        batch: Examples of a step.
        microbatch_size: Examples of a micro-batch.
        precision: The precision in Lightning's words.
        gpus: Devices of the run.

    Raises:
        InputError: If the file says another value itself.
    """
    if gpus is not None and plan.world is None:
        plan = plan.with_dp(gpus, f"{plan.source}: --gpus {gpus}")
    elif gpus not in (None, plan.world):
        raise InputError(
            f"--gpus {gpus}: the launch file says {plan.world}; leave it out"
        )
    values = {
        "batch": batch,
        "microbatch_size": microbatch_size,
        "precision": precision,
    }
    changes: dict[str, Any] = {}
    for word, value in values.items():
        value_of_file = getattr(plan, word)
        if value is None or value_of_file == value:
            continue
        if value_of_file is not None:
            option = f"--{word.replace('_', '-')}"
            raise InputError(
                f"{option} {value}: the launch file says {value_of_file}; leave it out"
            )
        changes[word] = value
    return replace(plan, **changes)


def check_known(plan: LaunchPlan) -> None:
    """Check that a plan has all that a price needs: replicas, micro-batch size and batch.

    Raises:
        InputError: The message names what is missing and the options that give it.
    """
    missing = [
        name
        for name in ("dp", "microbatch_size", "batch")
        if getattr(plan, name) is None
    ]
    if missing:
        options = " and ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise InputError(
            f"{plan.source}: does not say {' and '.join(missing)}: give {options}, or write them "
            f'into its head, as # gnnplace: {{"{missing[0]}": 8}}'
        )


def find_model_name(plan: LaunchPlan) -> str | None:
    """Return the name of a model that has the sizes in a launch file, or None if there is none."""
    if plan.sizes is None:
        return None
    return plan.sizes.model


def check_expert_groups(plan: LaunchPlan) -> None:
    """Check that groups of experts can be told as groups beside the shards of `tp`.

    Files may say the shards of experts of a model that has none.

    Raises:
        InputError: If there are fewer groups than shards.
    """
    if plan.sizes is not None and plan.sizes.experts is None:
        return
    if plan.etp not in (None, plan.tp) and plan.ep * (plan.etp or 1) % plan.tp:
        raise InputError(
            f"{plan.source}: ep {plan.ep} of experts on {plan.etp} shards each, beside tp "
            f"{plan.tp}: can be priced where ep x their shards is a multiple of tp"
        )


def with_cut_experts(plan: LaunchPlan) -> tuple[LaunchPlan, list[str]]:
    """Return a plan whose experts are cut over `tp` like all other weights, and a line about it.

    Captured models have their experts cut this way. Experts that are whole on `tp` shards are
    counted as fewer groups of cut ones, of as many bytes. There is no line if nothing changes.

    Raises:
        InputError: If there are fewer groups than shards.
    """
    if plan.etp in (None, plan.tp):
        return replace(plan, etp=None), []
    check_expert_groups(plan)
    ep = plan.ep * (plan.etp or 1) // plan.tp
    line = f"ep={plan.ep}, each expert on {plan.etp} of {plan.tp} shards: priced as ep={ep} on all"
    return replace(plan, ep=ep, etp=None), [line]


def make_captured_spec(plan: LaunchPlan) -> tuple[PlanSpec, list[str]]:
    """Return the words of a launch plan that are priced of a captured model, and other lines.

    There is a line for each thing that is not priced.

    Raises:
        InputError: If the file leaves open what a price needs, or has what cannot be priced.
    """
    check_known(plan)
    plan, lines = with_cut_experts(plan)
    if plan.ep > 1 and (
        plan.ep != plan.cp if plan.cp > 1 else (plan.dp or 1) % plan.ep
    ):
        raise InputError(
            f"{plan.source}: dp {plan.dp}, cp {plan.cp} and ep {plan.ep}: only experts on all "
            "shards "
            "that cut tokens (ep = cp), or on replicas without these (ep divides dp), can be priced"
        )
    lines += plan.remarks
    if plan.lora is not None:
        lines.append(f"adapters ({plan.lora}): priced as the captured model trains")
    if plan.schedule == "gpipe":
        plan = replace(plan, schedule="1f1b")
        lines.append(
            "schedule gpipe: priced as 1f1b, which takes as long and holds less"
        )
    if plan.group is not None:
        lines.append(
            f"ZeRO over groups of {plan.group}: priced over all {plan.dp} replicas"
        )
    if plan.gradients == "fp32" and (plan.precision or "").endswith(("master", "true")):
        lines.append("gradients in fp32: priced in the type of the parameters")
    graphs = plan.cuda_graphs not in (None, "off")
    faster = [
        name for name, on in (("compile", plan.compile), ("CUDA graphs", graphs)) if on
    ]
    lines += [f"{' and '.join(faster)}: priced as eager PyTorch"] if faster else []
    hidden = [name for name in plan.overlap if name != "p2p"]
    if hidden:
        lines.append(f"overlap of {', '.join(hidden)}: priced without")
    eager = replace(plan, gradients=None, group=None, compile=False, cuda_graphs=None)
    return replace(eager.spec, batch=None, overlap=None, tp_overlap=False), lines
