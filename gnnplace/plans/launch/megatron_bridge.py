"""Megatron-Bridge: overrides of a recipe, `section.key=value`, and recipes' own lines.

Written for and read by Megatron-Bridge 067f987d (August 2026): `training/config.py`,
`recipes/`. Its keys are Megatron-LM's flags with underscores under `model.`, `train.`, `ddp.`,
`dataset.` and `comm_overlap.`; `model.virtual_pipeline_model_parallel_size` are stages a rank. A
recipe is read as text: lines `cfg.section.key = literal`. Nothing of it runs, so that what it takes
from elsewhere (a checkpoint's sizes) is not known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from gnnplace.errors import FormatError
from gnnplace.plans.launch.launch_plan import LaunchPlan, check_plan_words, header, with_header
from gnnplace.plans.launch.megatron import model_flags, plan_flags
from gnnplace.plans.launch.megatron_plan import Flags, is_counted, is_known, plan_of_flags

LINE = re.compile(r"\s*(?:(?:cfg|config)\.)?(\w+)\.(\w+)\s*=\s*([^\s#][^#]*)(?:#.*)?")
FUNCTION = re.compile(r"(?ms)^def (\w+)\(.*?(?=^def |^class |^@|\Z)")
BEGUN = re.compile(r"(?m)^\s{1,16}(?:cfg|config) = (\w+)\(")
READ = ("model", "train", "ddp", "comm_overlap", "optimizer")  # sections that say a plan
COMMON = "_pretrain_common()"
COMMON_FLAGS = {
    "micro-batch-size": "2", "global-batch-size": "32", "use-distributed-optimizer": "true",
    "overlap-grad-reduce": "true", "overlap-param-gather": "true",
}  # fmt: skip
"""What recipes for pre-training begin with (`recipes/common.py`)."""
LONGEST = 4096  # characters of a line that says something
OTHER_NAMES = {
    "virtual-pipeline-model-parallel-size": "num-virtual-stages-per-pipeline-rank",
    "num-layers-in-first-pipeline-stage": "decoder-first-pipeline-num-layers",
    "num-layers-in-last-pipeline-stage": "decoder-last-pipeline-num-layers",
    "num-moe-experts": "num-experts",
}
SECTIONS = {
    "micro-batch-size": "train", "global-batch-size": "train", "train-iters": "train",
    "use-distributed-optimizer": "ddp", "use-megatron-fsdp": "ddp", "overlap-grad-reduce": "ddp",
    "overlap-param-gather": "ddp", "data-parallel-sharding-strategy": "ddp",
    "ckpt-format": "checkpoint", "no-check-for-nan-in-loss-and-grad": "rerun_state_machine",
}  # fmt: skip
USUAL = {
    "ddp.use_distributed_optimizer": "false", "ddp.use_megatron_fsdp": "false",
    "ddp.overlap_grad_reduce": "false", "ddp.overlap_param_gather": "false",
    "model.sequence_parallel": "false", "model.expert_model_parallel_size": "1",
    "model.virtual_pipeline_model_parallel_size": "null",
    "model.pipeline_model_parallel_layout": "null", "model.recompute_granularity": "null",
    "model.recompute_method": "null", "model.recompute_num_layers": "null",
    "model.cuda_graph_impl": "none",
}  # fmt: skip
"""What recipes may set and a plan leaves at rest: overrides say it, too."""
HALVES = {"bf16": ("bf16_mixed", "torch.bfloat16"), "16": ("fp16_mixed", "torch.float16")}
"""Its mixed precision by name, which sums gradients in fp32 and in fp16, and the type."""
OWN = ("gated-linear-unit", "share-embeddings-and-output-weights", "grad-reduce-in-fp32",
       "add-bias-linear", "pipeline-dtype", "transformer-impl")  # fmt: skip
LEFT_OUT = ("use-mcore-models", "swiglu", "normalization", "position-embedding-type", "optimizer",
            "disable-bias-linear", "group-query-attention", "max-position-embeddings", "bf16",
            "fp16", "grad-reduce-in-bf16", "untie-embeddings-and-output-weights")  # fmt: skip


def write_bridge(plan: LaunchPlan, lines: Sequence[str], gpus: int = 8) -> str:
    """Overrides of a recipe, one a line.

    Args:
        plan: as `nearest_megatron` leaves it.
        lines: for the head of the file.
        gpus: of a server; torchrun is told them.
    """
    sizes = [] if plan.sizes is None else model_flags(plan.sizes)
    text = [f"# {line}" for line in header(plan, lines, keys=("optimizer",))]
    other = {theirs: ours for ours, theirs in OTHER_NAMES.items()}
    told = dict(USUAL)
    for flag in [*sizes, *plan_flags(plan)]:
        name, _, value = flag.removeprefix("--").partition(" ")
        if name not in LEFT_OUT:
            key = other.get(name, name).replace("-", "_")
            told[f"{SECTIONS.get(name, 'model')}.{key}"] = value.strip("'") or "true"
    if told.pop("rerun_state_machine.no_check_for_nan_in_loss_and_grad", ""):
        told |= {"rerun_state_machine.check_for_nan_in_loss": "false",
                 "ddp.check_for_nan_in_grad": "false"}  # fmt: skip
    told["optimizer.use_distributed_optimizer"] = told["ddp.use_distributed_optimizer"]
    told["model.expert_tensor_parallel_size"] = str(plan.etp or plan.tp)
    told["mixed_precision"] = _mixed_precision(plan)
    if plan.sizes is not None:
        own = plan.sizes.experts
        told |= {"model.vocab_size": str(plan.sizes.vocabulary),
                 "dataset.seq_length": str(plan.sizes.length),
                 "model.gated_linear_unit": str(plan.sizes.gated).lower(),
                 "model.add_bias_linear": str(not plan.sizes.gated).lower(),
                 "model.share_embeddings_and_output_weights": str(plan.sizes.tied).lower()
                 }  # fmt: skip
        if own is not None and own.dense:  # a list, where the flag has a pattern
            chosen = ["0"] * own.dense + ["1"] * (plan.sizes.layers - own.dense)
            told["model.moe_layer_freq"] = f"[{','.join(chosen)}]"
    return "\n".join([*text, *(f"{key}={value}" for key, value in told.items())]) + "\n"


def _mixed_precision(plan: LaunchPlan) -> str:
    """The recipe of a half type, or its fields where it sums gradients in the other type."""
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


def read_bridge(text: str, source: str) -> LaunchPlan:
    """The plan of overrides, or of a recipe's lines; `source` may end with `:FUNCTION`.

    Raises:
        FormatError: a key is there twice with two values, numbers contradict, or there are several
            functions and none is named.
    """
    flags: Flags = {}
    blocks = _blocks(text, source)
    for block in blocks:
        flags |= _said(block, source)
    text = "".join(blocks)
    if not any(name in flags for name in ("tensor-model-parallel-size", "micro-batch-size")):
        raise FormatError(f"{source}: has no key such as model.tensor_model_parallel_size=4")
    if COMMON in text:
        flags = COMMON_FLAGS | flags
    unknown = [name for name in flags if not (name in OWN or is_known(name))]
    flags |= _others(flags, text)
    plan = plan_of_flags(flags, source)
    if unknown:
        listed = ", ".join(name.replace("-", "_") for name in unknown[:8])
        told = f"keys that are not known, and not priced: {listed}"
        plan = replace(plan, notes=(*plan.notes, told))
    if plan.sizes is not None:
        plan = replace(plan, sizes=replace(plan.sizes, tied=flags.get("tied") == "true"))
    return check_plan_words(with_header(plan, text, source), source)


def _blocks(text: str, source: str) -> list[str]:
    """The text, or of a file of recipes those of a function and of what it begins with.

    Raises:
        FormatError: there are several functions and none is named, or none of that name.
    """
    functions = {found[1]: found[0] for found in FUNCTION.finditer(text)}
    name = source.rpartition(":")[2] if re.search(r"\.py:\w+$", source) else ""
    if not name and len(functions) < 2:
        return [text]
    if name not in functions:
        told = ", ".join(list(functions)[:8])
        raise FormatError(f"{source}: say which function, as FILE:NAME; it has {told}")
    blocks = list[str]()
    while name in functions:
        blocks.insert(0, functions.pop(name))
        begun = BEGUN.search(blocks[0])
        name = begun[1] if begun else ""
    return blocks


def _said(text: str, source: str) -> Flags:
    """What overrides or a function's lines say, in the names of Megatron-LM's flags.

    Raises:
        FormatError: a key is there twice with two values.
    """
    flags: Flags = {}
    for number, line in enumerate(text.splitlines(), start=1):
        found = LINE.fullmatch(line) if len(line) < LONGEST else None
        if found is None:
            continue
        name = found[2].replace("_", "-")
        name, value = OTHER_NAMES.get(name, name), found[3].strip().strip("\"'")
        other = name != "seq-length" if found[1] == "dataset" else found[1] not in READ
        if value in ("None", "null") or other or (found[1] == "optimizer" and not is_counted(name)):
            continue
        if flags.setdefault(name, value) != value and is_counted(name):
            told = f"{value[:40]!r}: was {flags[name][:40]!r} before"
            raise FormatError(f"{source}: line {number}: {found[1]}.{found[2]}: {told}")
    return flags


def _others(flags: Flags, text: str) -> Flags:
    """What Megatron-LM has flags for and Megatron-Bridge says otherwise."""
    made: Flags = {"tied": flags.get("share-embeddings-and-output-weights", "false").lower()}
    made |= _precision(text)
    if flags.get("gated-linear-unit", "false").lower() == "true":
        made["swiglu"] = "true"
    if re.search(r"CommOverlapConfig\([^)]{0,400}tp_comm_overlap=True", text):
        made["tp-comm-overlap"] = "true"
    if "num-query-groups" in flags:
        made["group-query-attention"] = "true"
    return made


def _precision(text: str) -> Flags:
    """The half type of the last mixed precision, bf16 where none is named, and its gradients."""
    named = re.findall(r"mixed_precision\s{0,9}=\s{0,9}(\S[^\n]{0,400})", text)
    if named and re.match("None|null", named[-1]):
        return {}
    half = "fp16" if named and "fp16" in named[-1] and "bf16" not in named[-1] else "bf16"
    own = re.findall(r"(?:mixed_precision\.|,\s?)grad_reduce_in_fp32\s?[:=]\s?(\w+)", text)
    fp32 = own[-1].lower() == "true" if own else half == "bf16"
    return {half: "true"} | ({} if fp32 else {"grad-reduce-in-bf16": "true"})
