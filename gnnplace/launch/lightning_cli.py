"""Lightning CLI: the YAML of a trainer with an FSDP, DeepSpeed, DDP or model-parallel strategy.

Read by Lightning 2.6 (`lightning.pytorch.strategies`). The batch of a replica is `batch_size` of
the data module. HYBRID_SHARD shards within a server, whose GPUs `trainer.devices` counts. The
model is a class of the user's: MODEL is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gnnplace.launch.interpolation import MissingValue
from gnnplace.launch.keys import FileValue
from gnnplace.launch.launch_plan import FULL, NONE, LaunchPlan
from gnnplace.launch.offloading import find_deepspeed_offload, fsdp_offload
from gnnplace.launch.yaml_reading import YamlReading, training_optimizer

PRECISIONS = {
    "32": "32-true",
    "32-true": "32-true",
    "": "32-true",
    "bf16-mixed": "bf16-mixed",
    "16-mixed": "16-mixed",
    "bf16": "bf16-mixed",
    "16": "16-mixed",
    "bf16-true": "bf16-true",
    "16-true": "16-true",
    "64-true": "32-true",
    "transformer-engine": "bf16-mixed",
}
STRATEGIES = {
    "FULL_SHARD": 3,
    "SHARD_GRAD_OP": 2,
    "NO_SHARD": 0,
    "HYBRID_SHARD": 3,
    "_HYBRID_SHARD_ZERO2": 2,
}
WORD_KEYS: Mapping[str, tuple[str, ...]] = {
    "dp": ("trainer.devices",),
    "zero": ("trainer.strategy",),
    "group": ("trainer.strategy.init_args.sharding_strategy",),
    "accumulation": ("trainer.accumulate_grad_batches",),
    "precision": ("trainer.precision",),
    "recompute": ("trainer.strategy.init_args.activation_checkpointing_policy",),
}
ADAPTERS = ("use_peft", "lora", "peft", "lora_config", "use_lora")
OPEN_KEYS = ("trainer", "devices")
DEEPEST = 12


@dataclass(frozen=True)
class _Strategy:
    """The meaning of one of Lightning's strategies.

    Attributes:
        zero: Stage of ZeRO.
        is_hybrid: Whether it shards within servers.
        tp: Tensor-parallel shards.
        offload: What lies in the host's memory.
    """

    zero: int = 0
    is_hybrid: bool = False
    tp: int = 1
    offload: str = NONE


def read_lightning(
    text: str, source: str, values: Mapping[str, str] | None = None
) -> LaunchPlan:
    """Return the plan of a configuration of Lightning CLI.

    Args:
        text: The YAML.
        source: The file's path, which errors begin with.
        values: Values for its keys, by path; `devices` is `trainer.devices`.

    Raises:
        FormatError: If it is none, or its numbers contradict.
    """
    variables = dict(values or {})
    if "devices" in variables:
        variables["trainer.devices"] = variables.pop("devices")
    reading = YamlReading.of_text(text, source, variables, OPEN_KEYS)
    strategy = _strategy(reading)
    devices = reading.get("trainer.devices")
    nodes = reading.count("trainer.num_nodes", 1) or 1
    # "auto" and -1 are all GPUs of a server, whose number the file does not say.
    is_count = type(devices) is int and devices > 0
    if isinstance(devices, list):
        devices = len(devices)
        is_count = True
    if not is_count:
        reading.needs.append("devices")
        reading.notes.append(f"trainer.devices: {devices}: is what a server has")
    if is_count:
        dp = devices * nodes // strategy.tp
    else:
        dp = None
    if strategy.is_hybrid and is_count and nodes > 1:
        group = devices
    else:
        group = None
    if strategy.is_hybrid and group is None and not is_count:
        reading.notes.append(
            "HYBRID_SHARD: shards within a server; priced over all replicas"
        )
    precision = reading.text("trainer.precision")
    if precision == "transformer-engine":
        reading.refuse_price(
            "trainer.precision", "matrix products in fp8; priced in bf16"
        )
    _note_adapters(reading)
    path, optimizer = _optimizer(reading)
    policy = "trainer.strategy.init_args.activation_checkpointing_policy"
    checkpoints = reading.get(policy) or reading.get(policy.replace("_policy", ""))
    plan = LaunchPlan(
        dp=dp,
        tp=strategy.tp,
        zero=strategy.zero,
        group=group,
        offload=strategy.offload,
        microbatch_size=_batch_size(reading),
        accumulation=reading.count("trainer.accumulate_grad_batches", 1) or 1,
        recompute=FULL if checkpoints else NONE,
        precision=PRECISIONS.get(precision),
        gradients="same",
        optimizer=reading.optimizer(path, optimizer) if optimizer else None,
        lines=reading.keys.word_lines(WORD_KEYS),
    )
    reading.needs[:] = dict.fromkeys(reading.needs)
    return reading.finish(plan, text)


def _strategy(reading: YamlReading) -> _Strategy:
    """Return what the strategy means; what it offloads is noted."""
    value = reading.get("trainer.strategy")
    arguments: dict[str, FileValue] = {}
    name = str(value or "ddp")
    place = "trainer.strategy"
    if isinstance(value, dict):
        name = str(value.get("class_path", "")).rpartition(".")[2]
        inner = value.get("init_args")
        arguments = inner if isinstance(inner, dict) else {}
        place = "trainer.strategy.init_args"
    word = name.lower()
    if "deepspeed" in word:
        stage = arguments.get("stage", word[-1] if word[-1].isdigit() else 2)
        if "stage_" in word:
            stage = word.partition("stage_")[2][:1]
        zero = int(stage) if str(stage) in "0123" else 2
        # Its names end in `_offload` where the optimizer's state does.
        keys = ("offload_optimizer", "offload_parameters")
        optimizer, parameters = (arguments.get(key) is True for key in keys)
        optimizer |= "offload" in word
        offload = find_deepspeed_offload(optimizer, parameters, zero)
        for key, is_on in zip(keys, (optimizer, parameters), strict=True):
            if is_on and offload is None:
                effect = "offloads to the CPU; priced on the GPU"
                reading.refuse_price(f"{place}.{key}", f"{key}: {effect}")
        if arguments.get("config"):
            reading.notes.append(
                "trainer.strategy: config: DeepSpeed's JSON is not read"
            )
        return _Strategy(zero=zero, offload=offload or NONE)
    if "fsdp" in word:
        strategy = str(arguments.get("sharding_strategy", "FULL_SHARD")).upper()
        zero = STRATEGIES.get(strategy, 3)
        is_offloaded = arguments.get("cpu_offload") is True or "offload" in word
        offload = fsdp_offload(zero) if is_offloaded else NONE
        if offload is None:
            effect = "offloads parameters to the CPU (offload); priced on the GPU"
            reading.refuse_price(f"{place}.cpu_offload", effect)
        return _Strategy(
            zero=zero, is_hybrid="HYBRID" in strategy, offload=offload or NONE
        )
    if "modelparallel" in word:
        tp = arguments.get("tensor_parallel_size", 1)
        if type(tp) is not int:
            reading.needs.append("tensor_parallel_size")
        return _Strategy(zero=3, tp=tp if type(tp) is int and tp > 0 else 1)
    if not word.startswith("ddp") and word not in ("auto", "singledevicestrategy"):
        reading.notes.append(f"strategy {name[:40]}: priced as DDP")
    return _Strategy()


def _find(
    part: FileValue, names: tuple[str, ...], path: str, depth: int = 0
) -> tuple[str, FileValue] | None:
    """Return the path and the value of the first key of some names, at any depth.

    Args:
        part: The mapping to look in. A key of it comes before keys of mappings inside.
        names: The names.
        path: Path of the mapping, with a dot at its end.
        depth: How many mappings the mapping is in.

    Returns:
        None if there is none.
    """
    if not isinstance(part, dict) or depth > DEEPEST:
        return None
    for key, value in part.items():
        if key in names and not isinstance(value, (dict, MissingValue)):
            return f"{path}{key}", value
    for key, value in part.items():
        match = _find(value, names, f"{path}{key}.", depth + 1)
        if match is not None:
            return match
    return None


def _batch_size(reading: YamlReading) -> int | None:
    names = (
        "batch_size",
        "train_batch_size",
        "per_device_batch_size",
        "micro_batch_size",
    )
    match = _find(reading.get("data"), names, "data.")
    if match is None or type(match[1]) is not int or match[1] < 1:
        return None
    return match[1]


def _note_adapters(reading: YamlReading) -> None:
    match = _find(reading.get("model"), ADAPTERS, "model.")
    if match is not None and match[1] not in (False, None):
        effect = "adapters (LoRA, PEFT); priced as training of all parameters"
        reading.refuse_price(match[0], effect)


def _optimizer(reading: YamlReading) -> tuple[str, str]:
    """Return the path and the name of the optimizer, empty where the file has none."""
    places = (
        ("optimizer.class_path", reading.get("optimizer")),
        (
            "model.init_args.optimizer.class_path",
            reading.get("model.init_args.optimizer"),
        ),
    )
    for path, value in places:
        if isinstance(value, dict) and value.get("class_path"):
            return path, str(value["class_path"]).rpartition(".")[2].lower()
    return "", training_optimizer(reading, "model.init_args.optimizer_name") or ""
