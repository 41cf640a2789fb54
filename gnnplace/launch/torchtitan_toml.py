"""torchtitan's TOML of 2024 to 2026, in its three generations.

The first has degrees under `[training]` and `[experimental]` and `training.batch_size` (2024); the
second has `[parallelism]`; the third `training.local_batch_size`, `training.global_batch_size`,
`[compile]` with components and `model.converters` (torchtitan 4a950eaa). Keys are read by what is
there. What is assumed is torchtitan's: FSDP over all that other degrees leave is ZeRO 3, tokens are
split around tensor-parallel layers, gradients are reduced in fp32. A `float8` section turns nothing
on: `model.converters`, or the first generation's `enable_float8_linear`, does.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gnnplace.errors import FormatError
from gnnplace.launch.keys import FileValue, Keys, put_values, toml_lines
from gnnplace.launch.launch_plan import (
    FULL,
    NONE,
    PRICED_OPTIMIZERS,
    SELECTIVE,
    LaunchPlan,
    NotPriced,
    check_plan_words,
    with_header,
)
from gnnplace.launch.offloading import fsdp_offload
from gnnplace.plans import DecoderSizes, cut_layers

SECTIONS = (
    "job",
    "profiling",
    "metrics",
    "model",
    "optimizer",
    "lr_scheduler",
    "training",
    "parallelism",
    "experimental",
    "checkpoint",
    "activation_checkpoint",
    "compile",
    "quantize",
    "float8",
    "mx",
    "comm",
    "memory_estimation",
    "fault_tolerance",
    "validation",
    "debug",
    "custom_args",
    "encoder",
    "simple_fsdp",
    "eval",
    "preprocess",
)
KNOWN: Mapping[str, tuple[str, ...]] = {
    "model": (
        "name",
        "flavor",
        "norm_type",
        "tokenizer_path",
        "hf_assets_path",
        "converters",
        "print_after_conversion",
        "tokenizer_type",
    ),
    "training": (
        "batch_size",
        "local_batch_size",
        "global_batch_size",
        "seq_len",
        "warmup_steps",
        "max_norm",
        "steps",
        "data_parallel_degree",
        "data_parallel_replicate_degree",
        "data_parallel_shard_degree",
        "data_parallel_type",
        "tensor_parallel_degree",
        "pipeline_parallel_degree",
        "context_parallel_degree",
        "compile",
        "dataset",
        "dataset_path",
        "enable_cpu_offload",
        "dtype",
        "mixed_precision_param",
        "mixed_precision_reduce",
        "gc_freq",
        "gc_debug",
        "seed",
        "deterministic",
        "disable_loss_parallel",
        "enable_loss_parallel",
        "enable_float8_linear",
        "enable_fp8_linear",
        "fsdp_reshard_after_forward",
        "dataloader",
        "classifier_free_guidance_prob",
        "img_size",
        "max_seq_len",
        "max_batch_size",
        "debug_moe_force_load_balance",
    ),
    "parallelism": (
        "data_parallel_replicate_degree",
        "data_parallel_shard_degree",
        "fsdp_reshard_after_forward",
        "tensor_parallel_degree",
        "disable_loss_parallel",
        "enable_async_tensor_parallel",
        "pipeline_parallel_degree",
        "pipeline_parallel_split_points",
        "module_fqns_per_model_part",
        "pipeline_parallel_first_stage_less_layers",
        "pipeline_parallel_last_stage_less_layers",
        "pipeline_parallel_layers_per_stage",
        "pipeline_parallel_schedule",
        "pipeline_parallel_schedule_csv",
        "pipeline_parallel_microbatch_size",
        "pipeline_parallel_microbatches",
        "pipeline_parallel_expert_parallel_overlap",
        "context_parallel_degree",
        "context_parallel_load_balancer",
        "context_parallel_rotate_method",
        "expert_parallel_degree",
        "expert_tensor_parallel_degree",
        "expert_parallel_comm_backend",
        "enable_compiled_autograd",
        "enable_sequence_parallel",
    ),
    "activation_checkpoint": (
        "mode",
        "selective_ac_option",
        "early_stop",
        "memory_budget",
        "preserve_rng_state",
        "per_op_sac_force_recompute_mm_shapes_by_fqns",
        "determinism_check",
        "debug",
        "visualize_memory_budget_pareto",
    ),
    "compile": ("enable", "components", "backend", "passes", "joint_passes"),
}
FIRST = ("training", "experimental")
"""Where degrees stand in the first generation."""
SCHEDULES: Mapping[str, tuple[str, int]] = {
    "1f1b": ("1f1b", 1),
    "gpipe": ("gpipe", 1),
    "interleaved1f1b": ("interleaved", 2),
    "interleaved_1f1b": ("interleaved", 2),
    "zbvzerobubble": ("zbv", 2),
    "pipelineschedulesingle": ("1f1b", 1),
}
RECOMPUTE = {"none": NONE, "full": FULL, "selective": SELECTIVE}
FLOAT8_SWITCHES = (
    "float8.enable_float8_linear",
    "training.enable_float8_linear",
    "training.enable_fp8_linear",
)
DEGREES: Mapping[str, tuple[str, ...]] = {
    "tp": ("tensor_parallel_degree",),
    "pp": ("pipeline_parallel_degree",),
    "cp": ("context_parallel_degree",),
    "ep": ("expert_parallel_degree",),
}


def read_toml(
    text: str,
    source: str,
    values: Mapping[str, str],
    models: Mapping[str, tuple[str, DecoderSizes]],
) -> LaunchPlan:
    """Return the plan of a TOML of torchtitan.

    Args:
        text: The TOML.
        source: The file's path, which errors begin with.
        values: Values for its keys, by their paths.
        models: Flavor and sizes of torchtitan's models, by a name that begins with their family.

    Raises:
        FormatError: If it is no TOML, or its numbers contradict.
    """
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise FormatError(f"{source}: not TOML: {str(error)[:80]}") from None
    keys = Keys(put_values(data, values, source), source, toml_lines(text))
    sizes = _sizes(keys, models)
    plan = _plan(keys, sizes)
    return check_plan_words(with_header(plan, text, source), source)


def _sizes(
    keys: Keys, models: Mapping[str, tuple[str, DecoderSizes]]
) -> DecoderSizes | None:
    """Return the sizes of the model that name and flavor mean, or None if they are not listed."""
    name = str(keys.get("model.name") or "llama3")
    flavor = str(keys.get("model.flavor") or "debugmodel").lower()
    family = next(
        (f for f in ("llama3", "deepseek_v3", "qwen3") if name.startswith(f)), ""
    )
    if not family or name not in (family, f"{family}_ft", f"{family}_simple_fsdp"):
        return None
    for key, (own_flavor, sizes) in models.items():
        if key.startswith(family) and own_flavor.lower() == flavor:
            return sizes
    return None


def describe_unknown(flavor: object, name: object) -> str:
    """Describe a flavor of a model whose sizes are not known."""
    return f"flavor {flavor} of {name}, whose sizes are not known"


def _place(keys: Keys, *names: str) -> str:
    """Return the path of the first name that is there, in any generation's section."""
    for section in ("parallelism", *FIRST):
        for name in names:
            if keys.has(f"{section}.{name}"):
                return f"{section}.{name}"
    return f"parallelism.{names[0]}"


