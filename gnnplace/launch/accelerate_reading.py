"""accelerate: the plan of the YAML of `accelerate launch --config_file`.

Read by accelerate 1.15.0 (`commands/config/config_args.py`, `commands/launch.py`,
`utils/dataclasses.py`). Batch, micro-batches and the optimizer are the script's: a comment at the
head may hold them, else they are asked for.

ZeRO 3 is FSDP that gives parameters back after the forward pass, ZeRO 2 is FSDP that keeps them,
ZeRO 0 is plain DDP. HYBRID_SHARD shards within a machine under FSDP 1; FSDP 2 does not obey it: a
mesh of `parallelism_config` does that there. Under DEEPSPEED the file has ZeRO and offloading, or
names a JSON; under MEGATRON_LM it has Megatron's degrees. Keys inside of sections that accelerate
does not read are listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gnnplace.errors import FormatError, suggestion
from gnnplace.files import parse_yaml
from gnnplace.launch.deepspeed_reading import read_beside
from gnnplace.launch.keys import Keys, format_value, put_values, yaml_lines
from gnnplace.launch.launch_plan import (
    FULL,
    NONE,
    SELECTIVE,
    LaunchPlan,
    NotPriced,
    check_plan_words,
    with_header,
)
from gnnplace.launch.offloading import find_deepspeed_offload, fsdp_offload

TOP = (
    "compute_environment",
    "debug",
    "distributed_type",
    "downcast_bf16",
    "enable_cpu_affinity",
    "fsdp_config",
    "machine_rank",
    "main_process_ip",
    "main_process_port",
    "main_training_function",
    "mixed_precision",
    "num_machines",
    "num_processes",
    "parallelism_config",
    "rdzv_backend",
    "same_network",
    "tpu_env",
    "tpu_use_cluster",
    "tpu_use_sudo",
    "use_cpu",
    "gpu_ids",
    "dynamo_config",
    "tpu_name",
    "tpu_zone",
    "command_file",
    "commands",
    "tpu_vm",
    "fp8_config",
    "deepspeed_config",
    "megatron_lm_config",
    "mpirun_config",
    "fp16",
    "dynamo_backend",
    "ipex_config",
    "num_cpu_threads_per_process",
    "main_process_ip",
    "deepspeed_hostfile",
    "gradient_accumulation_steps",
)
PARALLEL = (
    "dp_replicate_size",
    "dp_shard_size",
    "tp_size",
    "cp_size",
    "cp_backend",
    "cp_comm_strategy",
    "sp_size",
    "sp_backend",
    "sp_seq_length",
    "sp_seq_length_is_variable",
    "sp_attn_implementation",
)
FSDP = (
    "version",
    "offload_params",
    "min_num_params",
    "sharding_strategy",
    "reshard_after_forward",
    "auto_wrap_policy",
    "transformer_layer_cls_to_wrap",
    "backward_prefetch",
    "state_dict_type",
    "forward_prefetch",
    "use_orig_params",
    "cpu_ram_efficient_loading",
    "sync_module_states",
    "activation_checkpointing",
    "activation_checkpointing_offload",
    "ignored_modules",
)
DYNAMO = ("backend", "mode", "use_dynamic", "use_fullgraph", "use_regional_compilation")
DEEPSPEED = (
    "zero_stage",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_optimizer_nvme_path",
    "offload_param_nvme_path",
    "zero3_init_flag",
    "zero3_save_16bit_model",
    "deepspeed_hostfile",
    "deepspeed_config_file",
    "deepspeed_multinode_launcher",
    "deepspeed_inclusion_filter",
    "deepspeed_exclusion_filter",
    "deepspeed_moe_layer_cls_names",
    "seq_parallel_communication_data_type",
)
MEGATRON = (
    "tp_degree",
    "pp_degree",
    "num_micro_batches",
    "sequence_parallelism",
    "recompute_activations",
    "use_distributed_optimizer",
    "gradient_clipping",
)
KINDS = (
    "NO",
    "MULTI_GPU",
    "FSDP",
    "DEEPSPEED",
    "MEGATRON_LM",
    "MULTI_NPU",
    "MULTI_XPU",
    "MULTI_MLU",
)
SCRIPT_WORDS = ("batch", "microbatch_size", "optimizer")
STRATEGY = {
    "NO_SHARD": 0,
    "SHARD_GRAD_OP": 2,
    "FULL_SHARD": 3,
    "HYBRID_SHARD": 3,
    "HYBRID_SHARD_ZERO2": 2,
    "_HYBRID_SHARD_ZERO2": 2,
    "1": 3,
    "2": 2,
    "3": 0,
    "4": 3,
    "5": 2,
}
HYBRID = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "_HYBRID_SHARD_ZERO2", "4", "5")
PRECISIONS = {"no": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
WORD_KEYS: Mapping[str, tuple[str, ...]] = {
    "dp": ("num_processes",),
    "tp": (
        "parallelism_config.parallelism_config_tp_size",
        "megatron_lm_config.megatron_lm_tp_degree",
    ),
    "pp": ("megatron_lm_config.megatron_lm_pp_degree",),
    "cp": (
        "parallelism_config.parallelism_config_cp_size",
        "parallelism_config.parallelism_config_sp_size",
    ),
    "sp": ("megatron_lm_config.megatron_lm_sequence_parallelism",),
    "zero": (
        "fsdp_config.fsdp_reshard_after_forward",
        "fsdp_config.fsdp_sharding_strategy",
        "deepspeed_config.zero_stage",
        "megatron_lm_config.megatron_lm_use_distributed_optimizer",
    ),
    "group": (
        "parallelism_config.parallelism_config_dp_shard_size",
        "fsdp_config.fsdp_sharding_strategy",
    ),
    "recompute": (
        "fsdp_config.fsdp_activation_checkpointing",
        "megatron_lm_config.megatron_lm_recompute_activations",
    ),
    "accumulation": (
        "deepspeed_config.gradient_accumulation_steps",
        "megatron_lm_config.megatron_lm_num_micro_batches",
    ),
    "precision": ("mixed_precision",),
    "compile": ("dynamo_config.dynamo_backend", "dynamo_backend"),
}


@dataclass
class _Reading:
    """The keys of a file, and what was found in it so far.

    Attributes:
        keys: The keys of the file.
        notes: Notes on what has no word, each in one line.
        not_priced: What no price counts.
    """

    keys: Keys
    notes: list[str] = field(default_factory=list)
    not_priced: list[NotPriced] = field(default_factory=list)

    def refuse_price(self, path: str, effect: str) -> None:
        """Note that no price counts a key."""
        self.not_priced.append(
            NotPriced(key=path, effect=effect, line=self.keys.line(path))
        )


def read_accelerate(
    text: str, source: str, values: Mapping[str, str] | None = None
) -> LaunchPlan:
    """Return the plan of a configuration of accelerate.

    Args:
        text: The YAML.
        source: The file's path, which errors begin with.
        values: Values for its keys, by their paths.

    Raises:
        FormatError: If it is no such file, has a key that accelerate refuses, or contradicts
            itself.
    """
    data = put_values(parse_yaml(text, source), values or {}, source, TOP)
    keys = Keys(data, source, yaml_lines(text))
    for key in keys.unknown("", TOP):
        raise FormatError(f"{source}: {key}: unknown key{suggestion(key, TOP)}")
    kind = str(data.get("distributed_type", "NO")).upper()
    if kind not in KINDS:
        raise FormatError(
            f"{source}: distributed_type: {kind[:20]}: is not priced; it must be one of "
            f"{', '.join(KINDS)}"
        )
    reading = _Reading(keys)
    plan = replace(
        _mesh(reading), compile=_compiles(reading), lines=keys.word_lines(WORD_KEYS)
    )
    plan = replace(plan, precision=_precision(reading, kind))
    if kind == "DEEPSPEED":
        plan = _with_deepspeed(reading, plan)
    elif kind == "MEGATRON_LM":
        plan = _with_megatron(reading, plan)
    else:
        plan = _with_fsdp(reading, plan, kind)
    needs = () if keys.has("num_processes") else ("num_processes",)
    plan = replace(plan, not_priced=tuple(reading.not_priced), needs=needs)
    plan = with_header(plan, text, source)
    missing = [name for name in SCRIPT_WORDS if getattr(plan, name) is None]
    if missing:
        reading.notes.append(
            f"said by the script and not by this file: {', '.join(missing)}"
        )
    return check_plan_words(replace(plan, notes=tuple(reading.notes)), source)


def _mesh(reading: _Reading) -> LaunchPlan:
    """Return the plan of `num_processes` and `parallelism_config`.

    Raises:
        FormatError: If the sizes do not make the processes.
    """
    keys = reading.keys
    source = keys.source
    sizes = _section(reading, "parallelism_config", "parallelism_config_", PARALLEL)
    count = {
        name: _count(sizes, name, source) for name in PARALLEL if name.endswith("_size")
    }
    replicas = count["dp_replicate_size"]
    shards = count["dp_shard_size"]
    tp = count["tp_size"]
    cp = count["cp_size"] * count["sp_size"]
    inside = replicas * shards * tp * cp
    world = keys.get("num_processes")
    if world is None:
        world = inside if sizes else None
    elif type(world) is not int or world < 1:
        raise FormatError(f"{source}: num_processes: must be a whole number from 1 on")
    if sizes and inside != world:
        raise FormatError(
            f"{source}: parallelism_config: sizes make {inside} processes, and num_processes is "
            f"{world}"
        )
    if replicas > 1 and shards == 1 and (tp > 1 or cp > 1):
        raise FormatError(
            f"{source}: parallelism_config: replicas beside tp or cp need dp_shard_size > 1"
        )
    dp = replicas * shards if sizes else world
    if sizes and dp is not None and 1 < shards < dp:
        group = shards
    else:
        group = None
    return LaunchPlan(dp=dp, tp=tp, cp=cp, group=group, gradients="same")


def _compiles(reading: _Reading) -> bool:
    """Return whether layers run under `torch.compile`."""
    keys = reading.keys
    dynamo = _section(reading, "dynamo_config", "dynamo_", DYNAMO)
    backend = str(dynamo.get("backend", keys.get("dynamo_backend") or "no")).lower()
    mode = str(dynamo.get("mode", "default"))
    if backend == "inductor" and "reduce" in mode:
        reading.notes.append(f"dynamo_mode {mode[:40]}: CUDA graphs, priced without")
    elif backend not in ("inductor", "no", "eager"):
        reading.notes.append(f"dynamo_backend {backend[:40]}: priced without")
    return backend == "inductor"


def _precision(reading: _Reading, kind: str) -> str:
    """Return the precision in Lightning's words.

    Raises:
        FormatError: `mixed_precision` is none that accelerate has.
    """
    half = reading.keys.get("mixed_precision")
    if half in (None, False):
        return "32-true"
    if half == "fp8":
        reading.refuse_price(
            "mixed_precision", "matrix products in fp8; priced in bf16"
        )
        return "bf16-mixed"
    if not isinstance(half, str) or half not in PRECISIONS:
        raise FormatError(
            f"{reading.keys.source}: mixed_precision: {format_value(half)}: "
            "must be no, bf16, fp16 or fp8"
        )
    precision = PRECISIONS[half]
    # Half-precision parameters, and a float32 copy in the optimizer.
    if kind in ("DEEPSPEED", "MEGATRON_LM"):
        precision = precision.replace("mixed", "master")
    return precision


def _with_fsdp(reading: _Reading, plan: LaunchPlan, kind: str) -> LaunchPlan:
    """Return a plan with what FSDP's keys say."""
    keys = reading.keys
    fsdp = _section(reading, "fsdp_config", "fsdp_", FSDP)
    if kind != "FSDP":
        return plan
    zero, is_hybrid = _zero(reading, fsdp)
    is_first = str(fsdp.get("version", 1)) == "1" and plan.tp == plan.cp == 1
    group = plan.group
    machines = keys.get("num_machines")
    if is_hybrid and not is_first:
        reading.notes.append(
            "HYBRID_SHARD: FSDP 2 does not obey it; parallelism_config.dp_shard_size shards in "
            "groups"
        )
    elif is_hybrid and plan.dp and type(machines) is int and 1 < machines <= plan.dp:
        group = plan.dp // machines
    checkpointing = fsdp.get("activation_checkpointing")
    is_offloaded = str(fsdp.get("offload_params")).lower() == "true"
    if is_offloaded:
        offload = fsdp_offload(zero)
    else:
        offload = NONE
    if offload is None:
        effect = (
            "offloads parameters, gradients and optimizer to the CPU; priced on the GPU"
        )
        reading.refuse_price("fsdp_config.fsdp_offload_params", effect)
    if str(fsdp.get("activation_checkpointing_offload")).lower() == "true":
        effect = "offloads checkpointed activations to the CPU; priced on the GPU"
        reading.refuse_price(
            "fsdp_config.fsdp_activation_checkpointing_offload", effect
        )
    is_sharded = plan.dp is None or plan.dp > 1 or plan.cp > 1
    return replace(
        plan,
        zero=zero if is_sharded else 0,
        group=group,
        offload=offload if offload and is_sharded else NONE,
        recompute=FULL if str(checkpointing).lower() == "true" else NONE,
    )


