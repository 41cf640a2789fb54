"""Fifteen families of transformers, by a plan, a compiled loop and Lightning beside plain PyTorch.

They are ordinary models: none is refused. Sizes are small, dropout is off.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gnnplace.zoo.hf import hugging_face
from tests.campaign.random_models import BATCH, Drawn
from tests.campaign.test_differential import in_double
from tests.campaign.test_roads import DOUBLE_ROUNDING, ROUNDING, gone

LENGTH, WORDS, LAYERS = 8, 32, 3
SIZES = {
    "hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "vocab_size": WORDS,
}  # fmt: skip
GATED = {"intermediate_size": 32, "num_key_value_heads": 2}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "vocab_size": WORDS,
      "dropout_rate": 0.0}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {**SIZES, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "llama": {**SIZES, **GATED},
    "mistral": {**SIZES, **GATED},
    "qwen2": {**SIZES, **GATED},
    "qwen3": {**SIZES, **GATED, "head_dim": 8},
    "gemma": {**SIZES, **GATED, "head_dim": 8},
    "phi": {**SIZES, **GATED},
    "gpt_neox": {**SIZES, "intermediate_size": 32},
    "opt": {**SIZES, "ffn_dim": 32, "word_embed_proj_dim": 16, "dropout": 0.0},
    "mixtral": {**SIZES, **GATED, "num_local_experts": 4},
    "bert": {**SIZES, **STILL, "intermediate_size": 32},
    "roberta": {**SIZES, **STILL, "intermediate_size": 32},
    "electra": {**SIZES, **STILL, "intermediate_size": 32, "embedding_size": 16},
    "t5": T5,
    "vit": {"hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": 2,
            "intermediate_size": 32, "image_size": 16, "patch_size": 8},
}  # fmt: skip
QUICK = ("llama", "recomputed")
CASES = [
    pytest.param(
        name, road, marks=() if (name, road) == QUICK else pytest.mark.campaign
    )
    for name in FAMILIES
    for road in ("recomputed", "compile", "Lightning")
]


class Scores(nn.Module):
    """What a model's head gives for words or images."""

    def __init__(self, model: nn.Module, known: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.known = model, known

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.model(**dict.fromkeys(self.known, x)).logits
        return scores.movedim(-1, 1)  # classes where cross_entropy has them


def of_family(name: str) -> Drawn:
    torch.manual_seed(0)
    work = hugging_face(name, batch=BATCH, length=LENGTH, **FAMILIES[name])
    known = {"vit": ("pixel_values",), "t5": ("input_ids", "decoder_input_ids")}
    model = Scores(work.model, known.get(name, ("input_ids",)))
    x = torch.randint(0, WORDS, (BATCH, LENGTH))
    if name == "vit":
        x = torch.randn(BATCH, 3, 16, 16)
    _, classes, *places = model(x).shape
    targets = torch.randint(0, classes, (BATCH, *places))
    return Drawn(model, (x, targets), functional.cross_entropy, [name], half=False)


@pytest.mark.parametrize(("name", "road"), CASES)
def test_a_family_is_trained_as_pytorch_trains_it(
    name: str, road: str, counted: Callable[[str, int], None]
) -> None:
    """Whole models, captured and run by workers: 2 to 8 s."""
    warnings.simplefilter("ignore")
    differs = gone(0, road, lambda seed: of_family(name), ROUNDING)
    if differs:
        differs = gone(
            0, road, lambda seed: in_double(of_family(name)), DOUBLE_ROUNDING
        )
    assert not differs
    counted(f"families, {road}: equal", 1)