def _degree(keys: Keys, *names: str) -> int:
    return keys.count(_place(keys, *names), 1) or 1


def _plan(keys: Keys, sizes: DecoderSizes | None) -> LaunchPlan:
    """Return the plan of keys of any generation.

    Raises:
        FormatError: If a number is none, or numbers contradict.
    """
    length = keys.count("training.seq_len", 2048) or 2048
    unknown_model = ""
    if sizes is not None:
        sizes = replace(sizes, length=length)
    else:
        name = keys.get("model.name") or "llama3"
        flavor = keys.get("model.flavor") or "debugmodel"
        unknown_model = describe_unknown(flavor, name)
    tp, pp, cp, ep = (_degree(keys, *names) for names in DEGREES.values())
    shard_place = _place(keys, "data_parallel_shard_degree", "data_parallel_degree")
    shard = keys.count(shard_place, -1, least=-1) or -1
    replicate = _degree(keys, "data_parallel_replicate_degree")
    dp = None if shard == -1 else replicate * shard
    local_place = "training.local_batch_size"
    if not keys.has(local_place):
        local_place = "training.batch_size"
    local = keys.count(local_place, 8) or 8
    size, count = _microbatches(keys, local, pp)
    batch = keys.count("training.global_batch_size", -1, least=-1) or -1
    schedule, chunks, layers = _stages(keys, pp, sizes)
    # What replicas share: all of them, those of a group, or nothing.
    is_ddp = str(keys.get("training.data_parallel_type") or "fsdp").lower() == "ddp"
    zero = 0 if shard == 1 or is_ddp else 3
    reshard = str(keys.get(_place(keys, "fsdp_reshard_after_forward")))
    if zero and reshard == "never" and pp == 1:
        zero = 2
    mode = str(keys.get("activation_checkpoint.mode") or "selective").lower()
    experts = sizes is not None and sizes.experts is not None
    etp = _degree(keys, "expert_tensor_parallel_degree")
    optimizer = str(keys.get("optimizer.name") or "AdamW").lower()
    hides_tp = keys.get(_place(keys, "enable_async_tensor_parallel")) is True
    return LaunchPlan(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        etp=etp if tp > 1 and (experts or ep > 1) and etp != tp else None,
        sp=True,
        chunks=chunks,
        layers=layers,
        microbatch_size=size,
        batch=batch if batch > 0 else None if dp is None else dp * size * count,
        accumulation=count if batch < 1 and dp is None and count > 1 else None,
        zero=zero,
        group=shard if zero and replicate > 1 and shard > 1 else None,
        recompute=RECOMPUTE.get(mode, SELECTIVE),
        schedule=schedule,
        precision=_precision(keys),
        gradients="fp32",
        optimizer=optimizer,
        offload=(keys.switch("training.enable_cpu_offload") and fsdp_offload(zero))
        or NONE,
        overlap=("tp",) if hides_tp and tp > 1 else (),
        compile=_compiles(keys),
        sizes=sizes,
        length=length,
        unknown_model=unknown_model,
        notes=tuple(_notes(keys)),
        not_priced=tuple(_iterate_unpriced(keys, mode, optimizer, zero)),
        lines=_lines(keys, shard_place, local_place),
    )


