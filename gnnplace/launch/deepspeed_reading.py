"""DeepSpeed: the plan of the JSON of `deepspeed --deepspeed_config`, for the Trainer and others.

Read by DeepSpeed 0.19.8 (`runtime/config.py`, `runtime/zero/config.py`) and Hugging Face's
documentation of `"auto"`: a value that the Trainer's arguments fill in. It is never on or off by
itself: batch, micro-batch and precision that are auto are asked for, other keys are listed.

Without `bf16` and `fp16` parameters are fp32; `torch_autocast` is autocast over them. `bf16` and
`fp16` keep half parameters and a fp32 copy in the optimizer; gradients are summed in the half type
unless `data_types.grad_accum_dtype` says fp32.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gnnplace.errors import FormatError
from gnnplace.files import parse_json
from gnnplace.launch.keys import FileValue, Keys, put_values, yaml_lines
from gnnplace.launch.launch_plan import (
    NONE,
    PRICED_OPTIMIZERS,
    LaunchPlan,
    NotPriced,
    check_plan_words,
    with_fields,
)
from gnnplace.launch.neighbours import read_neighbour
from gnnplace.launch.offloading import find_deepspeed_offload

HELD = "x-gnnplace"
KEPT = ("pp", "chunks", "layers", "recompute", "schedule", "zero", "dp")
BATCHES = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)
AUTO = "auto"
TOP = (
    *BATCHES,
    "bf16",
    "fp16",
    "bfloat16",
    "zero_optimization",
    "optimizer",
    "scheduler",
    "data_types",
    "tensor_parallel",
    "sequence_parallel_size",
    "data_parallel_size",
    "expert_parallel",
    "pipeline",
    "activation_checkpointing",
    "gradient_clipping",
    "steps_per_print",
    "wall_clock_breakdown",
    "prescale_gradients",
    "communication_data_type",
    "amp",
    "torch_autocast",
    "flops_profiler",
    "tensorboard",
    "wandb",
    "comet",
    "csv_monitor",
    "comms_logger",
    "memory_breakdown",
    "dump_state",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "gradient_predivide_factor",
    "sparse_gradients",
    "checkpoint",
    "aio",
    "elasticity",
    "autotuning",
    "compile",
    "compression_training",
    "data_efficiency",
    "curriculum_learning",
    "dataloader_drop_last",
    "seed",
    "hybrid_engine",
    "use_node_local_storage",
    "seq_parallel_communication_data_type",
    "sparse_attention",
    "progressive_layer_drop",
    "quantize_training",
    "eigenvalue",
    "nebula",
    "monitor_config",
    "load_universal_checkpoint",
    "graph_harvesting",
    "zero_quantized_weights",
    "disable_allgather",
    "allgather_size",
    "fp32_allreduce",
    "memory_breakdown",
    "vocabulary_size",
    "weight_quantization",
    "timers",
    "allreduce_always_fp32",
    "legacy_fusion",
    "comms_config",
    "zero_allow_untested_optimizer",
    HELD,
)
ZERO = (
    "stage",
    "contiguous_gradients",
    "reduce_scatter",
    "reduce_bucket_size",
    "use_multi_rank_bucket_allreduce",
    "allgather_partitions",
    "allgather_bucket_size",
    "overlap_comm",
    "load_from_fp32_weights",
    "elastic_checkpoint",
    "offload_param",
    "offload_optimizer",
    "zenflow",
    "sub_group_size",
    "cpu_offload",
    "cpu_offload_param",
    "cpu_offload_params",
    "cpu_offload_use_pin_memory",
    "ignore_unused_parameters",
    "legacy_stage1",
    "round_robin_gradients",
    "zero_hpz_partition_size",
    "zero_quantized_weights",
    "zero_quantized_nontrainable_weights",
    "zero_quantized_gradients",
    "zeropp_loco_param",
    "mics_shard_size",
    "mics_hierarchical_params_gather",
    "memory_efficient_linear",
    "pipeline_loading_checkpoint",
    "override_module_apply",
    "log_trace_cache_warnings",
    "enable_sanity_checks",
    "save_muon_momentum_buffer_in_memory",
    "leaf_module",
    "prefetch_bucket_size",
    "param_persistence_threshold",
    "model_persistence_threshold",
    "max_live_parameters",
    "max_reuse_distance",
    "gather_16bit_weights_on_model_save",
    "module_granularity_threshold",
    "use_all_reduce_for_fetch_params",
    "ratio",
)
WORD_KEYS: Mapping[str, tuple[str, ...]] = {
    "dp": (BATCHES[0],),
    "tp": ("tensor_parallel.autotp_size",),
    "cp": ("sequence_parallel_size",),
    "ep": ("expert_parallel.autoep_size",),
    "etp": ("expert_parallel.expert_tensor_parallel_size",),
    "microbatch_size": (BATCHES[1],),
    "batch": (BATCHES[0],),
    "accumulation": (BATCHES[2],),
    "zero": ("zero_optimization.stage",),
    "group": ("zero_optimization.mics_shard_size",),
    "gradients": ("data_types.grad_accum_dtype",),
    "overlap": ("zero_optimization.overlap_comm",),
    "precision": (
        "bf16.enabled",
        "fp16.enabled",
        "bfloat16.enabled",
        "torch_autocast.enabled",
        "amp.enabled",
    ),
    "optimizer": ("optimizer.type",),
}
PLACEHOLDER = re.compile(r":\s{0,9}([A-Z][A-Z0-9_]{3,60})(?=\s{0,9}[,}\n])")
OFFLOADS = ("offload_optimizer", "offload_param")
OLD_OFFLOADS = ("zero_optimization.cpu_offload", "zero_optimization.cpu_offload_param")
SWITCHED: Mapping[str, str] = {
    "zero_optimization.zero_quantized_weights": "quantized weights are gathered; priced in the "
    "half type",
    "zero_optimization.zero_quantized_gradients": "quantized gradients are reduced; priced in the "
    "half type",
    "zero_optimization.zero_quantized_nontrainable_weights": "frozen weights are quantized; priced "
    "in the half type",
    "zero_optimization.zeropp_loco_param": "errors of quantized gradients are kept; not priced",
    "zero_optimization.zenflow": "ZenFlow updates few columns on the GPU and the others on the CPU "
    "later; priced as the usual update",
    "zero_optimization.cpu_offload": "offloads the optimizer's state to the CPU; priced on the GPU",
    "zero_optimization.cpu_offload_param": "offloads parameters to the CPU; priced on the GPU",
    "zero_optimization.cpu_offload_params": "offloads parameters to the CPU; priced on the GPU",
    "activation_checkpointing.cpu_checkpointing": "offloads checkpointed activations to the CPU; "
    "priced on the GPU",
    "activation_checkpointing.partition_activations": "kept activations are cut over tensor-"
    "parallel shards; priced whole",
    "curriculum_learning.enabled": "the sequence length grows; priced at its last length",
    "data_efficiency.enabled": "curriculum or dropped tokens; priced with all tokens",
    "progressive_layer_drop.enabled": "layers are dropped; priced with all",
    "elasticity.enabled": "batch and devices change; priced as the other keys say",
    "quantize_training.enabled": "weights are quantized; priced in the half type",
    "hybrid_engine.enabled": "generation between steps is not priced",
    "sparse_gradients": "sparse gradients of embeddings; priced as dense",
    "sparse_attention": "sparse attention; priced over all tokens",
    "compression_training": "compression; priced without",
    "autotuning.enabled": "DeepSpeed tries settings of its own; priced as the keys say",
    "fp32_allreduce": "gradients are reduced in fp32; priced in their own type",
}
"""What a switch, or a section that is there, changes and no price counts."""


def read_deepspeed(
    text: str, source: str, values: Mapping[str, str] | None = None
) -> LaunchPlan:
    """Return the plan of a configuration of DeepSpeed.

    Args:
        text: The JSON.
        source: The file's path, which errors begin with.
        values: Values for its keys, by their paths.

    Raises:
        FormatError: If it is no such file, or its batches contradict.
    """
    text, remaining = _with_placeholders(text, source, values or {})
    data = put_values(parse_json(text, source), remaining, source, TOP)
    return parse_plan_keys(Keys(data, source, yaml_lines(text)))


def _with_placeholders(
    text: str, source: str, values: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    """Return a template's text with its placeholders put in, and the values that remain.

    Raises:
        FormatError: If a placeholder, as `"train_batch_size": CONFIG_BATCH_SIZE`, has no value.
    """
    names = list(dict.fromkeys(match[1] for match in PLACEHOLDER.finditer(text)))
    missing = [name for name in names if name not in values]
    if missing:
        options = " ".join(f"--set {name}=VALUE" for name in missing)
        raise FormatError(
            f"{source}: is a template that needs {', '.join(missing)}: give {options}"
        )
    filled = PLACEHOLDER.sub(lambda m: m[0].replace(m[1], values[m[1]]), text)
    return filled, {name: value for name, value in values.items() if name not in names}


def parse_plan_keys(keys: Keys) -> LaunchPlan:
    """Return the plan of a configuration's keys.

    Raises:
        FormatError: If a value is none that DeepSpeed has, or batches contradict.
    """
    source = keys.source
    batch, size, steps = (_count(keys, name) for name in BATCHES)
    dp = _replicas(batch, size, steps, source)
    precision = _precision(keys)
    half = (precision or "32-true").partition("-")[0]
    fp32 = (
        keys.word("data_types.grad_accum_dtype", ("fp32", "bf16", "fp16"), "same")
        == "fp32"
    )
    tp = keys.count("tensor_parallel.autotp_size", 1, least=0) or 1
    part = "expert_parallel."
    if keys.switch(f"{part}enabled"):
        ep = keys.count(f"{part}autoep_size", 1)
    else:
        ep = 1
    if (ep or 1) > 1:
        etp = keys.count(f"{part}expert_tensor_parallel_size", 1)
    else:
        etp = None
    # ZeRO, its groups and what it hides.
    if keys.get("zero_optimization.stage") == AUTO:
        zero = 0
    else:
        zero = keys.count("zero_optimization.stage", 0, least=0) or 0
    if zero > 3:
        raise keys.fault("zero_optimization.stage", "must be 0 to 3")
    offload = _offload(keys, zero)
    group = _count(keys, "zero_optimization.mics_shard_size", least=-1) or 0
    overlap = zero == 3
    if keys.get("zero_optimization.overlap_comm") != AUTO:
        overlap = keys.switch("zero_optimization.overlap_comm", overlap)
    plan = LaunchPlan(
        dp=dp,
        tp=tp,
        ep=ep or 1,
        etp=None if etp == tp else etp,
        sp=tp == 1,
        cp=_count(keys, "sequence_parallel_size") or 1,
        microbatch_size=size,
        batch=batch,
        zero=zero,
        group=group if zero == 3 and group > 1 else None,
        accumulation=steps or 1 if batch is None or size is None else None,
        precision=precision,
        gradients="fp32" if half != "32" and fp32 else "same",
        optimizer=_optimizer(keys),
        offload=offload or NONE,
        overlap=("gradients",) if overlap and zero not in (0, 3) else (),
        notes=tuple(_notes(keys)),
        not_priced=tuple(_iterate_unpriced(keys, offload)),
        lines=_lines(keys),
    )
    header = keys.get(HELD)
    if isinstance(header, dict):
        plan = with_fields(plan, {k: v for k, v in header.items() if k in KEPT}, source)
    if plan.batch is None and plan.dp and size and steps:
        plan = replace(plan, batch=plan.dp * size * steps, accumulation=None)
    if (
        BATCHES[2] in keys.data
        and keys.get(BATCHES[2]) == AUTO
        and plan.accumulation == 1
    ):
        plan = replace(plan, accumulation=None)
    return check_plan_words(plan, source)


def _count(keys: Keys, path: str, least: int = 1) -> int | None:
    """Return a whole number, or None if it is not there or auto."""
    if keys.get(path) == AUTO:
        return None
    return keys.count(path, least=least)


def _lines(keys: Keys) -> dict[str, int | None]:
    """Return the line of every word that a key says, not of those that are auto."""
    unread = {
        word: [path for path in paths if _peek(keys, path) not in (AUTO, False)]
        for word, paths in WORD_KEYS.items()
    }
    return keys.word_lines(unread)


def _precision(keys: Keys) -> str | None:
    """Return the precision in Lightning's words, or None if the Trainer fills it in.

    Raises:
        FormatError: If a switch is neither true, false nor auto.
    """
    is_auto = False
    for section, half in (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "16")):
        path = f"{section}.enabled"
        value = _peek(keys, path)
        if value == AUTO:
            is_auto = True
        elif value not in (None, True, False):
            raise keys.fault(
                path, "must be true or false, or auto, which the Trainer fills in"
            )
        elif value is True:
            both = ("bf16_master_weights_and_grads", "bf16_optimizer_states")
            if half == "bf16" and all(
                keys.get(f"{section}.{name}") is True for name in both
            ):
                return "bf16-true"
            return f"{half}-master"
    if keys.get("torch_autocast.enabled") is True:
        dtype = str(keys.get("torch_autocast.dtype"))
        if "float16" in dtype and "bfloat16" not in dtype:
            return "16-mixed"
        return "bf16-mixed"
    if keys.get("amp.enabled") is True:
        if keys.get("amp.opt_level") in ("O2", "O3"):
            return "16-master"
        return "16-mixed"
    auto_amp = AUTO in (keys.get("amp.enabled"), keys.get("torch_autocast.enabled"))
    if is_auto or auto_amp:
        return None
    return "32-true"


def _optimizer(keys: Keys) -> str | None:
    """Return the optimizer; one that has no price keeps its name."""
    name = keys.get("optimizer.type")
    if not isinstance(name, str) or name == AUTO:
        return None
    return name.lower()


def _offload(keys: Keys, zero: int) -> str | None:
    """Return what lies in the host's memory, or None if no word says it."""
    optimizer, parameters = (keys.get(f"zero_optimization.{name}") for name in OFFLOADS)
    old_optimizer, old_parameters = (
        keys.get(f"zero_optimization.{name}")
        for name in ("cpu_offload", "cpu_offload_param")
    )
    return find_deepspeed_offload(
        optimizer or old_optimizer, parameters or old_parameters, zero
    )


