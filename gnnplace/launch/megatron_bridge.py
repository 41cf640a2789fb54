"""Megatron-Bridge: overrides of a recipe, `section.key=value`, and recipes' own lines.

Written for and read by Megatron-Bridge 067f987d (August 2026): `training/config.py`,
`recipes/`. Its keys are Megatron-LM's flags with underscores under `model.`, `train.`, `ddp.`,
`dataset.` and `comm_overlap.`; `model.virtual_pipeline_model_parallel_size` are stages a rank. A
recipe's function is followed, with those that it begins with, also in files around it
(`recipe_code`). Nothing of it runs: what it takes from elsewhere (a checkpoint's sizes, functions
of files that are not here) is not known, and said.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gnnplace.errors import FormatError
from gnnplace.launch.adapter_keys import find_products, lora_words
from gnnplace.launch.launch_plan import (
    SELECTIVE,
    LaunchPlan,
    NotPriced,
    check_plan_words,
    header,
    with_header,
)
from gnnplace.launch.layer_details import LLAMA, LayerDetails
from gnnplace.launch.megatron import model_flags, plan_flags
from gnnplace.launch.megatron_flags import OFF, is_listed
from gnnplace.launch.megatron_plan import (
    LAYOUT,
    WORD_FLAGS,
    Flags,
    is_counted,
    is_known,
    is_on,
    parse_flag_number,
    parse_plan_flags,
)
from gnnplace.launch.recipe_code import Made, RecipeReader, Symbol, parse_module

LINE = re.compile(r"\s*(?:(?:cfg|config)\.)?(\w+)\.(\w+)\s*=\s*([^\s#][^#]*)(?:#.*)?")
PEFT_DEFAULTS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
PEFT_DEFAULT_RANK = 32
# The sections that describe a plan.
READ = ("model", "train", "ddp", "comm_overlap", "optimizer")
PLAN_FLAGS = frozenset(name for names in WORD_FLAGS.values() for name in names)
"""Flags that say a word of a plan."""
LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
"""Letters of Megatron's layout, by the names in a list of stages."""
LONGEST = 4096  # characters of a line that says something
OTHER_NAMES = {
    "virtual-pipeline-model-parallel-size": "num-virtual-stages-per-pipeline-rank",
    "num-layers-in-first-pipeline-stage": "decoder-first-pipeline-num-layers",
    "num-layers-in-last-pipeline-stage": "decoder-last-pipeline-num-layers",
    "num-moe-experts": "num-experts",
    "microbatch-group-size-per-vp-stage": "microbatch-group-size-per-virtual-pipeline-stage",
}
SECTIONS = {
    "micro-batch-size": "train",
    "global-batch-size": "train",
    "train-iters": "train",
    "use-distributed-optimizer": "ddp",
    "use-megatron-fsdp": "ddp",
    "overlap-grad-reduce": "ddp",
    "overlap-param-gather": "ddp",
    "data-parallel-sharding-strategy": "ddp",
    "ckpt-format": "checkpoint",
    "optimizer": "optimizer",
    "optimizer-cpu-offload": "optimizer",
    "optimizer-offload-fraction": "optimizer",
    "use-precision-aware-optimizer": "optimizer",
    "no-check-for-nan-in-loss-and-grad": "rerun_state_machine",
}
USUAL = {
    "ddp.use_distributed_optimizer": "false",
    "ddp.use_megatron_fsdp": "false",
    "ddp.overlap_grad_reduce": "false",
    "ddp.overlap_param_gather": "false",
    "model.sequence_parallel": "false",
    "model.expert_model_parallel_size": "1",
    "model.virtual_pipeline_model_parallel_size": "null",
    "model.pipeline_model_parallel_layout": "null",
    "model.recompute_granularity": "null",
    "model.recompute_method": "null",
    "model.recompute_num_layers": "null",
    "model.cuda_graph_impl": "none",
}
"""What recipes may set and a plan leaves at rest: overrides say it, too."""
HALVES = {
    "bf16": ("bf16_mixed", "torch.bfloat16"),
    "16": ("fp16_mixed", "torch.float16"),
}
"""Its mixed precision by name, which sums gradients in fp32 and in fp16, and the type."""
OWN = frozenset(
    [
        "gated-linear-unit",
        "share-embeddings-and-output-weights",
        "grad-reduce-in-fp32",
        "add-bias-linear",
        "pipeline-dtype",
        "params-dtype",
        "transformer-impl",
        "check-for-nan-in-grad",
        "average-in-collective",
        "cuda-graph-warmup-steps",
        "use-te-rng-tracker",
        "activation-func",
        "should-pad-vocab",
        "variable-seq-lengths",
        "hf-model-id",
        "hf-model-revision",
        # How messages and rows are sent.
        "moe-flex-dispatcher-num-sms",
        "moe-permute-fusion-into-hybridep",
        "moe-hybridep-num-sms-preprocessing",
        "moe-hybridep-pad-uneven-dispatch-inputs",
        "high-priority-a2a-comm-stream",
        "batch-p2p-comm",
        "batch-p2p-sync",
        "overlap-p2p-comm",
        "deallocate-pipeline-outputs",
        "wgrad-deferral-limit",
        "cp-partition-mode",
        # Sizes of layers of other kinds, which the layers' pattern names.
        "mamba-num-heads",
        "mamba-head-dim",
        "mamba-num-groups",
        "mamba-chunk-size",
        "use-mamba-mem-eff-path",
        "dsa-indexer-use-sparse-loss",
        "apply-dsa-kernel-fusion",
        # Of layers that predict further tokens, which are priced without.
        "mtp-loss-scaling-factor",
        "mtp-use-repeated-layer",
        "mtp-hybrid-override-pattern",
        "mtp-eval-in-bf16",
        "keep-mtp-spec-in-bf16",
        "freeze-mtp-model",
        # Of encoders, which are not counted.
        "freeze-vision-projection",
        "freeze-sound-projection",
        "freeze-audio-projection",
        "vision-cuda-graph-impl",
        "vision-cuda-graph-scope",
        "max-vision-cuda-graph-seq-length",
        "vit-gradient-checkpointing",
        "multimodal-attn-impl",
        "temporal-patch-dim",
        "separate-video-embedder",
        "temporal-ckpt-compat",
        "has-sound",
    ]
)
"""Keys of its own that change neither seconds nor bytes that are priced, or are read otherwise."""
OWN_EFFECTS: Mapping[str, str] = {
    "freeze-language-model": "the language model is frozen; priced as training of all parameters",
    "dsa-kernel-backend": "attention to selected tokens (DSA); priced as attention to all tokens",
    "dsa-indexer-loss-coeff": "the loss of DSA's indexer; priced without",
    "defer-embedding-wgrad-compute": "the embedding's gradient is computed later; priced at once",
    "moe-a2a-overlap": "hides experts' dispatch; priced without",
    "overlap-dispatch-backward-with-experts-wgrad": "hides experts' dispatch; priced without",
    "use-transformer-engine-op-fuser": "kernels fused further; priced with the usual ones",
    "megatron-fsdp-main-params-dtype": "type of the optimizer's parameters; priced as fp32",
    "megatron-fsdp-main-grads-dtype": "type of gradients; priced as the precision has it",
    "megatron-fsdp-grad-comm-dtype": "type in which gradients are sent; priced as they are summed",
    "nccl-ub": "collectives from registered buffers; priced without",
}
"""Keys of its own that no price counts, unless they are off."""
ENCODERS: Mapping[str, str] = {
    "freeze-vision-model": "an image encoder is not counted",
    "freeze-sound-encoder": "an encoder of sounds is not counted",
    "freeze-audio-model": "an encoder of sounds is not counted",
}
"""Keys of models that have an encoder, whatever their value."""
FUSIONS: Mapping[str, str] = {
    "apply-rope-fusion": "no-rope-fusion",
    "gradient-accumulation-fusion": "no-gradient-accumulation-fusion",
    "persist-layer-norm": "no-persist-layer-norm",
    "bias-activation-fusion": "no-bias-swiglu-fusion",
    "bias-dropout-fusion": "no-bias-dropout-fusion",
}
"""Fusions that are on by default, with the flag that turns them off."""
LEFT_OUT = (
    "use-mcore-models",
    "swiglu",
    "normalization",
    "position-embedding-type",
    "disable-bias-linear",
    "group-query-attention",
    "max-position-embeddings",
    "bf16",
    "fp16",
    "grad-reduce-in-bf16",
    "untie-embeddings-and-output-weights",
)


