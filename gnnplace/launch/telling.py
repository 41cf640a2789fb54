"""Which launcher a file is for, told by its name and its content."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from gnnplace.errors import FormatError

SIGNS = {  # what the files of one launcher have and those of others do not, in this order
    "torchtitan": r"(?m)^(from|import) torchtitan|Trainer\.Config",
    "megatron-bridge": r"(?m)^[ \t]{0,40}((cfg|config)\.)?(model|train|ddp)\.\w+[ \t]*=",
    "nanotron": r"(?m)^parallelism:|^tokens:[ \t]*(\{|\n(?:[ \t]+[^\n]{0,200}\n){0,9}[ \t]+"
    r"(micro_batch_size|sequence_length|train_steps|batch_accumulation_per_replica):)",
    "nemo": r"(?m)^[ \t]+(tensor_model_parallel_size|megatron_amp_O2|encoder_seq_length)\s*:",
    "gpt-neox": r"(?m)^[ \t]*[\"']?(pipe[-_]parallel[-_]size|model[-_]parallel[-_]size|"
    r"checkpoint[-_]factor|no[-_]weight[-_]tying)[\"']?\s*:",
    "llm-foundry": r"(?m)^(device_train_microbatch_size|global_train_batch_size|"
    r"device_train_grad_accum)\s*:|^[ \t]+name: (mpt_causal_lm|hf_causal_lm)",
    "lightning": r"(?m)^trainer\s*:",
    "axolotl": r"(?m)^(base_model|micro_batch_size)\s*:",
    "llama-factory": r"(?m)^(finetuning_type|stage|template|cutoff_len|lora_target)\s*:",
    "trl": r"(?m)^(model_name_or_path|per_device_train_batch_size)\s*:",
    "accelerate": r"(?m)^[ \t]*[\"']?(distributed_type|compute_environment|num_processes|"
    r"fsdp_config|deepspeed_config)[\"']?\s*:",
    "deepspeed": r'"(zero_optimization|train_batch_size|train_micro_batch_size_per_gpu|'
    r'gradient_accumulation_steps|zero_allow_untested_optimizer|bf16|fp16)"\s*:',
}
TOML_SIGN = r"(?m)^[ \t]*\[(model|training|parallelism|experimental|activation_checkpoint|job)\]"
YAML_FLAGS = r"(?m)^[ \t]{0,40}(?:- )?--[a-z][\w-]*[ \t]*:|^[ \t]*MODEL_ARGS\s*:"
FLAGS = (
    r"(?m)^[^#\"\n]*--(tensor-model-parallel-size|num-layers|micro-batch-size|hidden-size|global-batch-size|"
    r"pipeline-model-parallel-size|model-parallel-size|seq-length|num-experts)\b"
)
DEEPSPEED_FLAGS = (
    r"--(deepspeed|deepspeed_config|zero-stage|ds-sequence-parallel-size)\b"
)
SHELL_SUFFIXES = (
    ".sh",
    ".slurm",
    ".sbatch",
    ".bash",
    ".sub",
    ".job",
    ".pbs",
    ".lsf",
    ".batch",
)
SHELL_SIGN = r"\A#!.*\b(ba|z|k|da)?sh\b|(?m:^#(SBATCH|PBS|BSUB)\b)"
SWIFT_ON_MEGATRON = r"(?m)^(?:[^#\n]{0,300}\s)?megatron (?:pt|sft|rlhf)\b"
UNREAD = {  # launchers whose files are known, and not read
    "colossalai": r"(?m)^[ \t]*(import|from) colossalai|\bcolossalai run\b",
    "internevo": r"(?m)^[ \t]*parallel = dict\(|\bJOB_NAME = ",
    "mosaic composer": r"(?m)^[ \t]*composer\s+\S+\.py",
    "alpa": r"(?m)^[ \t]*(import|from) alpa\b",
    "jax": r"(?m)^[ \t]*(import|from) (jax|flax|maxtext)\b|\bici_fsdp_parallelism\b",
    "torchtune": r"(?m)^[ \t]*_component_:\s*torchtune",
    "verl": r"(?m)^actor_rollout_ref\s*:",
    "llava": r"\bllava/train/train",
    "ms-swift": r"(?m)^(?:[^#\n]{0,300}\s)?swift "
    r"(?:pt|sft|rlhf|export|infer|deploy|eval|rollout|app)\b",
}


def find_told_launcher(text: str, source: str) -> str:
    """Return the launcher that a file is for.

    Args:
        text: The file.
        source: Its path, `:FUNCTION` behind it where one of several functions is meant.

    Raises:
        FormatError: If it is of a launcher that is not read, named, or of none that is known.
    """
    suffix = PurePosixPath(re.sub(r":\w+$", "", source)).suffix.lower()
    if suffix == ".toml":
        if re.search(TOML_SIGN, text):
            return "torchtitan"
    elif suffix in SHELL_SUFFIXES or re.search(SHELL_SIGN, text):
        if re.search(UNREAD["ms-swift"], text) and not re.search(
            SWIFT_ON_MEGATRON, text
        ):
            raise FormatError(f"{source}: is a file of ms-swift, which is not read")
        return _shell_launcher(text)
    else:
        for unread, pattern in UNREAD.items():
            if re.search(pattern, text):
                raise FormatError(f"{source}: is a file of {unread}, which is not read")
        name = _find_by_signs(text, suffix)
        if name is not None:
            return name
    launchers = ", ".join((*SIGNS, "megatron-lm", "megatron-deepspeed"))
    raise FormatError(
        f"{source}: cannot tell which launcher this file belongs to; give --from, one of "
        f"{launchers}"
    )


def _shell_launcher(text: str) -> str:
    """Return the launcher of a shell script: Megatron-DeepSpeed if it has DeepSpeed's flags."""
    code = re.sub(r"(?m)^[ \t]*#.*$", "", text)
    if re.search(DEEPSPEED_FLAGS, code):
        return "megatron-deepspeed"
    return "megatron-lm"


def _find_by_signs(text: str, suffix: str) -> str | None:
    """Return the launcher whose keys a file has, or None if it has those of none."""
    order: tuple[str, ...]
    if suffix == ".json":
        order = ("gpt-neox", "accelerate", "deepspeed")
    elif suffix in (".yaml", ".yml"):
        if re.search(YAML_FLAGS, text):
            return "megatron-lm"
        order = tuple(
            name for name in SIGNS if name not in ("torchtitan", "megatron-bridge")
        )
    else:
        for name in ("torchtitan", "megatron-bridge"):
            if re.search(SIGNS[name], text):
                return name
        order = tuple(SIGNS)
        if suffix != ".py" and re.search(FLAGS, text):
            return _shell_launcher(text)
    return next((name for name in order if re.search(SIGNS[name], text)), None)