def _zero(reading: _Reading, fsdp: Mapping[str, Any]) -> tuple[int, bool]:
    """Return ZeRO's stage that FSDP's keys mean, and whether they ask for HYBRID_SHARD.

    Raises:
        FormatError: If they name no sharding strategy.
    """
    named = ("version", "reshard_after_forward", "sharding_strategy")
    if not any(key in fsdp for key in named):
        reading.notes.append(
            "no fsdp_version: 1 for accelerate launch, 2 for the Trainer"
        )
    reshard = fsdp.get("reshard_after_forward", fsdp.get("sharding_strategy", True))
    hybrid = any(
        str(fsdp.get(key)).upper() in HYBRID
        for key in ("reshard_after_forward", "sharding_strategy")
    )
    if isinstance(reshard, bool):
        return (3 if reshard else 2), hybrid
    if isinstance(reshard, (str, int)):
        word = str(reshard).upper()
    else:
        word = ""
    if word in ("TRUE", "FALSE"):
        return (3 if word == "TRUE" else 2), hybrid
    if word not in STRATEGY:
        source = reading.keys.source
        raise FormatError(
            f"{source}: fsdp_config: {format_value(reshard)}: no sharding strategy"
        )
    return STRATEGY[word], hybrid


def _with_deepspeed(reading: _Reading, plan: LaunchPlan) -> LaunchPlan:
    """Return a plan with what `deepspeed_config` says, or the JSON that it names.

    Raises:
        FormatError: If the JSON is not beside the file, or a value is none that DeepSpeed has.
    """
    keys = reading.keys
    section = _section(reading, "deepspeed_config", "", DEEPSPEED)
    path = section.get("deepspeed_config_file")
    if path not in (None, "none"):
        return _with_json(reading, plan, str(path))
    zero = section.get("zero_stage", 2)
    if str(zero) not in ("0", "1", "2", "3"):
        raise keys.fault("deepspeed_config.zero_stage", "must be 0 to 3")
    names = ("offload_optimizer_device", "offload_param_device")
    offload = find_deepspeed_offload(
        section.get(names[0]), section.get(names[1]), int(zero)
    )
    for name in names if offload is None else ():
        device = section.get(name)
        if device in (None, "none", False):
            continue
        if "optimizer" in name:
            offloaded = "the optimizer's state"
        else:
            offloaded = "parameters"
        effect = f"offload: {offloaded} on {str(device)[:20]}; priced on the GPU"
        reading.refuse_price(f"deepspeed_config.{name}", effect)
    steps = section.get("gradient_accumulation_steps")
    if steps not in (None, "auto") and (type(steps) is not int or steps < 1):
        raise keys.fault(
            "deepspeed_config.gradient_accumulation_steps", "must be a whole number"
        )
    accumulation = steps if type(steps) is int else None
    return replace(
        plan, zero=int(zero), offload=offload or NONE, accumulation=accumulation
    )