def _iterate_unpriced(keys: Keys, offload: str | None) -> Iterator[NotPriced]:
    """Yield what changes seconds or bytes and no price counts."""
    for name in OFFLOADS if offload is None else ():
        path = f"zero_optimization.{name}"
        value = keys.get(path)
        if isinstance(value, dict):
            device = value.get("device", "cpu")
        else:
            device = value
        if device in (None, False, "none", {}):
            continue
        if name == OFFLOADS[0]:
            offloaded = "the optimizer's state"
        else:
            offloaded = "parameters"
        if isinstance(value, dict):
            ratio = value.get("ratio")
        else:
            ratio = None
        if ratio is None:
            share = ""
        else:
            share = f", a share of {ratio}"
        effect = f"{name}: {offloaded} on {str(device)[:20]}{share} (offload); priced on the GPU"
        yield NotPriced(key=path, effect=effect, line=keys.line(path))
    for path, effect in SWITCHED.items():
        if path in OLD_OFFLOADS and offload is not None:
            continue
        value = _peek(keys, path)
        if value in (None, False, AUTO, {}, 0):
            continue
        yield NotPriced(key=path, effect=effect, line=keys.line(path))
    # Groups that shard parameters change what is exchanged, and when.
    path = "zero_optimization.mics_shard_size"
    if (_count(keys, path, least=-1) or 0) > 1:
        effect = "groups sum gradients once a step; --environment groups-once prices it"
        yield NotPriced(key=path, effect=effect, line=keys.line(path))
    partition = _count(keys, "zero_optimization.zero_hpz_partition_size") or 1
    if partition > 1:
        effect = (
            f"parameters are gathered in groups of {partition} (hpZ), with a second copy in each; "
            "priced over all replicas"
        )
        path = "zero_optimization.zero_hpz_partition_size"
        yield NotPriced(key=path, effect=effect, line=keys.line(path))
    yield from _type_effects(keys)