def write_bridge(plan: LaunchPlan, lines: Sequence[str], gpus: int = 8) -> str:
    """Return the text of a file with overrides of a recipe, one a line.

    Args:
        plan: The plan as `nearest_megatron` leaves it.
        lines: Lines for the head of the file.
        gpus: GPUs of a server. Not written, since torchrun is told them.
    """
    sizes = [] if plan.sizes is None else model_flags(plan.sizes)
    text = [f"# {line}" for line in header(plan, lines, keys=("dp",))]
    bridge_names = {theirs: ours for ours, theirs in OTHER_NAMES.items()}
    overrides = dict(USUAL)
    for flag in [*sizes, *plan_flags(plan)]:
        name, _, value = flag.removeprefix("--").partition(" ")
        is_left_out = name in LEFT_OUT
        if name == "position-embedding-type":
            # A recipe may have rotary positions of its own kind, such as yarn.
            is_left_out = plan.sizes is None or plan.sizes.gated
        if not is_left_out:
            key = bridge_names.get(name, name).replace("-", "_")
            text_of_value = value.strip("'") or "true"
            if name == "recompute-modules":
                text_of_value = f"[{','.join(value.split())}]"
            overrides[f"{SECTIONS.get(name, 'model')}.{key}"] = text_of_value
    if overrides["model.recompute_granularity"] == SELECTIVE:
        overrides.setdefault("model.recompute_modules", "[core_attn]")
    if overrides.pop("rerun_state_machine.no_check_for_nan_in_loss_and_grad", ""):
        overrides |= {
            "rerun_state_machine.check_for_nan_in_loss": "false",
            "ddp.check_for_nan_in_grad": "false",
        }
    overrides |= _layer_overrides(plan.details)
    overrides["optimizer.use_distributed_optimizer"] = overrides[
        "ddp.use_distributed_optimizer"
    ]
    overrides["model.expert_tensor_parallel_size"] = str(plan.etp or plan.tp)
    overrides["mixed_precision"] = _find_mixed_precision(plan)
    if plan.sizes is not None:
        experts = plan.sizes.experts
        overrides |= {
            "model.vocab_size": str(plan.sizes.vocabulary),
            "dataset.seq_length": str(plan.sizes.length),
            "model.gated_linear_unit": str(plan.sizes.gated).lower(),
            "model.add_bias_linear": str(not plan.sizes.gated).lower(),
            "model.share_embeddings_and_output_weights": str(plan.sizes.tied).lower(),
        }
        # A list, where the flag has a pattern.
        if experts is not None and experts.dense:
            layer_pattern = ["0"] * experts.dense + ["1"] * (
                plan.sizes.layers - experts.dense
            )
            overrides["model.moe_layer_freq"] = f"[{','.join(layer_pattern)}]"
    return (
        "\n".join([*text, *(f"{key}={value}" for key, value in overrides.items())])
        + "\n"
    )


