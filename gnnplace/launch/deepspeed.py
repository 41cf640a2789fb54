"""DeepSpeed: the JSON of `deepspeed --deepspeed_config` that a plan is written to.

Written for DeepSpeed 0.19.8 (`runtime/config.py`, `runtime/zero/config.py`,
`runtime/constants.py`). Pipeline stages, their layers and recomputation are the script's
(`PipelineModule(num_stages=…)`, `deepspeed.checkpointing`): the file holds them under
`x-gnnplace`, a key that DeepSpeed does not read. The batch is micro-batch x accumulation x
replicas; the replicas follow from it. Parameters are in the half type with a fp32 copy in the
optimizer, and gradients are summed in the half type unless `data_types.grad_accum_dtype` says fp32;
or, without stages, parameters are fp32 under `torch_autocast`, which exchanges the gradients of
linear layers and convolutions in the half type (`runtime/torch_autocast.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from gnnplace.errors import InfeasibleError
from gnnplace.launch.deepspeed_reading import HELD
from gnnplace.launch.launch_plan import NONE, LaunchPlan
from gnnplace.launch.offloading import EVERYTHING, OPTIMIZER

OPTIMIZERS = {
    "adamw": "AdamW",
    "adam": "Adam",
    "sgd": "SGD",
    "lamb": "Lamb",
    "lion": "Lion",
    "muon": "Muon",
    "onebitadam": "OneBitAdam",
    "onebitlamb": "OneBitLamb",
    "zerooneadam": "ZeroOneAdam",
}
"""Its names of optimizers (`runtime/config.py`)."""
CPU_OPTIMIZERS = ("adamw", "adam", "lion")
"""Those that it has for the CPU, too (`ops/adam/cpu_adam.py`, `ops/lion/cpu_lion.py`)."""


def iterate_deepspeed_mends(plan: LaunchPlan) -> Iterator[tuple[str, LaunchPlan]]:
    """Yield what DeepSpeed cannot express, one thing at a time.

    Yields:
        A line for the user, and the nearest plan so far that DeepSpeed can express.
    """
    for given_up, run in plan.as_it_runs("DeepSpeed"):
        plan = run
        yield given_up, plan
    if plan.schedule != "1f1b" or plan.chunks > 1:
        given_up = (
            f"schedule {plan.full_schedule}: DeepSpeed has 1f1b, a stage a rank; it is "
            "written"
        )
        plan = plan.with_one_stage_a_rank()
        yield given_up, plan
    if plan.pp > 1 and plan.zero > 1:
        plan = replace(plan, zero=1)
        yield "zero: DeepSpeed pipelines with ZeRO 0 or 1; zero=1 is written", plan
    if plan.tp > 1 and plan.sp:
        plan = replace(plan, sp=False)
        yield (
            "sp: DeepSpeed's tensor parallelism keeps whole tokens; sp=off is written",
            plan,
        )
    for given_up, uncut in plan.with_whole_experts("DeepSpeed"):
        plan = uncut
        yield given_up, plan
    if plan.ep > 1 and plan.tp > 1 and plan.zero == 3:
        plan = replace(plan, zero=2)
        yield (
            "zero: DeepSpeed's experts beside tp go with ZeRO 0 to 2; zero=2 is written",
            plan,
        )
    sayable = ("gradients",) if plan.zero in (1, 2) else ()
    # Give up what no key of the file can say.
    for line, run in plan.without_unsayable(
        "DeepSpeed",
        overlap=sayable,
        zero_groups=(3,),
        optimizers=tuple(OPTIMIZERS),
        offloads=_offloads(plan),
    ):
        plan = run
        yield line, plan
    if plan.zero == 3 and plan.group == 1:
        plan = replace(plan, group=None)
        yield (
            "ZeRO 3 over groups of one: DeepSpeed has none; over all replicas is written",
            plan,
        )
    half, _, kind = (plan.precision or "32-true").partition("-")
    kinds = ("master",) if plan.pp > 1 else ("master", "mixed")
    if half != "32" and kind not in kinds:
        plan = replace(plan, precision=f"{half}-master")
        supported = "half parameters with a fp32 copy"
        if plan.pp == 1:
            supported += ", or autocast over fp32 parameters"
        line = f"precision {half}-{kind}: DeepSpeed has {supported}; {plan.precision} is written"
        yield line, plan


def _offloads(plan: LaunchPlan) -> tuple[str, ...]:
    """Return the values of `offload` that DeepSpeed has for a plan: a CPU makes few updates."""
    if plan.zero == 0 or plan.optimizer not in (None, *CPU_OPTIMIZERS):
        return ()
    if plan.zero == 3:
        return (OPTIMIZER, EVERYTHING)
    return (OPTIMIZER,)


def check_degrees(plan: LaunchPlan) -> None:
    """Check that DeepSpeed has the kinds of parallelism of a plan.

    Raises:
        InfeasibleError: If it lacks one.
    """
    if plan.cp > 1:
        raise InfeasibleError("deepspeed: cp of a plan has no key of its own")


def _zero_section(plan: LaunchPlan) -> dict[str, Any]:
    """Return the ZeRO section: what replicas share, and what lies in the host's memory."""
    section: dict[str, Any] = {"stage": plan.zero}
    if "gradients" in plan.overlap:
        section["overlap_comm"] = True
    for key, name in (
        ("offload_optimizer", "optimizer"),
        ("offload_param", "parameters"),
    ):
        if name in plan.offload:
            section[key] = {"device": "cpu", "pin_memory": True}
    if plan.zero == 3 and plan.group is not None:
        section["mics_shard_size"] = plan.group
    return section