def _type_effects(keys: Keys) -> Iterator[NotPriced]:
    """Yield types and optimizers that no price counts."""
    states = [
        name
        for name in ("bf16_master_weights_and_grads", "bf16_optimizer_states")
        if _peek(keys, f"bf16.{name}") is True
    ]
    if len(states) == 1:
        path = f"bf16.{states[0]}"
        effect = "a part of the optimizer's states in bf16; priced in fp32"
        yield NotPriced(key=path, effect=effect, line=keys.line(path))
    optimizer = _optimizer(keys)
    if optimizer not in (None, *PRICED_OPTIMIZERS):
        effect = f"the update and the state of {optimizer}; priced as adamw"
        yield NotPriced(
            key="optimizer.type", effect=effect, line=keys.line("optimizer.type")
        )
    for path in ("communication_data_type", "seq_parallel_communication_data_type"):
        value = _peek(keys, path)
        if value not in (None, AUTO):
            effect = f"exchanges in {str(value)[:20]}; priced in the type of what is exchanged"
            yield NotPriced(key=path, effect=effect, line=keys.line(path))
    if _peek(keys, "zero_optimization.reduce_scatter") is False:
        path = "zero_optimization.reduce_scatter"
        effect = "gradients by an all-reduce; priced as a reduce-scatter"
        yield NotPriced(key=path, effect=effect, line=keys.line(path))
    compiled = _peek(keys, "compile")
    if compiled is not None:
        effect = "is what the script's engine.compile() obeys; priced without"
        yield NotPriced(key="compile", effect=effect, line=keys.line("compile"))