def _microbatches(keys: Keys, local: int, pp: int) -> tuple[int, int]:
    """Return the examples of a micro-batch and the micro-batches of a replica's step.

    Raises:
        FormatError: If they do not divide the replica's examples.
    """
    if pp == 1:
        return local, 1
    size_place = _place(keys, "pipeline_parallel_microbatch_size")
    count_place = _place(keys, "pipeline_parallel_microbatches")
    if keys.has(count_place) and not keys.has(size_place):
        count = keys.count(count_place, pp) or pp
        if local % count:
            raise keys.fault(count_place, f"do not divide {local} examples")
        return local // count, count
    if not keys.has("parallelism") and not keys.has(size_place):
        # The first generation has as many micro-batches as stages.
        return max(local // pp, 1), min(pp, local)
    size = keys.count(size_place, 1) or 1
    if local % size:
        raise keys.fault(size_place, f"does not divide {local} examples")
    return size, local // size


def _stages(
    keys: Keys, pp: int, sizes: DecoderSizes | None
) -> tuple[str, int, tuple[int, ...] | None]:
    """Return the schedule, the stages of a rank and their layers.

    Raises:
        FormatError: If listed stages are no multiple of the ranks.
    """
    if pp == 1:
        return "1f1b", 1, None
    schedule_name = str(
        keys.get(_place(keys, "pipeline_parallel_schedule")) or "1F1B"
    ).lower()
    schedule, chunks = SCHEDULES.get(schedule_name, ("interleaved", 2))
    listed = keys.get(_place(keys, "module_fqns_per_model_part"))
    points = keys.get(_place(keys, "pipeline_parallel_split_points"))
    layers_each = keys.count(_place(keys, "pipeline_parallel_layers_per_stage"))
    # Modules of every part come before split points, and these before a number of layers.
    layers: tuple[int, ...] | None = None
    if isinstance(listed, list) and listed:
        layers = tuple(
            sum(str(m).startswith("layers.") for m in part)
            if isinstance(part, list)
            else 0
            for part in listed
        )
    elif isinstance(points, list) and points and sizes is not None:
        starts = [_layer_index(point, keys) for point in points]
        layers = tuple(
            end - start
            for start, end in zip([0, *starts], [*starts, sizes.layers], strict=True)
        )
    elif layers_each is not None and sizes is not None:
        chunks = max(-(-(sizes.layers + 2) // layers_each) // pp, 1)
    # What is listed must be whole ranks; else layers are cut with the ends as a layer each.
    if layers is not None:
        if len(layers) % pp:
            raise FormatError(
                f"{keys.source}: {len(layers)} stages are no multiple of {pp} ranks"
            )
        chunks = len(layers) // pp
    elif sizes is not None:
        layers = cut_layers(sizes, pp * chunks, "ends")
    return (
        ("interleaved" if schedule == "1f1b" and chunks > 1 else schedule),
        chunks,
        layers,
    )


def _layer_index(point: FileValue, keys: Keys) -> int:
    index = str(point).rpartition(".")[2]
    if not index.isdigit():
        source = keys.source
        raise FormatError(
            f"{source}: pipeline_parallel_split_points: {str(point)[:40]!r}: no layer"
        )
    return int(index)


def _precision(keys: Keys) -> str:
    half = keys.word(
        "training.mixed_precision_param", ("bfloat16", "float32"), "bfloat16"
    )
    if keys.word("training.dtype", ("bfloat16", "float32"), "float32") == "bfloat16":
        return "bf16-true"
    return "32-true" if half == "float32" else "bf16-mixed"


def _compiles(keys: Keys) -> bool:
    """Return whether layers run under `torch.compile`."""
    if keys.get("training.compile") is True:
        return True
    components = keys.get("compile.components")
    return keys.get("compile.enable") is True and (
        not isinstance(components, list) or "model" in components
    )


def _lines(keys: Keys, shard_place: str, local_place: str) -> dict[str, int | None]:
    """Return the line of every word that a key says."""
    recompute = "activation_checkpoint.mode"
    paths: dict[str, tuple[str, ...]] = {
        word: (_place(keys, *names),) for word, names in DEGREES.items()
    }
    paths |= {
        "etp": (_place(keys, "expert_tensor_parallel_degree"),),
        "zero": (shard_place,),
        "group": (_place(keys, "data_parallel_replicate_degree"),),
        "microbatch_size": (
            _place(keys, "pipeline_parallel_microbatch_size"),
            local_place,
        ),
        "batch": ("training.global_batch_size",),
        "recompute": (recompute,),
        "schedule": (_place(keys, "pipeline_parallel_schedule"),),
        "layers": (
            _place(keys, "module_fqns_per_model_part"),
            _place(keys, "pipeline_parallel_split_points"),
        ),
        "precision": ("training.mixed_precision_param", "training.dtype"),
        "optimizer": ("optimizer.name",),
        "compile": ("compile.enable", "training.compile"),
    }
    if keys.get(shard_place) not in (None, -1):
        paths["dp"] = (shard_place,)
    return keys.word_lines(paths)


def _notes(keys: Keys) -> Iterator[str]:
    """Yield what is not known, and what a key means."""
    unknown = keys.unknown("", SECTIONS)
    for section, names in KNOWN.items():
        unknown += [f"{section}.{key}" for key in keys.unknown(section, names)]
    if unknown:
        yield f"keys that are not known, and not priced: {', '.join(unknown)}"
    components = keys.get("compile.components")
    if keys.get("compile.enable") is True and not _compiles(keys):
        yield f"compile of {', '.join(map(str, components))} alone: priced without"
    schedule = keys.get(_place(keys, "pipeline_parallel_schedule"))
    is_piped = _degree(keys, "pipeline_parallel_degree") > 1
    if is_piped and keys.get(_place(keys, "fsdp_reshard_after_forward")) == "always":
        yield "fsdp_reshard_after_forward = always: priced as gathered once a step"
    if is_piped and str(schedule or "1F1B").lower() not in SCHEDULES:
        yield f"schedule {schedule}: priced as interleaved"


def _iterate_unpriced(
    keys: Keys, mode: str, optimizer: str, zero: int
) -> Iterator[NotPriced]:
    """Yield the keys that change seconds or bytes and that no price counts.

    Args:
        keys: The keys of the file.
        mode: What is recomputed, as torchtitan calls it.
        optimizer: The optimizer, as torchtitan calls it.
        zero: The ZeRO stage.
    """
    converters = keys.get("model.converters")
    for converter in converters if isinstance(converters, list) else ():
        effect = f"{converter}: matrix products in fewer bits; priced in bf16"
        yield NotPriced(
            key="model.converters", effect=effect, line=keys.line("model.converters")
        )
    effects = {path: "float8 products; priced in bf16" for path in FLOAT8_SWITCHES}
    if fsdp_offload(zero) is None:
        effects["training.enable_cpu_offload"] = (
            "offloads parameters to the CPU; priced on the GPU"
        )
    effects |= {
        "optimizer.early_step_in_backward": "parameters are updated in the backward pass; priced "
        "after it",
        "fault_tolerance.enable": "replicas that may leave and come back; priced without",
        "parallelism.enable_compiled_autograd": "a compiled backward pass; priced without",
        "training.deterministic": "deterministic kernels; priced with the usual ones",
        "debug.deterministic": "deterministic kernels; priced with the usual ones",
    }
    for path, effect in effects.items():
        if keys.has(path) and keys.get(path) is True:
            yield NotPriced(key=path, effect=effect, line=keys.line(path))
    if mode not in RECOMPUTE:
        path = "activation_checkpoint.mode"
        effect = (
            f"{mode}: what is recomputed is chosen by a budget; priced as selective"
        )
        yield NotPriced(key=path, effect=effect, line=keys.line(path))
    if optimizer not in PRICED_OPTIMIZERS:
        effect = f"the update and the state of {optimizer}; priced as adamw"
        yield NotPriced(
            key="optimizer.name", effect=effect, line=keys.line("optimizer.name")
        )
    backend = _place(keys, "expert_parallel_comm_backend")
    if keys.get(backend) not in (None, "standard"):
        effect = "dispatch of experts by DeepEP; --environment deepep prices it"
        yield NotPriced(key=backend, effect=effect, line=keys.line(backend))
