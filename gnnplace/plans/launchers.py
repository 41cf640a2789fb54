"""The names of the launchers whose files are read and written (`gnnplace.launch`)."""

NAMES = (
    "megatron-lm",
    "megatron-bridge",
    "torchtitan",
    "deepspeed",
    "accelerate",
    "nanotron",
)
READ_NAMES = (
    *NAMES,
    "megatron-deepspeed",
    "gpt-neox",
    "nemo",
    "llm-foundry",
    "lightning",
    "axolotl",
    "llama-factory",
    "trl",
)
"""Launchers whose files are read; those of `NAMES` are written, too."""