def _layer_overrides(details: LayerDetails | None) -> dict[str, str]:
    """Return overrides of what a model's layers have beside sizes."""
    if details is None or not details.is_gated:
        return {}
    overrides = {"model.add_qkv_bias": str(details.query_biases).lower()}
    if details.rotary_base is not None:
        overrides["model.rotary_base"] = str(int(details.rotary_base))
    if details.rotary_part < 1:
        overrides["model.rotary_percent"] = f"{details.rotary_part:g}"
    if details.norm_epsilon is not None:
        overrides["model.layernorm_epsilon"] = f"{details.norm_epsilon:g}"
    if details.scaling.get("rope_type") == LLAMA:
        overrides["model.rope_scaling"] = "true"
        overrides["model.rope_scaling_factor"] = f"{details.scaling['factor']:g}"
    return overrides


def _find_mixed_precision(plan: LaunchPlan) -> str:
    """Return the recipe of a half type, or its fields if gradients are summed in the other type."""
    half = (plan.precision or "32-true").partition("-")[0]
    if half not in HALVES:
        return "null"
    name, dtype = HALVES[half]
    fp32 = plan.gradients == "fp32"
    if fp32 is (half == "bf16"):
        return name
    of = f"{{_target_:{dtype},_call_:false}}"
    return (
        "{_target_:megatron.bridge.training.mixed_precision.MixedPrecisionConfig,"
        f"{name.partition('_')[0]}:true,params_dtype:{of},pipeline_dtype:{of},"
        f"grad_reduce_in_fp32:{str(fp32).lower()}}}"
    )