def _peek(keys: Keys, path: str) -> FileValue:
    """Return the value of a path, or None if it is not there or stands in no mapping."""
    if keys.has(path):
        return keys.get(path)
    return None


def _notes(keys: Keys) -> Iterator[str]:
    """Yield what is not known, what something else fills in, and what a key means."""
    unknown = [key for key in keys.unknown("", TOP) if not key.startswith("x-")]
    if unknown:
        yield f"keys that are not known, and not priced: {', '.join(unknown)}"
    refused = [
        k
        for k in keys.unknown("zero_optimization", ZERO)
        if not k.startswith("stage3_")
    ]
    if refused:
        yield f"keys of zero_optimization that DeepSpeed refuses: {', '.join(refused)}"
    filled = [path for path, value in keys.walk() if value == AUTO]
    if filled:
        yield f"auto, which the Trainer fills in: {', '.join(filled)}"
    if keys.get("zero_optimization.stage") == AUTO:
        yield "zero_optimization.stage: auto: priced as stage 0"
    batch, size, steps = (keys.get(name) for name in BATCHES)
    if batch is not None and size is None and steps is not None:
        yield "train_micro_batch_size_per_gpu: is batch / accumulation / replicas"
    if _precision(keys) == "bf16-true":
        yield "bf16_master_weights_and_grads and bf16_optimizer_states: all states in bf16"


