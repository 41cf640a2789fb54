"""ms-swift's `megatron sft`, `pt` and `rlhf`: flags of Megatron-LM with other defaults.

Read by ms-swift 3602360a (`swift/megatron/arguments/megatron_args.py`). Its flags have the names of
Megatron-LM's; the model is a checkpoint's, trained in its type, for which bf16 is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gnnplace.launch.adapter_keys import find_products, lora_words
from gnnplace.launch.launch_plan import NotPriced
from gnnplace.launch.megatron_plan import Flags

TRAINING = ("pt", "sft", "rlhf")
"""Its commands that train."""
OTHER_COMMANDS = ("export", "infer")
DEFAULTS: Mapping[str, str] = {
    "bf16": "true",
    "use-distributed-optimizer": "true",
    "micro-batch-size": "1",
    "global-batch-size": "16",
    "recompute-granularity": "selective",
    "moe-token-dispatcher-type": "alltoall",
}
HARMLESS = frozenset(
    [
        "model",
        "model-type",
        "model-author",
        "model-name",
        "dataset",
        "val-dataset",
        "cached-dataset",
        "cached-val-dataset",
        "dataset-num-proc",
        "split-dataset-ratio",
        "load-from-cache-file",
        "output-dir",
        "max-length",
        "num-train-epochs",
        "system",
        "torch-dtype",
        "save-safetensors",
        "save-total-limit",
        "merge-lora",
        "tuner-type",
        "train-type",
        "lora-alpha",
        "target-modules",
        "padding-free",
        "freeze-vit",
        "freeze-aligner",
        "gradient-accumulation-fusion",
        "loss-scale",
        "logging-steps",
        "report-to",
        "enable-thinking",
        "add-non-thinking-prefix",
        "external-plugins",
        "task-type",
        "num-labels",
        "linear-decoupled-in-proj",
        "group-by-length",
        "beta",
        "loss-type",
        "rpo-alpha",
        "rlhf-type",
        "freeze-llm",
    ]
)
"""Its own flags that change neither seconds nor bytes that are priced."""
LORA_RANK = "8"
PROCESSES = {"NPROC_PER_NODE": "nproc-per-node", "NNODES": "nnodes"}


def add_defaults(flags: Flags, text: str) -> Flags:
    """Return flags with ms-swift's defaults, and the processes that its variables say.

    Args:
        flags: Flags of the command by name.
        text: The script.
    """
    completed = {**DEFAULTS, **flags}
    if "expert-model-parallel-size" in flags:
        completed.setdefault("expert-tensor-parallel-size", "1")
    if flags.get("max-length", "").isdigit():
        completed.setdefault("seq-length", flags["max-length"])
    if "fp16" in flags:
        del completed["bf16"]
    for variable, flag in PROCESSES.items():
        counts = set(
            re.findall(rf"(?m)^[^#\n]{{0,200}}\b{variable}=(\d{{1,6}})\b", text)
        )
        if len(counts) == 1:
            completed.setdefault(flag, counts.pop())
    if "nproc-per-node" in completed:
        completed.setdefault("nnodes", "1")
    return completed


def adapters(flags: Flags) -> str | None:
    """Return the adapters of flags in the words of `--lora`, or None if there are none."""
    tuner = flags.get("tuner-type", flags.get("train-type", "full"))
    rank = flags.get("lora-rank", LORA_RANK)
    if not tuner.startswith("lora") or not rank.isdigit():
        return None
    modules = flags.get("target-modules", "all-linear").split()
    products, _ = find_products(modules)
    return lora_words(int(rank), products) if products else None


def effects(
    command: str, flags: Flags, lines: Mapping[str, int | None]
) -> Iterator[NotPriced]:
    """Yield what flags of its own change that no price counts.

    Args:
        command: One of `TRAINING`.
        flags: Flags of the command by name.
        lines: Line that each flag stands on.
    """
    if command == "rlhf":
        effect = "training on preferences or rewards; priced as training on tokens"
        yield NotPriced("--rlhf-type", effect, lines.get("rlhf-type"))
    if flags.get("freeze-llm", "false").lower() == "true":
        effect = "the language model is frozen; priced as training of all parameters"
        yield NotPriced("--freeze-llm", effect, lines.get("freeze-llm"))
    if "freeze-vit" in flags:
        effect = "an image encoder is not counted"
        yield NotPriced("--freeze-vit", effect, lines.get("freeze-vit"))