def _optimizer() -> Made:
    return Made(
        "OptimizerConfig",
        fields={"optimizer": "adam", "use_distributed_optimizer": True},
    )


def _common(batch: int, microbatch_size: int, **ddp: bool) -> Made:
    """Return what recipes begin with (`recipes/common.py`)."""
    sizes: dict[str, object] = {
        "global_batch_size": batch,
        "micro_batch_size": microbatch_size,
    }
    fields: dict[str, object] = {
        "model": None,
        "train": Made("TrainingConfig", fields=sizes),
        "ddp": Made("DistributedDataParallelConfig", fields=dict(ddp)),
        "optimizer": _optimizer(),
        "mixed_precision": "bf16_mixed",
    }
    return Made("ConfigContainer", fields=fields)


def _pretrain_common() -> Made:
    return _common(
        32,
        2,
        use_distributed_optimizer=True,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
    )


def _sft_common() -> Made:
    return _common(128, 1)


def _peft_common() -> Made:
    recipe = _sft_common()
    recipe.fields["peft"] = Made("LoRA")
    return recipe


def _default_peft(peft_scheme: object, **fields: object) -> object:
    """Return the adapters of a scheme (`recipes/utils/dataset_utils.py`)."""
    kinds = {"lora": "LoRA", "dora": "DoRA"}
    if not isinstance(peft_scheme, str):
        return peft_scheme
    if peft_scheme.lower() not in kinds:
        return None
    return Made(kinds[peft_scheme.lower()], fields=fields)


def _adam_and_schedule(**_: object) -> tuple[Made, Made]:
    return _optimizer(), Made("SchedulerConfig")


def _muon_and_schedule(**_: object) -> tuple[Made, Made]:
    optimizer = Made("OptimizerConfig", fields={"optimizer": "muon"})
    return optimizer, Made("SchedulerConfig")


def _capture_modules(model: object, modules: object) -> None:
    """Set the modules whose launches are captured (`utils/cuda_graph.py`)."""
    if isinstance(model, Made):
        model.fields |= {"cuda_graph_modules": modules, "cuda_graph_scope": None}


def _clear_modules(model: object) -> None:
    _capture_modules(model, [])


def _capture_iteration(model: object) -> None:
    _capture_modules(model, [])
    if isinstance(model, Made):
        model.fields["cuda_graph_impl"] = "full_iteration"


KNOWN_FUNCTIONS: Mapping[str, Callable[..., object]] = {
    "set_cuda_graph_modules": _capture_modules,
    "clear_cuda_graph_modules": _clear_modules,
    "set_full_iteration_cuda_graph": _capture_iteration,
}
"""Functions of Megatron-Bridge that ask which version of Megatron-Core is installed."""
ABSENT_FUNCTIONS: Mapping[str, Callable[..., object]] = {
    "_pretrain_common": _pretrain_common,
    "_sft_common": _sft_common,
    "_peft_common": _peft_common,
    "default_peft_config": _default_peft,
    "distributed_fused_adam_with_cosine_annealing": _adam_and_schedule,
    "distributed_muon_with_cosine_annealing": _muon_and_schedule,
}
"""What functions of Megatron-Bridge return, for recipes without its other files around them."""


