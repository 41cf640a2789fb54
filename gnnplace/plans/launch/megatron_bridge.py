"""Megatron-Bridge: overrides of a recipe, `section.key=value`, and recipes' own lines.

Written for and read by Megatron-Bridge 067f987d (August 2026): `training/config.py`,
`recipes/`. Its keys are Megatron-LM's flags with underscores under `model.`, `train.`, `ddp.`,
`dataset.` and `comm_overlap.`; `model.virtual_pipeline_model_parallel_size` are stages a rank. A
recipe is read as text: lines `cfg.section.key = literal`. Nothing of it runs, so that what it takes
from elsewhere (a checkpoint's sizes) is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gnnplace.errors import FormatError
from gnnplace.plans.launch.launch_plan import LaunchPlan, check_plan_words, header, with_header
from gnnplace.plans.launch.megatron import (
    Flags,
    model_flags,
    nearest_megatron,
    plan_flags,
    plan_of_flags,
)

LINE = re.compile(r"\s*(?:(?:cfg|config)\.)?(\w+)\.(\w+)\s*=\s*([^\s#][^#]*)(?:#.*)?")
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
    "tp-comm-overlap": "comm_overlap", "optimizer": "optimizer",
}  # fmt: skip
LEFT_OUT = ("use-mcore-models", "swiglu", "normalization", "position-embedding-type", "optimizer",
            "disable-bias-linear", "group-query-attention", "max-position-embeddings", "bf16",
            "fp16", "grad-reduce-in-bf16", "untie-embeddings-and-output-weights")  # fmt: skip


def nearest_bridge(plan: LaunchPlan) -> Iterator[tuple[str, LaunchPlan]]:
    """What Megatron-Bridge cannot say: what Megatron-LM cannot."""
    yield from nearest_megatron(plan)


def write_bridge(plan: LaunchPlan, lines: Sequence[str], gpus: int = 8) -> str:
    """Overrides of a recipe, one a line.

    Args:
        plan: as `nearest_bridge` leaves it.
        lines: for the head of the file.
        gpus: of a server; torchrun is told them.
    """
    sizes = [] if plan.sizes is None else model_flags(plan.sizes)
    text = [f"# {line}" for line in header(plan, lines, keys=("optimizer",))]
    other = {theirs: ours for ours, theirs in OTHER_NAMES.items()}
    for flag in [*sizes, *plan_flags(plan)]:
        name, _, value = flag.removeprefix("--").partition(" ")
        if name not in LEFT_OUT:
            key = other.get(name, name).replace("-", "_")
            section, plain = SECTIONS.get(name, "model"), value.strip("'")
            text.append(f"{section}.{key}={plain or 'true'}")
    if plan.sizes is not None:
        tied = str(plan.sizes.tied).lower()
        text += [f"model.vocab_size={plan.sizes.vocabulary}",
                 f"dataset.seq_length={plan.sizes.length}",
                 f"model.gated_linear_unit={str(plan.sizes.gated).lower()}",
                 f"model.share_embeddings_and_output_weights={tied}"]  # fmt: skip
    half = (plan.precision or "32-true").partition("-")[0]
    text += [f"mixed_precision={half}_mixed"] if half != "32" else []
    text.append(f"ddp.grad_reduce_in_fp32={str(plan.gradients == 'fp32').lower()}")
    return "\n".join(text) + "\n"


def read_bridge(text: str, source: str) -> LaunchPlan:
    """The plan of overrides, or of a recipe's lines.

    Raises:
        FormatError: a key is there twice with two values, or numbers contradict.
    """
    flags: Flags = {}
    for number, line in enumerate(text.splitlines(), start=1):
        found = LINE.fullmatch(line) if len(line) < LONGEST else None
        if found is None:
            continue
        name = found[2].replace("_", "-")
        name, value = OTHER_NAMES.get(name, name), found[3].strip().strip("\"'")
        if value in ("None", "null") or (found[1] == "dataset" and name != "seq-length"):
            continue
        if flags.setdefault(name, value) != value:
            told = f"{value[:40]!r}: was {flags[name][:40]!r} before"
            raise FormatError(f"{source}: line {number}: {found[1]}.{found[2]}: {told}")
    if not any(name in flags for name in ("tensor-model-parallel-size", "micro-batch-size")):
        raise FormatError(f"{source}: has no key such as model.tensor_model_parallel_size=4")
    flags |= _others(flags, text)
    plan = plan_of_flags(flags, source)
    if plan.sizes is not None:
        plan = replace(plan, sizes=replace(plan.sizes, tied=flags.get("tied") == "true"))
    return check_plan_words(with_header(plan, text, source), source)


def _others(flags: Flags, text: str) -> Flags:
    """What Megatron-LM has flags for and Megatron-Bridge says otherwise."""
    made: Flags = {"tied": flags.get("share-embeddings-and-output-weights", "false").lower()}
    half = re.search(r"mixed_precision\s*=\s*[\"']?(bf16|16|fp16)_", text)
    made |= {{"bf16": "bf16"}.get(half[1], "fp16"): "true"} if half else {"bf16": "true"}
    if flags.get("grad-reduce-in-fp32", "true").lower() == "false":
        made["grad-reduce-in-bf16"] = "true"
    if flags.get("gated-linear-unit", "false").lower() == "true":
        made["swiglu"] = "true"
    if "num-query-groups" in flags:
        made["group-query-attention"] = "true"
    return made
