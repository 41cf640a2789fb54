"""The models of published training steps, from their configurations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import nn

from gnnplace.tracing.models import capture_model
from gnnplace.tracing.options import CaptureOptions
from gnnplace.tracing.program.program import Program

# As the benchmarks that published the steps configure them; NeuSight (Lee et al., ASPLOS 2025),
# scripts/asplos/data/DLmodel_configs. Attention is eager: products, softmax, dropout apart.
GPT2: Mapping[str, Any] = {"activation_function": "gelu_new", "vocab_size": 50257}
CONFIGURATIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bert_large": (
        "bert",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
            "is_decoder": True,
        },
    ),
    "gpt2_large": ("gpt2", {**GPT2, "n_embd": 1280, "n_head": 20, "n_layer": 36}),
    "gpt2_med": ("gpt2", {**GPT2, "n_embd": 1024, "n_head": 16, "n_layer": 24}),
    "gpt2_xl": ("gpt2", {**GPT2, "n_embd": 1600, "n_head": 25, "n_layer": 48}),
    "gpt3_xl": ("gpt2", {**GPT2, "n_embd": 3072, "n_head": 24, "n_layer": 24}),
    "gpt3_27": ("gpt2", {**GPT2, "n_embd": 2560, "n_head": 32, "n_layer": 32}),
    "opt_13": (
        "opt",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "ffn_dim": 8192,
            "word_embed_proj_dim": 2048,
            "vocab_size": 50272,
            "attention_dropout": 0.0,
            "dropout": 0.1,
        },
    ),
}


def language_model(
    name: str, batch: int, length: int, layers: int = 0, training: bool = True
) -> tuple[nn.Module, dict[str, Any]]:
    """A model that returns its logits, and token ids for it.

    Args:
        name: One of `CONFIGURATIONS`.
        batch: Sequences.
        length: Tokens of each.
        layers: Of them; 0: as many as it has.
        training: With dropout. BERT is a classifier else, as its published inference was.
    """
    import transformers

    kind, fields = CONFIGURATIONS[name]
    attention = "eager"
    if kind == "opt":
        attention = "of_2022"
        transformers.AttentionInterface.register(attention, attention_of_2022)
        mask = transformers.masking_utils.eager_mask
        transformers.AttentionMaskInterface.register(attention, mask)
    if kind == "gpt2":
        fields = {**fields, "n_positions": length}
    if layers:
        fields = {
            **fields,
            "n_layer" if kind == "gpt2" else "num_hidden_layers": layers,
        }
    config = transformers.AutoConfig.for_model(
        kind, attn_implementation=attention, use_cache=False, **fields
    )
    how = transformers.AutoModelForCausalLM
    if kind == "bert" and not training:
        config.is_decoder, how = False, transformers.AutoModelForSequenceClassification
    model = how.from_config(config, attn_implementation=attention)
    return model.train(training), {
        "input_ids": torch.zeros(batch, length, dtype=torch.long)
    }


def attention_of_2022(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float = 1.0,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """OPT's eager attention as transformers had it when the steps were measured.

    Beside what it does now it took the maximum of the scores and the least float.
    """
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    scores = torch.max(scores, torch.full((), torch.finfo(scores.dtype).min))
    weights = nn.functional.softmax(scores, dim=-1)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


@cache
def captured(
    name: str, batch: int, length: int, forward_only: bool = False, layers: int = 0
) -> Program:
    """A model's step under fake tensors: forward, and backward of the sum of its logits.

    A forward pass alone is that of a model that is not trained.
    """
    spec = f"{__name__}:language_model?name={name}&batch={batch}&length={length}"
    spec += f"&layers={layers}&training={not forward_only}"
    return capture_model(
        spec, options=CaptureOptions(forward_only=forward_only), fake=True
    )
