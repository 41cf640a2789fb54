"""Small GPT-2, BERT and ViT from Hugging Face configurations, sized for one CPU core."""

from __future__ import annotations

from typing import Any

from gnnplace.zoo.hf import hugging_face
from gnnplace.zoo.workload import Workload


def gpt2(
    batch: int = 4,
    length: int = 64,
    layers: int = 4,
    width: int = 256,
    heads: int = 4,
    vocabulary: int = 2000,
    dropout: float = 0.0,
) -> Workload:
    """Build GPT-2 (Radford et al., 2019) with its language-modelling loss.

    Args:
        batch: Texts in a step.
        length: Words of a text.
        layers: Transformer blocks.
        width: The width of the representation.
        heads: The number of heads of attention.
        vocabulary: Words; embedding and head share this table.
        dropout: Probability.
    """
    fields = {
        "n_layer": layers,
        "n_embd": width,
        "n_head": heads,
        "vocab_size": vocabulary,
    }
    drops = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    special = {"bos_token_id": 0, "eos_token_id": 0, "n_positions": max(length, 64)}
    return hugging_face("gpt2", batch, length, **fields, **drops, **special)


def bert(
    batch: int = 4,
    length: int = 64,
    layers: int = 4,
    width: int = 256,
    heads: int = 4,
    vocabulary: int = 2000,
    dropout: float = 0.0,
) -> Workload:
    """Build BERT (Devlin et al., NAACL 2019) with its masked-word loss.

    Args:
        batch: Texts in a step.
        length: Words of a text.
        layers: Transformer blocks.
        width: The width of the representation.
        heads: The number of heads of attention.
        vocabulary: Words.
        dropout: Probability.
    """
    fields = _encoder_fields(layers, width, heads, dropout)
    return hugging_face("bert", batch, length, vocab_size=vocabulary, **fields)


def vit(
    batch: int = 4,
    size: int = 64,
    patch: int = 8,
    layers: int = 4,
    width: int = 256,
    heads: int = 4,
    dropout: float = 0.0,
) -> Workload:
    """Build ViT (Dosovitskiy et al., ICLR 2021) with a classification loss.

    Args:
        batch: Images in a step.
        size: Height and width of an image.
        patch: Height and width of a patch.
        layers: Transformer blocks.
        width: The width of the representation.
        heads: The number of heads of attention.
        dropout: Probability.
    """
    fields = _encoder_fields(layers, width, heads, dropout)
    return hugging_face("vit", batch, image_size=size, patch_size=patch, **fields)


def _encoder_fields(
    layers: int, width: int, heads: int, dropout: float
) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
