"""Megatron-Bridge: overrides of a recipe, `section.key=value`, and recipes' own lines.

Written for and read by Megatron-Bridge 067f987d (August 2026): `training/config.py`,
`recipes/`. Its keys are Megatron-LM's flags with underscores under `model.`, `train.`, `ddp.`,
`dataset.` and `comm_overlap.`; `model.virtual_pipeline_model_parallel_size` are stages a rank. A
recipe is read as text: lines `cfg.section.key = literal`, those of functions that it begins with
first, also of files around it. Nothing of it runs: what it takes from elsewhere (a checkpoint's
sizes, functions of files that are not here) is not known, and said.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gnnplace.errors import FormatError, GnnplaceError
from gnnplace.files import read_text
from gnnplace.launch.adapter_keys import lora_words, products_of
from gnnplace.launch.launch_plan import (
    BYTES,
    LaunchPlan,
    NotPriced,
    check_plan_words,
    header,
    with_header,
)
from gnnplace.launch.layer_details import LLAMA, LayerDetails
from gnnplace.launch.megatron import model_flags, plan_flags
from gnnplace.launch.megatron_flags import is_listed
from gnnplace.launch.megatron_plan import (
    Flags,
    is_counted,
    is_known,
    number_of,
    plan_of_flags,
)

LINE = re.compile(r"\s*(?:(?:cfg|config)\.)?(\w+)\.(\w+)\s*=\s*([^\s#][^#]*)(?:#.*)?")
FUNCTION = re.compile(r"(?ms)^def (\w+)\(.*?(?=^def |^class |^@|\Z)")
BEGUN = re.compile(r"(?m)^\s{1,16}(?:cfg|config) = (\w+)\(")
HELPER = re.compile(r"(?m)^\s{1,16}(\w+)\((?:cfg|config)\b")
ASSIGNMENT = re.compile(r"(?m)^\s{1,16}(?:cfg|config)\.\w+\.\w+\s*=")
IMPORT = re.compile(r"(?ms)^from\s+([\w.]+)\s+import\s+(\([^)]*\)|[^\n]*)")
CONSTANT = re.compile(r"(?m)^([A-Z][A-Z0-9_]*)(?:\s*:\s*int)?\s*=\s*(\d+)\s*$")
KNOWN_FUNCTIONS = (
    "_pretrain_common",
    "_peft_common",
    "_sft_common",
    "isinstance",
    "print",
)
PEFT = re.compile(r"peft(_scheme)?\s*=\s*(?!None|null)\S|_peft_common\(|LoRA\(")
PEFT_SCHEME = re.compile(
    r"""(?:peft_scheme(?::[\w |]{1,40})?\s*=|default_peft_config\()\s*["'](\w+)["']"""
)
PEFT_RANK = re.compile(r"(?:peft(?:_cfg)?\.dim\s*=|LoRA\([^)]*?\bdim\s*=)\s*(\d{1,6})")
PEFT_MODULES = re.compile(r"target_modules\s*=\s*\[([^\]]{0,2000})\]")
TARGETS_ELSEWHERE = re.compile(r"target_modules\s*=\s*(?!None)[A-Za-z_]")
OTHER_PEFT = re.compile(r"(?:Canonical|VLM)\w*LoRA\(|_build_\w+_peft\(")
PEFT_DEFAULTS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
PEFT_DEFAULT_RANK = 32
DEEPEST = 12  # functions that a recipe goes through
HOPS = 4  # modules that hand on a function
READ = (
    "model",
    "train",
    "ddp",
    "comm_overlap",
    "optimizer",
)  # sections that say a plan
COMMON = "_pretrain_common()"
COMMON_FLAGS = {
    "micro-batch-size": "2",
    "global-batch-size": "32",
    "use-distributed-optimizer": "true",
    "overlap-grad-reduce": "true",
    "overlap-param-gather": "true",
}
"""What recipes for pre-training begin with (`recipes/common.py`)."""
LONGEST = 4096  # characters of a line that says something
OTHER_NAMES = {
    "virtual-pipeline-model-parallel-size": "num-virtual-stages-per-pipeline-rank",
    "num-layers-in-first-pipeline-stage": "decoder-first-pipeline-num-layers",
    "num-layers-in-last-pipeline-stage": "decoder-last-pipeline-num-layers",
    "num-moe-experts": "num-experts",
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
OWN = (
    "gated-linear-unit",
    "share-embeddings-and-output-weights",
    "grad-reduce-in-fp32",
    "add-bias-linear",
    "pipeline-dtype",
    "transformer-impl",
    "check-for-nan-in-grad",
)
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
        if name not in LEFT_OUT:
            key = bridge_names.get(name, name).replace("-", "_")
            overrides[f"{SECTIONS.get(name, 'model')}.{key}"] = (
                value.strip("'") or "true"
            )
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
    overrides["mixed_precision"] = _mixed_precision(plan)
    if plan.sizes is not None:
        experts = plan.sizes.experts
        overrides |= {
            "model.vocab_size": str(plan.sizes.vocabulary),
            "dataset.seq_length": str(plan.sizes.length),
            "model.gated_linear_unit": str(plan.sizes.gated).lower(),
            "model.add_bias_linear": str(not plan.sizes.gated).lower(),
            "model.share_embeddings_and_output_weights": str(plan.sizes.tied).lower(),
        }
        if (
            experts is not None and experts.dense
        ):  # a list, where the flag has a pattern
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


def _mixed_precision(plan: LaunchPlan) -> str:
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


@dataclass(frozen=True)
class _Block:
    """The text of a function, or of overrides.

    Attributes:
        text: The lines of the text.
        first_line: Line of the file that it begins on; 0 in another file.
    """

    text: str
    first_line: int


@dataclass
class _Recipe:
    """Functions that a recipe goes through, the one that it begins with first.

    Attributes:
        blocks: The texts of the functions.
        unread: Functions of files that are not here.
    """

    blocks: list[_Block] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def read_bridge(
    text: str, source: str, values: Mapping[str, str] | None = None
) -> LaunchPlan:
    """Return the plan of overrides, or of a recipe's lines.

    Args:
        text: The file.
        source: The file's path, which errors begin with. `:FUNCTION` behind it names one of
            several.
        values: Overrides of keys, as `model.tensor_model_parallel_size`.

    Raises:
        FormatError: If a key is there twice with two values, numbers contradict, or there are
            several functions and none is named.
    """
    flags: Flags = {}
    lines: dict[str, int | None] = {}
    recipe = _blocks(text, source)
    constants = dict(CONSTANT.findall(text))
    for block in recipe.blocks:
        block_flags, block_lines = _said(block, source, constants)
        flags |= block_flags
        lines |= block_lines
    # What is given on the command line stands behind the file and wins.
    overrides = "\n".join(f"{key}={value}" for key, value in (values or {}).items())
    flags |= _said(_Block(overrides, 0), source, constants)[0]
    full_text = "".join(block.text for block in recipe.blocks)
    if not any(
        name in flags for name in ("tensor-model-parallel-size", "micro-batch-size")
    ):
        raise FormatError(
            f"{source}: has no key such as model.tensor_model_parallel_size=4"
        )
    if COMMON in full_text:
        flags = COMMON_FLAGS | flags
    replicas = with_header(LaunchPlan(), text, source).dp
    if replicas is not None:
        degrees = (
            "tensor-model-parallel-size",
            "pipeline-model-parallel-size",
            "context-parallel-size",
        )
        inside = math.prod(number_of(flags, name, source, 1) for name in degrees)
        flags["world-size"] = str(replicas * inside)
    unknown = [name for name in flags if not (name in OWN or is_known(name))]
    flags |= _others(flags, full_text)
    plan = plan_of_flags(flags, source, lines)
    if unknown:
        listed = ", ".join(name.replace("-", "_") for name in unknown)
        note = f"keys that are not known, and not priced: {listed}"
        plan = replace(plan, notes=(*plan.notes, note))
    if recipe.unread:
        note = (
            f"{' and '.join(recipe.unread)}: of another file, which is not read; what they set is "
            "not known"
        )
        plan = replace(plan, notes=(*plan.notes, note))
    if plan.sizes is not None:
        plan = replace(
            plan, sizes=replace(plan.sizes, tied=flags.get("tied") == "true")
        )
    entries = [replace(e, key=_key_of_flag(e.key)) for e in plan.not_priced]
    code = "\n".join(line.partition("#")[0] for line in full_text.splitlines())
    lora, adapter_effects = _adapters(code)
    effects = (*entries, *adapter_effects, *_type_effects(code))
    plan = replace(plan, lora=lora or plan.lora, not_priced=effects)
    return check_plan_words(with_header(plan, text, source), source)


def _key_of_flag(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _adapters(code: str) -> tuple[str | None, list[NotPriced]]:
    """Return a recipe's adapters in the words of `--lora`, and what no price counts of them.

    Without a rank or modules they are those of Megatron-Bridge's `LoRA` (`peft/lora.py`): rank 32,
    all four linear layers. Of several values the last counts, as a recipe sets it.

    Args:
        code: The recipe without comments.
    """
    if not PEFT.search(code):
        return None, []
    schemes = PEFT_SCHEME.findall(code)
    if schemes and schemes[-1].lower() == "none":
        return None, []
    effects: list[NotPriced] = []
    if OTHER_PEFT.search(code) or (schemes and schemes[-1] not in ("lora", "dora")):
        effect = "adapters of another kind; priced as training of all parameters"
        return None, [NotPriced(key="peft", effect=effect)]
    if "DoRA(" in code or (schemes and schemes[-1] == "dora"):
        effects.append(
            NotPriced(key="peft", effect="DoRA's magnitudes; priced as LoRA")
        )
    ranks = PEFT_RANK.findall(code)
    listed = PEFT_MODULES.findall(code)
    modules = re.findall(r"[\w.*]+", listed[-1]) if listed else list(PEFT_DEFAULTS)
    products, unread = products_of(modules)
    if not products or TARGETS_ELSEWHERE.search(code):
        effect = "the modules of its adapters are not known; priced as training of all parameters"
        return None, [NotPriced(key="peft", effect=effect)]
    if unread:
        effect = (
            f"{', '.join(unread)}: no product of a layer; priced without adapters of it"
        )
        effects.append(NotPriced(key="peft", effect=effect))
    return lora_words(int(ranks[-1]) if ranks else PEFT_DEFAULT_RANK, products), effects


def _type_effects(code: str) -> Iterator[NotPriced]:
    """Yield the types of a recipe that no price counts."""
    named = re.findall(r"mixed_precision\s{0,9}=\s{0,9}(\S[^\n]{0,400})", code)
    if named and re.search("fp8|fp4", named[-1]):
        effect = "matrix products in fp8 or fp4; priced in bf16"
        yield NotPriced(key="mixed_precision", effect=effect)
    elif re.search(r"mixed_precision\.fp8\s*=\s*(?!None|null|False)\S", code):
        effect = "matrix products in fp8; priced in bf16"
        yield NotPriced(key="mixed_precision.fp8", effect=effect)


def _blocks(text: str, source: str) -> _Recipe:
    """Return the whole text or, for a file of recipes, a function and those that it goes through.

    Raises:
        FormatError: If there are several functions and none is named, or none of that name.
    """
    functions = _functions(text)
    path, _, name = (
        source.rpartition(":") if re.search(r"\.py:\w+$", source) else (source, "", "")
    )
    if not name and len(functions) == 1 and source.endswith(".py"):
        name = next(iter(functions))
    if not name and len(functions) < 2:
        return _Recipe(blocks=[_Block(text, 1)])
    if name not in functions:
        listed = ", ".join(list(functions)[:8])
        raise FormatError(
            f"{source}: say which function, as FILE:NAME; it has {listed}"
        )
    recipe = _Recipe()
    _follow(recipe, name, functions, text, path, 0)
    return recipe


def _functions(text: str) -> dict[str, _Block]:
    return {
        match[1]: _Block(match[0], text.count("\n", 0, match.start()) + 1)
        for match in FUNCTION.finditer(text)
    }


def _follow(
    recipe: _Recipe,
    name: str,
    functions: Mapping[str, _Block],
    text: str,
    path: str,
    depth: int,
) -> None:
    """Add a function to a recipe, after the functions that its configuration begins with.

    Args:
        recipe: The recipe so far. It is updated in place.
        name: The function.
        functions: Functions of the file by name.
        text: Text of the file.
        path: Path of the file.
        depth: How many functions led here.
    """
    block = functions[name]
    called = [match[1] for match in BEGUN.finditer(block.text)]
    helpers = [match[1] for match in HELPER.finditer(block.text)]
    last_line = max(
        (match.start() for match in ASSIGNMENT.finditer(block.text)), default=0
    )
    late = {
        match[1] for match in HELPER.finditer(block.text) if match.start() > last_line
    }
    later: list[_Block] = []
    for function in dict.fromkeys([*called, *helpers]):
        if function in KNOWN_FUNCTIONS or function == name or depth > DEEPEST:
            continue
        if function in functions:
            target = _Recipe()
            _follow(target, function, functions, text, path, depth + 1)
            recipe.unread += target.unread
            (later if function in late else recipe.blocks).extend(target.blocks)
            continue
        # A module may only hand on what it imports from another one.
        followed: dict[str, _Block] = {}
        other_path, other_text = path, text
        for _ in range(HOPS):
            imported = _imported(function, other_text, other_path)
            if imported is None:
                break
            other_path, other_text = imported
            followed = {
                k: replace(v, first_line=0) for k, v in _functions(other_text).items()
            }
            if function in followed:
                break
        if function not in followed:
            recipe.unread.append(function)
            continue
        target = _Recipe()
        _follow(target, function, followed, other_text, other_path, depth + 1)
        recipe.unread += target.unread
        (later if function in late else recipe.blocks).extend(target.blocks)
    recipe.blocks.append(block)
    recipe.blocks += later


def _imported(function: str, text: str, path: str) -> tuple[str, str] | None:
    """Return the file that a function is imported from, or None if it is not around the recipe."""
    for match in IMPORT.finditer(text):
        names = re.findall(r"\w+", match[2])
        if function not in names:
            continue
        relative = Path(*match[1].split(".")).with_suffix(".py")
        for folder in list(Path(path).resolve().parents)[:8]:
            candidate = folder / relative
            try:
                if candidate.is_file() and candidate.stat().st_size < BYTES:
                    return str(candidate), read_text(candidate)
            except (OSError, GnnplaceError):
                return None
    return None


def _said(
    block: _Block, source: str, constants: Mapping[str, str]
) -> tuple[Flags, dict[str, int | None]]:
    """Return what overrides or a function's lines say, as Megatron-LM's flags, and their lines.

    Raises:
        FormatError: If a key is there twice with two values.
    """
    flags: Flags = {}
    lines: dict[str, int | None] = {}
    for number, line in enumerate(block.text.splitlines(), start=block.first_line):
        match = LINE.fullmatch(line) if len(line) < LONGEST else None
        if match is None:
            continue
        name = match[2].replace("_", "-")
        name, value = OTHER_NAMES.get(name, name), match[3].strip().strip("\"'")
        value = constants.get(value, value)
        is_other = (
            name != "seq-length" if match[1] == "dataset" else match[1] not in READ
        )
        if value in ("None", "null") or is_other:
            continue
        if match[1] == "optimizer" and not (is_counted(name) or is_listed(name)):
            continue
        if flags.setdefault(name, value) != value and is_counted(name):
            repeated = f"{value[:40]!r}: was {flags[name][:40]!r} before"
            raise FormatError(
                f"{source}: line {number}: {match[1]}.{match[2]}: {repeated}"
            )
        lines[name] = number if block.first_line else None
    return flags, lines


def _others(flags: Flags, text: str) -> Flags:
    """Return the flags of Megatron-LM that Megatron-Bridge expresses in another way."""
    own_flags: Flags = {
        "tied": flags.get("share-embeddings-and-output-weights", "false").lower()
    }
    own_flags |= _precision(text)
    if flags.get("gated-linear-unit", "false").lower() == "true":
        own_flags["swiglu"] = "true"
    if re.search(r"CommOverlapConfig\([^)]{0,400}tp_comm_overlap=True", text):
        own_flags["tp-comm-overlap"] = "true"
    if "num-query-groups" in flags:
        own_flags["group-query-attention"] = "true"
    return own_flags


def _precision(text: str) -> Flags:
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
    return {half: "true"} | ({} if fp32 else {"grad-reduce-in-bf16": "true"})
