"""Hugging Face accelerate: the YAML of `accelerate launch --config_file`.

Written for accelerate 1.15.0 (`parallelism_config.py`, `commands/config/config_args.py`,
`commands/launch.py`). It knows replicas, FSDP 2, tensor parallelism by the model's own plan, and
context parallelism. It has no pipeline stages. Batch, micro-batches and the optimizer are the
script's: a comment at the head holds them, and is read again.

ZeRO 3 is FSDP 2 that gives parameters back after the forward pass, ZeRO 2 is FSDP 2 that keeps
them, ZeRO 0 is plain DDP; there is no ZeRO 1. Gradients are reduced in the type of
`mixed_precision`. accelerate takes unknown keys inside of `parallelism_config` and `fsdp_config`
without a word; here they are listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from gnnplace.errors import FormatError, InfeasibleError, suggestion
from gnnplace.files import yaml_of
from gnnplace.plans.launch.keys import shown
from gnnplace.plans.launch.launch_plan import (
    FULL,
    NONE,
    SELECTIVE,
    LaunchPlan,
    check_plan_words,
    header,
    with_header,
)

PRECISION = {"32": "no", "bf16": "bf16", "16": "fp16"}
TOP = (
    "compute_environment", "debug", "distributed_type", "downcast_bf16", "enable_cpu_affinity",
    "fsdp_config", "machine_rank", "main_process_ip", "main_process_port", "main_training_function",
    "mixed_precision", "num_machines", "num_processes", "parallelism_config", "rdzv_backend",
    "same_network", "tpu_env", "tpu_use_cluster", "tpu_use_sudo", "use_cpu", "gpu_ids",
    "dynamo_config", "tpu_name", "tpu_zone", "command_file", "commands", "tpu_vm", "fp8_config",
    "deepspeed_config", "megatron_lm_config", "mpirun_config", "fp16", "dynamo_backend",
)  # fmt: skip
PARALLEL = (
    "dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "cp_backend", "cp_comm_strategy",
    "sp_size", "sp_backend", "sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation",
)  # fmt: skip
FSDP = (
    "version", "offload_params", "min_num_params", "sharding_strategy", "reshard_after_forward",
    "auto_wrap_policy", "transformer_layer_cls_to_wrap", "backward_prefetch", "state_dict_type",
    "forward_prefetch", "use_orig_params", "cpu_ram_efficient_loading", "sync_module_states",
    "activation_checkpointing", "activation_checkpointing_offload", "ignored_modules",
)  # fmt: skip
DYNAMO = ("backend", "mode", "use_dynamic", "use_fullgraph", "use_regional_compilation")
HELD = ("batch", "microbatch_size", "optimizer")
STRATEGY = {"NO_SHARD": 0, "SHARD_GRAD_OP": 2, "FULL_SHARD": 3, "HYBRID_SHARD": 3,
            "HYBRID_SHARD_ZERO2": 2, "1": 3, "2": 2, "3": 0, "4": 3, "5": 2}  # fmt: skip


def write_accelerate(plan: LaunchPlan, lines: Sequence[str], gpus: int = 8) -> str:
    """A file for `accelerate launch --config_file`.

    Args:
        plan: of one stage.
        lines: for the head of the file.
        gpus: of a server.

    Raises:
        InfeasibleError: accelerate cannot say it.
    """
    if plan.pp > 1:
        raise InfeasibleError(
            f"accelerate: has no pipeline stages, and the plan has {plan.pp}; search one that it "
            "can run with `gnnplace plan MODEL --cluster C --launcher accelerate`"
        )
    if plan.zero == 1 and (plan.dp or 1) > 1:
        raise InfeasibleError("accelerate: has no ZeRO 1; take 0, 2 or 3")
    if plan.ep > 1 or plan.etp:
        raise InfeasibleError("accelerate: has no parallelism of experts beside tp")
    world, dp = plan.world or 1, plan.dp or 1
    sharded = plan.zero > 1 or plan.tp > 1 or plan.cp > 1
    kind = "FSDP" if sharded else "MULTI_GPU" if world > 1 else "NO"
    data: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE", "distributed_type": kind,
        "mixed_precision": PRECISION[(plan.precision or "32").partition("-")[0]],
        "num_machines": -(-world // gpus), "num_processes": world, "machine_rank": 0,
        "main_training_function": "main", "rdzv_backend": "static",
    }  # fmt: skip
    if plan.compile:
        data["dynamo_config"] = {"dynamo_backend": "INDUCTOR", "dynamo_mode": "default"}
    if sharded:
        data["fsdp_config"] = {
            "fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": plan.zero == 3,
            "fsdp_activation_checkpointing": plan.recompute == FULL,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }  # fmt: skip
    if plan.tp > 1 or plan.cp > 1 or (plan.group or dp) < dp:
        group = (plan.group or dp) if plan.zero > 1 else 1
        data["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": dp // group,
            "parallelism_config_dp_shard_size": group,
            "parallelism_config_tp_size": plan.tp,
            "parallelism_config_cp_size": plan.cp,
        }  # fmt: skip
        if dp // group > 1 and group == 1:
            raise InfeasibleError(
                "accelerate: tp and cp need replicas that share their state (dp_shard_size); take "
                "zero=2 or zero=3"
            )
    told = [f"# {line}" for line in header(plan, lines, keys=HELD)]
    return "\n".join([*told, yaml.safe_dump(data, sort_keys=False)])


def nearest_accelerate(plan: LaunchPlan) -> Iterator[tuple[str, LaunchPlan]]:
    """What accelerate cannot say, one thing at a time, with the nearest plan that it can."""
    for told, run in plan.as_it_runs("accelerate", compiles=True):
        plan = run
        yield told, plan
    sharded = (plan.dp or 1) > 1 and (plan.tp > 1 or plan.cp > 1)
    if (plan.zero == 1 and (plan.dp or 1) > 1) or (sharded and plan.zero == 0):
        told = f"zero={plan.zero}: accelerate has no ZeRO 1, and none below 2 beside tp or cp"
        plan = replace(plan, zero=2)
        yield f"{told}; zero=2 is written", plan
    kind = plan.recompute.partition(":")[0]
    if kind not in (NONE, FULL):
        plan = replace(plan, recompute=NONE if kind == SELECTIVE else FULL)
        yield (
            f"recompute={kind}: accelerate has all layers or none; {plan.recompute} is written",
            plan,
        )
    if plan.recompute == FULL and plan.zero < 2 and plan.tp == plan.cp == 1:
        told = "is the script's where FSDP is off: model.gradient_checkpointing_enable()"
        yield f"recompute=full: {told}", plan
    accumulated = plan.dp and plan.batch and plan.microbatch_size and plan.microbatches > 1
    if plan.zero > 1 and accumulated:
        told = f"zero={plan.zero}: gradients are whole until the last of {plan.microbatches} "
        told += "micro-batches, unless the script's GradientAccumulationPlugin has sync_each_batch"
        yield told, plan
    half, _, kind = (plan.precision or "32-true").partition("-")
    if kind in ("true", "master") and half != "32":
        told = f"precision {plan.precision}: mixed_precision keeps fp32 parameters"
        plan = replace(plan, precision=f"{half}-mixed")
        yield f"{told}; {plan.precision} is written", plan


def read_accelerate(text: str, source: str) -> LaunchPlan:
    """The plan of a file for `accelerate launch`.

    Raises:
        FormatError: it is none, has keys that accelerate refuses, or sizes that contradict.
    """
    data = yaml_of(text, source)
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise FormatError(f"{source}: must be keys and values, as accelerate config writes them")
    for key in data:
        if key not in TOP:
            raise FormatError(f"{source}: {key[:60]}: unknown key{suggestion(key, TOP)}")
    if data.get("distributed_type") in ("DEEPSPEED", "MEGATRON_LM", "XLA"):
        told = f"{data['distributed_type']}: is not read; give that launcher's own file"
        raise FormatError(f"{source}: distributed_type: {told}")
    notes: list[str] = []
    dynamo = _section(data, "dynamo_config", "dynamo_", DYNAMO, source, notes)
    backend = str(dynamo.get("backend", data.get("dynamo_backend", "no"))).lower()
    if backend == "inductor" and "reduce" in (mode := str(dynamo.get("mode", "default"))):
        notes.append(f"dynamo_mode {mode[:40]}: CUDA graphs, priced without")
    elif backend not in ("inductor", "no", "eager"):
        notes.append(f"dynamo_backend {backend[:40]}: priced without")
    fsdp = _section(data, "fsdp_config", "fsdp_", FSDP, source, notes)
    sizes = _section(data, "parallelism_config", "parallelism_config_", PARALLEL, source, notes)
    count = {name: _count(sizes, name, source) for name in PARALLEL if name.endswith("_size")}
    replicas, shards, tp = (count[x] for x in ("dp_replicate_size", "dp_shard_size", "tp_size"))
    cp = count["cp_size"] * count["sp_size"]
    world = data.get("num_processes", -1)
    if type(world) is not int or world < 1:
        raise FormatError(f"{source}: num_processes: must be there, and a whole number from 1 on")
    inside = replicas * shards * tp * cp
    if sizes and inside != world:
        raise FormatError(f"{source}: parallelism_config: sizes make {inside} processes, and "
                          f"num_processes is {world}")  # fmt: skip
    if replicas > 1 and shards == 1 and (tp > 1 or cp > 1):
        raise FormatError(
            f"{source}: parallelism_config: replicas beside tp or cp need dp_shard_size > 1"
        )
    dp = replicas * shards if sizes else world
    half = data.get("mixed_precision", "no")
    known = {"no": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
    if half not in (*known, False, None):
        raise FormatError(f"{source}: mixed_precision: {shown(half)}: must be no, bf16 or fp16")
    zero, again = _zero(data, fsdp, source, notes), fsdp.get("activation_checkpointing")
    plan = LaunchPlan(
        dp=dp,
        tp=tp,
        cp=cp,
        zero=zero if dp > 1 or cp > 1 else 0,
        group=shards if sizes and 1 < shards < dp else None,
        recompute=FULL if str(again).lower() == "true" else NONE,
        precision=known.get(half, "32-true") if isinstance(half, str) else "32-true",
        gradients="same",
        compile=backend == "inductor",
    )
    plan = with_header(plan, text, source)
    missing = [name for name in HELD if getattr(plan, name) is None]
    told = f"said by the script and not by this file: {', '.join(missing)}" if missing else ""
    return check_plan_words(replace(plan, notes=(*notes, *([told] if told else []))), source)


def _section(
    data: Mapping[str, Any],
    name: str,
    prefix: str,
    known: Sequence[str],
    source: str,
    notes: list[str],
) -> dict[str, Any]:
    """Keys of a part without their prefix; those that accelerate would not read are noted.

    Raises:
        FormatError: the part is no mapping.
    """
    part = data.get(name) or {}
    if not isinstance(part, dict):
        raise FormatError(f"{source}: {name}: must be keys and values")
    found = {str(key).removeprefix(prefix): value for key, value in part.items()}
    odd = [key for key in found if key not in known]
    if odd:
        notes.append(
            f"{name}: keys that accelerate does not read: {', '.join(x[:40] for x in odd[:8])}"
        )
    return found


def _count(part: Mapping[str, Any], name: str, source: str) -> int:
    value = part.get(name, 1)
    if type(value) is not int or not 1 <= value <= 10**6:
        told = f"{shown(value)}: must be a whole number from 1 on"
        raise FormatError(f"{source}: parallelism_config.{name}: {told}")
    return value


def _zero(data: Mapping[str, Any], fsdp: Mapping[str, Any], source: str, notes: list[str]) -> int:
    """ZeRO's stage that FSDP's keys mean."""
    if data.get("distributed_type") != "FSDP":
        return 0
    if not any(key in fsdp for key in ("version", "reshard_after_forward", "sharding_strategy")):
        notes.append("no fsdp_version: 1 for accelerate launch, 2 for the Trainer")
    reshard = fsdp.get("reshard_after_forward", fsdp.get("sharding_strategy", True))
    if isinstance(reshard, bool):
        return 3 if reshard else 2
    word = str(reshard).upper() if isinstance(reshard, (str, int)) else ""
    if word in ("TRUE", "FALSE"):
        return 3 if word == "TRUE" else 2
    if word not in STRATEGY:
        raise FormatError(f"{source}: fsdp_config: {shown(reshard)}: no sharding strategy")
    return STRATEGY[word]