def write_deepspeed(plan: LaunchPlan, lines: Sequence[str], gpus: int = 8) -> str:
    """Return the text of a JSON configuration for DeepSpeed.

    Args:
        plan: The plan as `iterate_deepspeed_mends` leaves it.
        lines: Lines for the head of the file.
        gpus: GPUs of a server. Not written, since DeepSpeed asks its host file.

    Raises:
        InfeasibleError: If DeepSpeed cannot say the plan.
    """
    has_experts = plan.sizes is not None and plan.sizes.experts is not None
    check_degrees(plan)
    if has_experts and plan.tp > 1 and (plan.pp > 1 or plan.ep == 1 or plan.etp != 1):
        raise InfeasibleError(
            "deepspeed: experts beside tp are whole, on ep of them, in one stage"
        )
    notes: dict[str, Any] = {"told": [" ".join(line.split()) for line in lines]}
    if plan.pp > 1:
        notes |= {"pp": plan.pp}
        notes |= {"layers": list(plan.layers)} if plan.layers is not None else {}
    if plan.recompute != NONE:
        notes["recompute"] = plan.recompute
    batch: dict[str, Any] = {"train_batch_size": plan.batch}
    if plan.tp > 1:  # DeepSpeed holds it against all processes, those of a split too
        batch = {}
        notes["dp"] = plan.dp
    half, _, kind = (plan.precision or "32-true").partition("-")
    name = OPTIMIZERS.get(plan.optimizer or "", "AdamW")
    data: dict[str, Any] = {
        HELD: notes,
        **batch,
        "train_micro_batch_size_per_gpu": plan.microbatch_size,
        "gradient_accumulation_steps": plan.microbatches,
        "zero_optimization": _zero_section(plan),
    }
    if plan.optimizer is not None:  # else the script makes it
        data["optimizer"] = {"type": name, "params": {"lr": 1e-4}}
    if half != "32" and kind == "mixed":
        dtype = "bfloat16" if half == "bf16" else "float16"
        data["torch_autocast"] = {"enabled": True, "dtype": dtype}
    elif half != "32":
        data["bf16" if half == "bf16" else "fp16"] = {"enabled": True}
    if half != "32" and plan.gradients == "fp32":
        data["data_types"] = {"grad_accum_dtype": "fp32"}
    if plan.tp > 1:
        data["tensor_parallel"] = {"autotp_size": plan.tp}
    if plan.ep > 1:
        data["expert_parallel"] = {"enabled": True, "autoep_size": plan.ep}
    return json.dumps(data, indent=2) + "\n"