@dataclass
class _Settings:
    """What a file says, as Megatron-LM's flags.

    Attributes:
        flags: Values of flags by name.
        lines: Line of every flag; None in another file.
        notes: What the file says and flags do not, each in one line.
        lora: Adapters in the words of `--lora`.
        not_priced: What no price counts, apart from flags.
    """

    flags: Flags = field(default_factory=dict)
    lines: dict[str, int | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    lora: str | None = None
    not_priced: list[NotPriced] = field(default_factory=list)


def read_bridge(
    text: str, source: str, values: Mapping[str, str] | None = None
) -> LaunchPlan:
    """Return the plan of overrides, or of a recipe's function.

    Args:
        text: The file.
        source: The file's path, which errors begin with. `:FUNCTION` behind it names one of
            several.
        values: Overrides of keys, as `model.tensor_model_parallel_size`. They win.

    Raises:
        FormatError: If overrides have a key twice with two values, numbers contradict, a word of
            the plan cannot be computed, or there are several functions and none is named.
    """
    # What is given on the command line stands behind the file and wins.
    lines = [f"{key}={value}" for key, value in (values or {}).items()]
    given_settings = _overrides("\n".join(lines), source)
    recipe = _recipe(text, source)
    if recipe is None:
        settings = _overrides(text, source)
        settings.flags |= _read_override_precision(text)
        if not any(
            name in settings.flags
            for name in ("tensor-model-parallel-size", "micro-batch-size")
        ):
            raise FormatError(
                f"{source}: has no key such as model.tensor_model_parallel_size=4"
            )
    else:
        settings = _recipe_settings(*recipe, given_settings.flags, source)
    flags = settings.flags | given_settings.flags
    replicas = with_header(LaunchPlan(), text, source).dp
    if replicas is not None:
        degrees = (
            "tensor-model-parallel-size",
            "pipeline-model-parallel-size",
            "context-parallel-size",
        )
        inside = math.prod(
            parse_flag_number(flags, name, source, 1) for name in degrees
        )
        flags["world-size"] = str(replicas * inside)
    settings.not_priced += _list_own_effects(flags, settings.lines)
    own_keys = {*OWN, *OWN_EFFECTS, *ENCODERS, *FUSIONS}
    unknown_keys = [name for name in flags if not (name in own_keys or is_known(name))]
    flags |= _read_own_keys(flags)
    plan = parse_plan_flags(flags, source, settings.lines)
    notes = list(settings.notes)
    if unknown_keys:
        listed = ", ".join(name.replace("-", "_") for name in unknown_keys)
        notes.insert(0, f"keys that are not known, and not priced: {listed}")
    if plan.sizes is not None:
        tied = is_on(flags, "share-embeddings-and-output-weights")
        plan = replace(plan, sizes=replace(plan.sizes, tied=tied))
    effects = [replace(e, key=_find_flag_key(e.key)) for e in plan.not_priced]
    plan = replace(
        plan,
        notes=(*plan.notes, *notes),
        lora=settings.lora or plan.lora,
        not_priced=(*effects, *settings.not_priced),
    )
    return check_plan_words(with_header(plan, text, source), source)


def _find_flag_key(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _read_own_keys(flags: Flags) -> Flags:
    """Return the flags of Megatron-LM that Megatron-Bridge has other keys for."""
    theirs: Flags = {}
    if is_on(flags, "gated-linear-unit"):
        theirs["swiglu"] = "true"
    if "num-query-groups" in flags:
        theirs["group-query-attention"] = "true"
    is_flexible = flags.get("moe-token-dispatcher-type") == "flex"
    if is_flexible and flags.get("moe-flex-dispatcher-backend") in (
        "deepep",
        "hybridep",
    ):
        theirs["moe-enable-deepep"] = "true"
    for key, flag in FUSIONS.items():
        if key in flags and not is_on(flags, key):
            theirs[flag] = "true"
    return theirs


def _list_own_effects(
    flags: Flags, lines: Mapping[str, int | None]
) -> Iterator[NotPriced]:
    """Yield what keys of Megatron-Bridge's own change that no price counts."""
    for name in flags:
        effect = ENCODERS.get(name)
        if effect is None and flags[name].lower() not in OFF:
            effect = OWN_EFFECTS.get(name)
        if effect is not None:
            yield NotPriced(_find_flag_key(name), effect, lines.get(name))


def _recipe(text: str, source: str) -> tuple[Made, RecipeReader] | None:
    """Return what a recipe's function makes, and its reader; None: the text has no function.

    Raises:
        FormatError: If there are several functions and none is named, or none of that name, or
            the function makes no recipe.
    """
    is_named = re.search(r"\.py:\w+$", source) is not None
    path, _, name = source.rpartition(":") if is_named else (source, "", "")
    module = parse_module(text, Path(path), is_first=True)
    if module is None or not (module.functions or name):
        return None
    if not name and len(module.functions) == 1:
        name = next(iter(module.functions))
    if name not in module.functions:
        recipes = [x for x in module.functions if not x.startswith("_")]
        listed = ", ".join([*recipes, *module.functions][:8])
        raise FormatError(
            f"{source}: say which function, as FILE:NAME; it has {listed}"
        )
    reader = RecipeReader(source, KNOWN_FUNCTIONS, ABSENT_FUNCTIONS)
    recipe = reader.result(module, name)
    if not isinstance(recipe, Made) or not any(x in recipe.fields for x in READ):
        raise FormatError(
            f"{source}: {name} makes no recipe: it sets nothing such as "
            "cfg.model.tensor_model_parallel_size"
        )
    return recipe, reader


def _recipe_settings(
    recipe: Made, reader: RecipeReader, fixed_flags: Mapping[str, str], source: str
) -> _Settings:
    """Return what a recipe says.

    Args:
        recipe: What its function makes.
        reader: The reader that followed it.
        fixed_flags: Flags of the command line, which need no value here.
        source: The file's path, which errors begin with.

    Raises:
        FormatError: If a word of the plan has a value that cannot be computed.
    """
    settings = _Settings()
    unknown: list[str] = []
    for section in READ:
        section_object = recipe.fields.get(section)
        if isinstance(section_object, Made):
            unknown += _read_section(
                section, section_object, settings, fixed_flags, source
            )
    settings.flags |= _find_distributed_flags(recipe)
    settings.flags |= _read_recipe_precision(recipe)
    if unknown:
        settings.notes.append(f"cannot be computed: {', '.join(unknown)}")
    if reader.unread:
        settings.notes.append(
            f"{' and '.join(reader.unread)}: of another file, which is not read; what they set is "
            "not known"
        )
    settings.notes += _list_undecided(reader)
    model = _checkpoint(recipe.fields.get("model"))
    if model is not None and "num-layers" not in settings.flags:
        settings.notes.append(f"the model is {model}: give it as MODEL")
    settings.lora, settings.not_priced = _adapters(recipe.fields.get("peft"))
    settings.not_priced += _type_effects(recipe.fields.get("mixed_precision"))
    return settings


def _read_section(
    section: str,
    section_object: Made,
    settings: _Settings,
    fixed_flags: Mapping[str, str],
    source: str,
) -> Iterator[str]:
    """Add the flags of one section of a recipe to settings.

    Args:
        section: Its name.
        section_object: What it holds.
        settings: What was read so far. It is updated in place.
        fixed_flags: Flags of the command line, which need no value here.
        source: The file's path, which errors begin with.

    Yields:
        Sizes of the model that cannot be computed.

    Raises:
        FormatError: If a word of the plan has a value that cannot be computed.
    """
    for key, value in section_object.fields.items():
        name = key.replace("_", "-")
        name = OTHER_NAMES.get(name, name)
        is_read = section != "optimizer" or is_counted(name) or is_listed(name)
        if key.startswith("_") or not is_read:
            continue
        text = _format_flag_value(name, value)
        if text is not None:
            settings.flags[name] = text
            settings.lines[name] = section_object.lines.get(key)
            continue
        if value is None or name in fixed_flags:
            continue
        line = section_object.lines.get(key)
        location = "" if line is None else f"line {line}: "
        if name in LAYOUT:
            settings.notes.append(
                f"{location}{section}.{key}: cannot be computed; layers are cut equally, or "
                f"--set {section}.{key}=LAYOUT"
            )
        elif name in PLAN_FLAGS:
            raise FormatError(
                f"{source}: {location}{section}.{key}: {str(value)[:60]} cannot be computed; give "
                f"--set {section}.{key}=VALUE"
            )
        elif is_counted(name):
            yield f"{section}.{key}"


def _list_undecided(reader: RecipeReader) -> Iterator[str]:
    """Yield a line for each branch that is not followed and would set what a plan is made of."""
    for branch in reader.undecided:
        names = [x for x in branch.settings if is_counted(x.replace("_", "-"))]
        if names:
            location = "" if branch.line is None else f"line {branch.line}: "
            listed = ", ".join(dict.fromkeys(names))
            condition = branch.condition[:60]
            yield f"{location}{listed}: depends on {condition}, which is not known"


def _format_flag_value(name: str, value: object) -> str | None:
    """Return a value as a flag's text, or None if it is not known or not said."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Symbol):
        owner, _, member = value.text.rpartition(".")
        return (
            member if owner[:1].isupper() else value.text
        )  # a member of an enumeration
    if isinstance(value, int | float | str):
        return str(value)
    if not isinstance(value, list | tuple) or not value:
        return None
    if name == LAYOUT[0]:
        stages = [
            stage if isinstance(stage, list | tuple) else ["?"] for stage in value
        ]
        letters = ["".join(LETTERS.get(str(x), "?") for x in stage) for stage in stages]
        layout = "|".join(letters)
        return None if "?" in layout else layout
    if all(isinstance(x, int) for x in value):
        return str(list(value)).replace(" ", "")
    return " ".join(_format_flag_value(name, x) or str(x) for x in value)


def _find_distributed_flags(recipe: Made) -> Flags:
    """Return flags of the sharded optimizer and its overlaps, as `validate` sets them.

    The distributed optimizer is on if the optimizer or DDP has it. With it, a configuration of
    overlaps hides both exchanges unless it says otherwise (`training/comm_overlap.py`).
    """
    ddp, optimizer, overlaps = (
        recipe.fields.get(section) for section in ("ddp", "optimizer", "comm_overlap")
    )
    fields = [x.fields if isinstance(x, Made) else {} for x in (ddp, optimizer)]
    is_fsdp = fields[0].get("use_megatron_fsdp") is True
    flags: Flags = {}
    if any(part.get("use_distributed_optimizer") is True for part in fields):
        flags["use-distributed-optimizer"] = "true"
        if isinstance(overlaps, Made) and not is_fsdp:
            for key in ("overlap_grad_reduce", "overlap_param_gather"):
                hides = overlaps.fields.get(key) is not False
                flags[key.replace("_", "-")] = str(hides).lower()
    elif any(part.get("overlap_param_gather") is True for part in fields):
        flags["overlap-param-gather"] = "true"
    return flags


def _read_recipe_precision(recipe: Made) -> Flags:
    """Return the flags of a recipe's mixed precision and of the type of its gradients."""
    precision = recipe.fields.get("mixed_precision", "bf16_mixed")
    if precision is None:
        return {}
    fields = precision.fields if isinstance(precision, Made) else {}
    name = str(precision)
    is_fp16 = fields.get("fp16") is True or ("fp16" in name and "bf16" not in name)
    half = "fp16" if is_fp16 else "bf16"
    # The recipe of fp16 alone sums in its own type.
    fp32 = fields.get("grad_reduce_in_fp32", name.rpartition(".")[2] != "fp16_mixed")
    return _half_flags(half, in_fp32=fp32 is not False)


def _half_flags(half: str, *, in_fp32: bool) -> Flags:
    """Return the flags of a half type and of the type in which its gradients are summed."""
    if half == "bf16":
        return {"bf16": "true"} | ({} if in_fp32 else {"grad-reduce-in-bf16": "true"})
    accumulates = {"accumulate-allreduce-grads-in-fp32": "true"}
    return {"fp16": "true"} | (accumulates if in_fp32 else {})


def _checkpoint(model: object) -> str | None:
    """Return the name of the checkpoint whose configuration a model has."""
    if not isinstance(model, Made):
        return None
    for argument in model.arguments:
        if isinstance(argument, str) and re.search("from_(?:hf|auto)|hf_", model.name):
            return argument
        name = _checkpoint(argument)
        if name is not None:
            return name
    return None


def _adapters(peft: object) -> tuple[str | None, list[NotPriced]]:
    """Return a recipe's adapters in the words of `--lora`, and what no price counts of them.

    Without a rank or modules they are those of Megatron-Bridge's `LoRA` (`peft/lora.py`): rank 32,
    all four linear layers.
    """
    if peft is None or peft == "none":
        return None, []
    fields = peft.fields if isinstance(peft, Made) else {}
    kind = str(peft).rpartition(".")[2]
    if kind.lower() not in ("lora", "dora"):
        effect = "adapters of another kind; priced as training of all parameters"
        return None, [NotPriced(key="peft", effect=effect)]
    effects: list[NotPriced] = []
    if kind.lower() == "dora":
        effect = "DoRA's magnitudes; priced as LoRA"
        effects.append(NotPriced(key="peft", effect=effect))
    rank = fields.get("dim", PEFT_DEFAULT_RANK)
    modules = fields.get("target_modules", PEFT_DEFAULTS)
    products: set[str] = set()
    unread: list[str] = []
    are_named = isinstance(modules, list | tuple) and all(
        isinstance(module, str) for module in modules
    )
    if isinstance(modules, list | tuple) and are_named:
        products, unread = find_products(modules)
    if not products or type(rank) is not int:
        effect = "the modules of its adapters are not known; priced as training of all parameters"
        return None, [NotPriced(key="peft", effect=effect)]
    if unread:
        effect = (
            f"{', '.join(unread)}: no product of a layer; priced without adapters of it"
        )
        effects.append(NotPriced(key="peft", effect=effect))
    return lora_words(rank, products), effects


def _type_effects(precision: object) -> Iterator[NotPriced]:
    """Yield the types of a mixed precision that no price counts."""
    fields = precision.fields if isinstance(precision, Made) else {}
    if re.search("fp8|fp4", str(precision)):
        effect = "matrix products in fp8 or fp4; priced in bf16"
        yield NotPriced(key="mixed_precision", effect=effect)
    elif fields.get("fp8") or fields.get("fp4"):
        effect = "matrix products in fp8; priced in bf16"
        yield NotPriced(key="mixed_precision.fp8", effect=effect)


def _overrides(text: str, source: str) -> _Settings:
    """Return what overrides say, one a line.

    Raises:
        FormatError: If a key is there twice with two values.
    """
    settings = _Settings()
    for number, line in enumerate(text.splitlines(), start=1):
        match = LINE.fullmatch(line) if len(line) < LONGEST else None
        if match is None:
            continue
        name = match[2].replace("_", "-")
        name, value = OTHER_NAMES.get(name, name), match[3].strip().strip("\"'")
        is_other = (
            name != "seq-length" if match[1] == "dataset" else match[1] not in READ
        )
        if value in ("None", "null") or is_other:
            continue
        if match[1] == "optimizer" and not (is_counted(name) or is_listed(name)):
            continue
        earlier = settings.flags.setdefault(name, value)
        if earlier != value and is_counted(name):
            repeated = f"{value[:40]!r}: was {earlier[:40]!r} before"
            raise FormatError(
                f"{source}: line {number}: {match[1]}.{match[2]}: {repeated}"
            )
        settings.lines[name] = number
    named = re.findall(r"mixed_precision\s{0,9}=\s{0,9}(\S[^\n]{0,400})", text)
    settings.not_priced += _type_effects(named[-1] if named else None)
    return settings


def _read_override_precision(text: str) -> Flags:
    """Return the flags of the last mixed precision in a text and of the type of its gradients.

    The half type is bf16 where none is named. `None` or `null` has no flags.
    """
    named = re.findall(r"mixed_precision\s{0,9}=\s{0,9}(\S[^\n]{0,400})", text)
    if named and re.match("None|null", named[-1]):
        return {}
    half = (
        "fp16" if named and "fp16" in named[-1] and "bf16" not in named[-1] else "bf16"
    )
    matches = re.findall(
        r"(?:mixed_precision\.|,\s?)grad_reduce_in_fp32\s?[:=]\s?(\w+)", text
    )
    fp32 = matches[-1].lower() == "true" if matches else half == "bf16"
    return _half_flags(half, in_fp32=fp32)