def _with_json(reading: _Reading, plan: LaunchPlan, path: str) -> LaunchPlan:
    """Return a plan with what DeepSpeed's JSON beside the file says."""
    key = "deepspeed_config.deepspeed_config_file"
    engine = read_beside(reading.keys.source, path, key)
    reading.notes += engine.notes
    reading.not_priced += engine.not_priced
    lines = {word: None for word in engine.lines if word != "dp"}
    dp = plan.dp
    return replace(
        engine,
        dp=dp,
        tp=max(plan.tp, engine.tp),
        cp=max(plan.cp, engine.cp),
        precision=engine.precision or plan.precision,
        compile=plan.compile,
        notes=(),
        lines={**plan.lines, **lines},
    )


def _with_megatron(reading: _Reading, plan: LaunchPlan) -> LaunchPlan:
    """Return a plan with what `megatron_lm_config` says.

    Raises:
        FormatError: If its degrees do not divide the processes.
    """
    section = _section(reading, "megatron_lm_config", "megatron_lm_", MEGATRON)
    source = reading.keys.source
    tp = _count(section, "tp_degree", source, "megatron_lm_config")
    pp = _count(section, "pp_degree", source, "megatron_lm_config")
    steps = _count(section, "num_micro_batches", source, "megatron_lm_config")
    world = plan.dp
    plan = replace(
        plan,
        tp=tp,
        pp=pp,
        dp=None,
        sp=tp == 1 or section.get("sequence_parallelism") is True,
        accumulation=steps,
        zero=1 if section.get("use_distributed_optimizer") is True else 0,
        recompute=SELECTIVE if section.get("recompute_activations") is True else NONE,
        gradients="fp32" if plan.precision == "bf16-master" else "same",
    )
    if world is None:
        return plan
    return plan.with_dp(world, source)


def _section(
    reading: _Reading, name: str, prefix: str, known: Sequence[str]
) -> dict[str, Any]:
    """Return the keys of a section without their prefix. Keys that nothing reads are noted.

    Args:
        reading: The file.
        name: Name of the section.
        prefix: Prefix of the section's keys.
        known: The keys that accelerate reads, without the prefix.

    Raises:
        FormatError: If the section is no mapping.
    """
    part = reading.keys.get(name) or {}
    if not isinstance(part, dict):
        raise FormatError(f"{reading.keys.source}: {name}: must be keys and values")
    section = {str(key).removeprefix(prefix): value for key, value in part.items()}
    unread = [key for key in section if key not in known]
    if unread:
        listed = ", ".join(key[:40] for key in unread)
        reading.notes.append(f"{name}: keys that accelerate does not read: {listed}")
    return section


def _count(
    part: Mapping[str, Any], name: str, source: str, section: str = "parallelism_config"
) -> int:
    value = part.get(name, 1)
    if type(value) is not int or not 1 <= value <= 10**6:
        reason = f"{format_value(value)}: must be a whole number from 1 on"
        raise FormatError(f"{source}: {section}.{name}: {reason}")
    return value