def _replicas(
    batch: int | None, size: int | None, steps: int | None, source: str
) -> int | None:
    """Return the number of replicas that batches leave, or None if one of the three is missing.

    Args:
        batch: Examples of a step.
        size: Examples of a micro-batch.
        steps: Micro-batches of a step.
        source: The file's path, which errors begin with.

    Raises:
        FormatError: If the batch is no multiple of micro-batch and accumulation.
    """
    if batch is None or size is None or steps is None:
        return None
    dp, remainder = divmod(batch, size * steps)
    if remainder or not dp:
        reason = f"{batch}: is no multiple of micro-batch {size} x accumulation {steps}"
        raise FormatError(f"{source}: train_batch_size: {reason}")
    return dp


def read_beside(source: str, path: str, key: str) -> LaunchPlan:
    """Return the plan of DeepSpeed's JSON that another launch file names.

    Args:
        source: Path of the launch file.
        path: Path of the JSON, as the file has it.
        key: The key that names it.

    Returns:
        The plan. What no price counts has no line, since the lines are those of the JSON; the first
        note says that the JSON was read.

    Raises:
        FormatError: If the JSON is not beside the file, or cannot be read.
    """
    text = read_neighbour(source, path)
    if text is None:
        raise FormatError(
            f"{source}: {key}: {path}: has ZeRO, precision and offloading, and is not beside this "
            "file: put it there, or give that file itself"
        )
    engine = read_deepspeed(text, f"{source}: {path}")
    return replace(
        engine,
        notes=(f"{path}: beside this file, is read with it", *engine.notes),
        not_priced=tuple(replace(entry, line=None) for entry in engine.not_priced),
    )
