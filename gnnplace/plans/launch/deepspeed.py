"""DeepSpeed: the JSON of `deepspeed --deepspeed_config`, ZeRO, AutoTP and batches.

Written for and read by DeepSpeed 0.19.8 (`runtime/config.py`, `runtime/zero/config.py`,
`runtime/constants.py`). Pipeline stages, their layers and recomputation are the script's
(`PipelineModule(num_stages=…)`, `deepspeed.checkpointing`): the file holds them under
`x-gnnplace`, a key that DeepSpeed does not read. The batch is micro-batch x accumulation x
replicas; the replicas follow from it. Parameters are in the half type with a fp32 copy in the
optimizer; gradients are summed in the half type unless `data_types.grad_accum_dtype` says fp32.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from gnnplace.errors import FormatError, InfeasibleError
from gnnplace.files import json_of
from gnnplace.plans.launch.keys import Keys
from gnnplace.plans.launch.launch_plan import (
    NONE,
    LaunchPlan,
    check_plan_words,
    with_fields,
)

HELD = "x-gnnplace"
KEPT = ("pp", "chunks", "layers", "recompute", "schedule", "zero", "dp")
TOP = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "bf16",
    "fp16", "zero_optimization", "optimizer", "scheduler", "data_types", "tensor_parallel",
    "sequence_parallel_size", "data_parallel_size", "expert_parallel", "pipeline",
    "activation_checkpointing", "gradient_clipping", "steps_per_print", "wall_clock_breakdown",
    "prescale_gradients", "communication_data_type", "amp", "torch_autocast", "flops_profiler",
    "tensorboard", "wandb", "csv_monitor", "comms_logger", "memory_breakdown", "dump_state",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "gradient_predivide_factor",
    "sparse_gradients", "checkpoint", "aio", "elasticity", "autotuning", "compile",
    "compression_training", "data_efficiency", "curriculum_learning", "dataloader_drop_last",
    "seed", "hybrid_engine", HELD,
)  # fmt: skip

BATCHES = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
)  # fmt: skip
AUTO = "auto"
ZERO = (
    "stage", "contiguous_gradients", "reduce_scatter", "reduce_bucket_size",
    "use_multi_rank_bucket_allreduce", "allgather_partitions", "allgather_bucket_size",
    "overlap_comm", "load_from_fp32_weights", "elastic_checkpoint", "offload_param",
    "offload_optimizer", "zenflow", "sub_group_size", "cpu_offload", "cpu_offload_param",
    "cpu_offload_use_pin_memory", "ignore_unused_parameters", "legacy_stage1",
    "round_robin_gradients", "zero_hpz_partition_size", "zero_quantized_weights",
    "zero_quantized_nontrainable_weights", "zero_quantized_gradients", "zeropp_loco_param",
    "mics_shard_size", "mics_hierarchical_params_gather", "memory_efficient_linear",
    "pipeline_loading_checkpoint", "override_module_apply", "log_trace_cache_warnings",
    "enable_sanity_checks", "save_muon_momentum_buffer_in_memory", "leaf_module",
)  # fmt: skip


def nearest_deepspeed(plan: LaunchPlan) -> Iterator[tuple[str, LaunchPlan]]:
    """What DeepSpeed cannot say, one thing at a time, with the nearest plan that it can."""
    for told, run in plan.as_it_runs("DeepSpeed"):
        plan = run
        yield told, plan
    if plan.schedule != "1f1b" or plan.chunks > 1:
        told = f"schedule {plan.full_schedule}: DeepSpeed has 1f1b, a stage a rank; it is written"
        plan = plan.with_one_stage_a_rank()
        yield told, plan
    if plan.pp > 1 and plan.zero > 1:
        plan = replace(plan, zero=1)
        yield "zero: DeepSpeed pipelines with ZeRO 0 or 1; zero=1 is written", plan
    if plan.tp > 1 and plan.sp:
        plan = replace(plan, sp=False)
        yield "sp: DeepSpeed's tensor parallelism keeps whole tokens; sp=off is written", plan
    for told, whole in plan.with_whole_experts("DeepSpeed"):
        plan = whole
        yield told, plan
    if plan.ep > 1 and plan.tp > 1 and plan.zero == 3:
        plan = replace(plan, zero=2)
        yield "zero: DeepSpeed's experts beside tp go with ZeRO 0 to 2; zero=2 is written", plan
    half, _, kind = (plan.precision or "32-true").partition("-")
    if half != "32" and kind != "master":
        plan = replace(plan, precision=f"{half}-master")
        yield (
            (
                f"precision {half}-{kind}: DeepSpeed has half parameters with a fp32 copy; "
                f"{plan.precision} is written"
            ),
            plan,
        )


def write_deepspeed(plan: LaunchPlan, lines: Sequence[str], gpus: int = 8) -> str:
    """A configuration for DeepSpeed.

    Args:
        plan: as `nearest_deepspeed` leaves it.
        lines: for the head of the file.
        gpus: of a server; DeepSpeed asks its host file.

    Raises:
        InfeasibleError: DeepSpeed cannot say it.
    """
    chosen = plan.sizes is not None and plan.sizes.experts is not None
    if plan.cp > 1:
        raise InfeasibleError("deepspeed: cp of a plan has no key of its own")
    if chosen and plan.tp > 1 and (plan.pp > 1 or plan.ep == 1 or plan.etp != 1):
        raise InfeasibleError("deepspeed: experts beside tp are whole, on ep of them, in one stage")
    held: dict[str, Any] = {"told": [" ".join(line.split()) for line in lines]}
    if plan.pp > 1:
        held |= {"pp": plan.pp}
        held |= {"layers": list(plan.layers)} if plan.layers is not None else {}
    if plan.recompute != NONE:
        held["recompute"] = plan.recompute
    batch: dict[str, Any] = {"train_batch_size": plan.batch}
    if plan.tp > 1:  # DeepSpeed holds it against all processes, those of a split too
        batch, held["dp"] = {}, plan.dp
    half = (plan.precision or "32-true").partition("-")[0]
    name = {"sgd": "SGD", "adam": "Adam"}.get(plan.optimizer or "", "AdamW")
    data: dict[str, Any] = {
        HELD: held,
        **batch,
        "train_micro_batch_size_per_gpu": plan.microbatch_size,
        "gradient_accumulation_steps": plan.microbatches,
        "zero_optimization": {"stage": plan.zero},
        "optimizer": {"type": name, "params": {"lr": 1e-4}},
    }
    data |= {"bf16": {"enabled": True}} if half == "bf16" else {}
    data |= {"fp16": {"enabled": True}} if half == "16" else {}
    if half != "32" and plan.gradients == "fp32":
        data["data_types"] = {"grad_accum_dtype": "fp32"}
    if plan.tp > 1:
        data["tensor_parallel"] = {"autotp_size": plan.tp}
    if plan.ep > 1:
        data["expert_parallel"] = {"enabled": True, "autoep_size": plan.ep}
    return json.dumps(data, indent=2) + "\n"


def read_deepspeed(text: str, source: str) -> LaunchPlan:
    """The plan of a configuration of DeepSpeed.

    Raises:
        FormatError: it is none, or its batches contradict.
    """
    keys = Keys(json_of(text, source), source)
    batch, size, steps = (None if keys.get(name) == AUTO else keys.count(name) for name in BATCHES)
    dp = _replicas(batch, size, steps, source)
    half = "bf16" if keys.switch("bf16.enabled") else "16" if keys.get("fp16.enabled") else "32"
    fp32 = keys.word("data_types.grad_accum_dtype", ("fp32", "bf16", "fp16"), "same") == "fp32"
    tp = keys.count("tensor_parallel.autotp_size", 1, least=0) or 1
    part = "expert_parallel."
    ep = keys.count(f"{part}autoep_size", 1) if keys.switch(f"{part}enabled") else 1
    etp = keys.count(f"{part}expert_tensor_parallel_size", 1) if (ep or 1) > 1 else None
    name = keys.get("optimizer.type")
    optimizer = name.lower() if isinstance(name, str) else ""
    zero = keys.count("zero_optimization.stage", 0, least=0) or 0
    if zero > 3:
        raise keys.fault("zero_optimization.stage", "must be 0 to 3")
    group = keys.count("zero_optimization.mics_shard_size", -1, least=-1) or 0
    overlap = keys.switch("zero_optimization.overlap_comm", zero == 3)
    plan = LaunchPlan(
        dp=dp, tp=tp, ep=ep or 1, etp=None if etp == tp else etp, sp=tp == 1,
        cp=keys.count("sequence_parallel_size", 1) or 1,
        microbatch_size=size, batch=batch, zero=zero,
        group=group if zero == 3 and group > 1 else None,
        accumulation=steps or 1 if batch is None or size is None else None,
        precision="32-true" if half == "32" else f"{half}-master",
        gradients="fp32" if half != "32" and fp32 else "same",
        optimizer={"sgd": "sgd", "adam": "adam", "adamw": "adamw"}.get(optimizer),
        overlap=("gradients",) if overlap and zero not in (0, 3) else (),
        notes=tuple(_notes(keys)),
    )  # fmt: skip
    held = keys.get(HELD)
    if isinstance(held, dict):
        plan = with_fields(plan, {k: v for k, v in held.items() if k in KEPT}, source)
    if plan.batch is None and plan.dp and size and steps:
        plan = replace(plan, batch=plan.dp * size * steps, accumulation=None)
    return check_plan_words(plan, source)


def _notes(keys: Keys) -> Iterator[str]:
    """What a file says that is not known, or that something else fills in."""
    odd = [key for key in keys.unknown("", TOP) if not key.startswith("x-")]
    if odd:
        yield f"keys that are not known, and not priced: {', '.join(odd[:8])}"
    wrong = [k for k in keys.unknown("zero_optimization", ZERO) if not k.startswith("stage3_")]
    if wrong:
        yield f"keys of zero_optimization that DeepSpeed refuses: {', '.join(wrong[:8])}"
    auto = [name for name in BATCHES if keys.get(name) == AUTO]
    if auto:
        yield f"auto, which the Trainer fills in: {', '.join(auto)}"
    if keys.get("compile") is not None:
        yield "compile: is what the script's engine.compile() obeys; priced without"
    batch, size, steps = (keys.get(name) for name in BATCHES)
    if batch is not None and size is None and steps is not None:
        yield "train_micro_batch_size_per_gpu: is batch / accumulation / replicas"


def _replicas(batch: int | None, size: int | None, steps: int | None, source: str) -> int | None:
    """Replicas that batches leave; None where one is missing."""
    if batch is None or size is None or steps is None:
        return None
    dp, rest = divmod(batch, size * steps)
    if rest or not dp:
        told = f"{batch}: is no multiple of micro-batch {size} x accumulation {steps}"
        raise FormatError(f"{source}: train_batch_size: {told}")
    return dp
