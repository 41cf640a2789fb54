"""Writes a plan as the YAML file that `accelerate launch --config_file` takes.

Written for accelerate 1.15.0 (`parallelism_config.py`, `commands/config/config_args.py`,
`commands/launch.py`). accelerate has replicas, FSDP 2, tensor parallelism by the model's own plan,
and context parallelism. It has no pipeline stages. The training script decides the batch, the
micro-batches and the optimizer; a comment at the head of the file keeps what the plan says of them,
and `accelerate_reading` reads it back.

ZeRO 3 is FSDP 2 that frees gathered parameters after the forward pass, ZeRO 2 is FSDP 2 that keeps
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
"""`mixed_precision` by the number type that a precision of Lightning begins with."""
HELD = ("batch", "microbatch_size", "optimizer")
"""Words of a plan that the comment at the head of the file keeps, as no key has them."""


def check_degrees(plan: LaunchPlan) -> None:
    """Check that accelerate has every kind of parallelism that a plan uses.

    Raises:
        InfeasibleError: If the plan has pipeline stages or expert parallelism.
    """
    if plan.pp > 1:
        raise InfeasibleError(
            f"accelerate: has no pipeline stages, and the plan has {plan.pp}; search one that it "
            "can run with `gnnplace plan MODEL --cluster C --launcher accelerate`"
        )
    if plan.ep > 1 or plan.etp:
        raise InfeasibleError(
            "accelerate: has no expert parallelism; take a plan with ep=1 and without etp"
        )


def write_accelerate(plan: LaunchPlan, lines: Sequence[str], gpus: int = 8) -> str:
    """Return the text of a file for `accelerate launch --config_file`.

    Args:
        plan: The plan, with one pipeline stage.
        lines: Lines for the comment at the head of the file.
        gpus: GPUs of a server.

    Raises:
        InfeasibleError: If accelerate cannot run the plan.
    """
    check_degrees(plan)
    if plan.zero == 1 and (plan.dp or 1) > 1:
        raise InfeasibleError("accelerate: has no ZeRO 1; take zero=0, 2 or 3")
    world = plan.world or 1
    dp = plan.dp or 1
    # accelerate has tp and cp only with FSDP, whatever the ZeRO stage.
    uses_fsdp = plan.zero > 1 or plan.tp > 1 or plan.cp > 1
    if uses_fsdp:
        distributed_type = "FSDP"
    elif world > 1:
        distributed_type = "MULTI_GPU"
    else:
        distributed_type = "NO"
    data: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": distributed_type,
        "mixed_precision": PRECISION[(plan.precision or "32").partition("-")[0]],
        "num_machines": -(-world // gpus),
        "num_processes": world,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static",
    }
    if plan.compile:
        data["dynamo_config"] = {"dynamo_backend": "INDUCTOR", "dynamo_mode": "default"}
    if uses_fsdp:
        data["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": plan.zero == 3,
            "fsdp_activation_checkpointing": plan.recompute == FULL,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
        if plan.offload != NONE:
            data["fsdp_config"]["fsdp_offload_params"] = True
    # A mesh is written if it has more than one dimension. Replicas of a group shard their state.
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
                "accelerate: replicas beside tp or cp must shard their state (dp_shard_size); take "
                "zero=2 or zero=3"
            )
    # Without FSDP the script checkpoints activations, so the head says whether it does.
    script_words: tuple[str, ...] = HELD
    if plan.recompute == FULL and not uses_fsdp:
        script_words = (*HELD, "recompute")
    header_lines = [f"# {line}" for line in header(plan, lines, keys=script_words)]
    text = yaml.dump(data, Dumper=yaml.CSafeDumper, sort_keys=False)
    return "\n".join([*header_lines, text])


def nearest_accelerate(plan: LaunchPlan) -> Iterator[tuple[str, LaunchPlan]]:
    """Replace what accelerate cannot express, one thing at a time.

    Yields:
        For each thing a line for the user, and the plan with all replacements so far. The last plan
        is one that `write_accelerate` takes.
    """
    for line, runnable in plan.as_it_runs("accelerate", compiles=True):
        plan = runnable
        yield line, plan
    if plan.tp > 1 and not plan.sp:
        plan = replace(plan, sp=True)
        yield (
            "sp=off: accelerate takes the model's own plan, which cuts tokens; it is written",
            plan,
        )
    # ZeRO 1 does not exist, and FSDP, which tp and cp need, shards gradients at least.
    needs_fsdp = (plan.dp or 1) * plan.cp > 1 and (plan.tp > 1 or plan.cp > 1)
    if (plan.zero == 1 and (plan.dp or 1) > 1) or (needs_fsdp and plan.zero < 2):
        reason = f"zero={plan.zero}: accelerate has no ZeRO 1, and none below 2 beside tp or cp"
        plan = replace(plan, zero=2)
        yield f"{reason}; zero=2 is written", plan
    granularity = plan.recompute.partition(":")[0]
    if granularity not in (NONE, FULL):
        plan = replace(plan, recompute=NONE if granularity == SELECTIVE else FULL)
        reason = f"recompute={granularity}: accelerate has all layers or none"
        yield f"{reason}; {plan.recompute} is written", plan
    if plan.recompute == FULL and plan.zero < 2 and plan.tp == plan.cp == 1:
        reason = (
            "is the script's where FSDP is off: model.gradient_checkpointing_enable()"
        )
        yield f"recompute=full: {reason}", plan
    accumulated = (
        plan.dp and plan.batch and plan.microbatch_size and plan.microbatches > 1
    )
    if plan.zero > 1 and accumulated:
        line = (
            f"zero={plan.zero}: gradients are whole until the last of {plan.microbatches} "
            "micro-batches, unless the script's GradientAccumulationPlugin has sync_each_batch"
        )
        yield line, plan
    # Give up what no key of the file can say.
    offloads: tuple[str, ...] = ()
    if plan.zero == 3 and (plan.dp or 1) * plan.cp > 1:
        offloads = (EVERYTHING,)
    for line, runnable in plan.without_unsayable(
        "accelerate", zero_groups=(2, 3), gradients="same", offloads=offloads
    ):
        plan = runnable
        yield line, plan
    number_type, _, parameters = (plan.precision or "32-true").partition("-")
    if parameters in ("true", "master") and number_type != "32":
        reason = f"precision {plan.precision}: mixed_precision keeps fp32 parameters"
        plan = replace(plan, precision=f"{number_type}-mixed")
        yield f"{reason}; {plan.precision} is written", plan
