"""Hugging Face accelerate: the YAML of `accelerate launch --config_file` that a plan is written to.

Written for accelerate 1.15.0 (`parallelism_config.py`, `commands/config/config_args.py`,
`commands/launch.py`). It knows replicas, FSDP 2, tensor parallelism by the model's own plan, and
context parallelism. It has no pipeline stages. Batch, micro-batches and the optimizer are the
script's: a comment at the head holds them, and is read again.

ZeRO 3 is FSDP 2 that gives parameters back after the forward pass, ZeRO 2 is FSDP 2 that keeps
them, ZeRO 0 is plain DDP; there is no ZeRO 1. Gradients are reduced in the type of
`mixed_precision`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import yaml

from gnnplace.errors import InfeasibleError
from gnnplace.launch.launch_plan import FULL, NONE, SELECTIVE, LaunchPlan, header
from gnnplace.launch.offloading import EVERYTHING

PRECISION = {"32": "no", "bf16": "bf16", "16": "fp16"}
HELD = ("batch", "microbatch_size", "optimizer")


def check_degrees(plan: LaunchPlan) -> None:
    """Check that accelerate has the kinds of parallelism of a plan.

    Raises:
        InfeasibleError: If it lacks one.
    """
    if plan.pp > 1:
        raise InfeasibleError(
            f"accelerate: has no pipeline stages, and the plan has {plan.pp}; search one that it "
            "can run with `gnnplace plan MODEL --cluster C --launcher accelerate`"
        )
    if plan.ep > 1 or plan.etp:
        raise InfeasibleError("accelerate: has no parallelism of experts beside tp")


def write_accelerate(plan: LaunchPlan, lines: Sequence[str], gpus: int = 8) -> str:
    """Return the text of a file for `accelerate launch --config_file`.

    Args:
        plan: The plan, of one pipeline stage.
        lines: Lines for the head of the file.
        gpus: GPUs of a server.

    Raises:
        InfeasibleError: accelerate cannot say it.
    """
    check_degrees(plan)
    if plan.zero == 1 and (plan.dp or 1) > 1:
        raise InfeasibleError("accelerate: has no ZeRO 1; take 0, 2 or 3")
    world, dp = plan.world or 1, plan.dp or 1
    sharded = plan.zero > 1 or plan.tp > 1 or plan.cp > 1
    kind = "FSDP" if sharded else "MULTI_GPU" if world > 1 else "NO"
    data: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "mixed_precision": PRECISION[(plan.precision or "32").partition("-")[0]],
        "num_machines": -(-world // gpus),
        "num_processes": world,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static",
    }
    if plan.compile:
        data["dynamo_config"] = {"dynamo_backend": "INDUCTOR", "dynamo_mode": "default"}
    if sharded:
        data["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": plan.zero == 3,
            "fsdp_activation_checkpointing": plan.recompute == FULL,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
        if plan.offload != NONE:
            data["fsdp_config"]["fsdp_offload_params"] = True
    if plan.tp > 1 or plan.cp > 1 or (plan.group or dp) < dp:
        group = (plan.group or dp) if plan.zero > 1 else 1
        data["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": dp // group,
            "parallelism_config_dp_shard_size": group,
            "parallelism_config_tp_size": plan.tp,
            "parallelism_config_cp_size": plan.cp,
        }
        if dp // group > 1 and group == 1:
            raise InfeasibleError(
                "accelerate: tp and cp need replicas that share their state (dp_shard_size); take "
                "zero=2 or zero=3"
            )
    # Without FSDP checkpointing is the script's, and stands in the head.
    script_words = (
        (*HELD, "recompute") if plan.recompute == FULL and not sharded else HELD
    )
    header_lines = [f"# {line}" for line in header(plan, lines, keys=script_words)]
    return "\n".join(
        [*header_lines, yaml.dump(data, Dumper=yaml.CSafeDumper, sort_keys=False)]
    )


def nearest_accelerate(plan: LaunchPlan) -> Iterator[tuple[str, LaunchPlan]]:
    """Yield what accelerate cannot express, one thing at a time.

    Yields:
        A line for the user, and the nearest plan so far that accelerate can express.
    """
    for given_up, run in plan.as_it_runs("accelerate", compiles=True):
        plan = run
        yield given_up, plan
    if plan.tp > 1 and not plan.sp:
        plan = replace(plan, sp=True)
        yield (
            "sp=off: accelerate takes the model's own plan, which cuts tokens; it is written",
            plan,
        )
    sharded = (plan.dp or 1) * plan.cp > 1 and (plan.tp > 1 or plan.cp > 1)
    if (plan.zero == 1 and (plan.dp or 1) > 1) or (sharded and plan.zero < 2):
        given_up = f"zero={plan.zero}: accelerate has no ZeRO 1, and none below 2 beside tp or cp"
        plan = replace(plan, zero=2)
        yield f"{given_up}; zero=2 is written", plan
    kind = plan.recompute.partition(":")[0]
    if kind not in (NONE, FULL):
        plan = replace(plan, recompute=NONE if kind == SELECTIVE else FULL)
        yield (
            f"recompute={kind}: accelerate has all layers or none; {plan.recompute} is written",
            plan,
        )
    if plan.recompute == FULL and plan.zero < 2 and plan.tp == plan.cp == 1:
        given_up = (
            "is the script's where FSDP is off: model.gradient_checkpointing_enable()"
        )
        yield f"recompute=full: {given_up}", plan
    accumulated = (
        plan.dp and plan.batch and plan.microbatch_size and plan.microbatches > 1
    )
    if plan.zero > 1 and accumulated:
        given_up = (
            f"zero={plan.zero}: gradients are whole until the last of {plan.microbatches} "
            "micro-batches, unless the script's GradientAccumulationPlugin has sync_each_batch"
        )
        yield given_up, plan
    # Give up what no key of the file can say.
    for line, run in plan.without_unsayable(
        "accelerate",
        zero_groups=(2, 3),
        gradients="same",
        offloads=(EVERYTHING,)
        if plan.zero == 3 and (plan.dp or 1) * plan.cp > 1
        else (),
    ):
        plan = run
        yield line, plan
    half, _, kind = (plan.precision or "32-true").partition("-")
    if kind in ("true", "master") and half != "32":
        given_up = f"precision {plan.precision}: mixed_precision keeps fp32 parameters"
        plan = replace(plan, precision=f"{half}-mixed")
        yield f"{given_up}; {plan.precision} is written", plan
