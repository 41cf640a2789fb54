"""Galvatron's memory profiles against formulas: bytes of one layer more.

The profiles (PKU-DAIR/Hetu-Galvatron, Apache-2.0) are of eight GPUs, mixed bfloat16 with Adam and
ZeRO-3 over the replicas. What a second layer adds to activations and to model states is compared;
nothing is fitted. A layer has 12 h^2 parameters, or 4 h^2 + 3 h f where its feed-forward is gated.

Activations of a transformer layer kept for the backward pass (Korthikanti et al., 2022, arXiv
2205.05198, section 4.1; half precision, s positions, b examples, h hidden, a heads, t-way tensor
parallel)::

    s b h (10 + 24 / t)                    attention whose scores are not kept (flash)
    s b h (10 + 24 / t + 5 a s / (h t))    attention whose scores are kept

with double the bytes of all but dropout masks in float32. Of the 24, 8 are attention's and 16 the
feed-forward's of width 4 h: 4 f / h of width f, and 8 f / h where it is gated (four values of that
width are kept: both products, the activation, their product). Without dropout 10 is 8. Galvatron's
profiles of GPT (hidden 2560 and 4096, t from 1 to 8) are the first
line, to 0.4 % (hidden 1600: 3 to 9 % too little), those of BERT the second, and those of Llama and
Baichuan with fused norms the gated one, to 0.5 %. Norms that Hugging Face's models compute in
float32 keep their input and what they multiply by their weight in it, 8 bytes an element more for
each of a layer's two, on every GPU.
Where the positions are shared out too (sequence parallel), call it with s / t positions and t = 1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from gnnplace.costs.memory import state_terms
from gnnplace.errors import InputError

MEBI = 2**20


@dataclass(frozen=True)
class LayerRow:
    """What a layer adds on a GPU, in bytes.

    Attributes:
        profile: its name in the source.
        tensor_parallel: t.
        sequence_parallel: whether the positions are shared out too.
        positions: of an example.
        batch: examples of a micro-batch.
        activations: predicted.
        published_activations: measured.
        state: predicted.
        published_state: measured.
    """

    profile: str
    tensor_parallel: int
    sequence_parallel: bool
    positions: int
    batch: float
    activations: float
    published_activations: float
    state: float
    published_state: float

    @property
    def error(self) -> float:
        """Predicted over published activations, less one."""
        return self.activations / self.published_activations - 1.0

    @property
    def state_error(self) -> float:
        """Predicted over published states, less one."""
        return self.state / self.published_state - 1.0


@cache
def data() -> dict[str, Any]:
    """The file of published rows."""
    text = (files("benchmarks.studies.costs") / "galvatron.json").read_text(
        encoding="utf-8"
    )
    return dict(json.loads(text))


def layer_rows() -> list[LayerRow]:
    """All published layers with their predictions."""
    return [
        _row(profile, *row) for profile in data()["profiles"] for row in profile["rows"]
    ]


def _row(
    profile: dict[str, Any], ways: int, replicas: int, shared: int, positions: int, batch: float,
    kept: float, state: float,
) -> LayerRow:  # fmt: skip
    hidden, layer = profile["hidden"], profile["layer"]
    width = layer.get("feed_forward", 4 * hidden)
    parameters = 4 * hidden**2 + (3 if layer["gated"] else 2) * hidden * width
    length, split = (positions / ways, 1) if shared else (positions, ways)
    activations = transformer_activations(
        hidden, length, batch, heads=profile["heads"], tensor_parallel=split, **layer
    )
    held = state_terms(
        parameters / ways, precision="bf16-mixed", zero=3, replicas=replicas
    ).total
    return LayerRow(
        profile["name"], ways, bool(shared), positions, batch,
        activations, MEBI * kept, held, MEBI * state,
    )  # fmt: skip


def transformer_activations(
    hidden: int,
    sequence: float,
    batch: float,
    *,
    heads: int,
    tensor_parallel: int = 1,
    feed_forward: int | None = None,
    gated: bool = False,
    dropout: bool = True,
    keeps_scores: bool = False,
    float32_norms: bool = False,
    float32: bool = False,
) -> float:
    """Bytes that a transformer layer keeps for its backward pass, on each GPU.

    Args:
        hidden: h.
        sequence: s.
        batch: b, examples of a micro-batch.
        heads: a.
        tensor_parallel: t.
        feed_forward: f; 4 h by default.
        gated: whether the feed-forward is gated, as Llama's.
        dropout: whether masks of dropout are kept.
        keeps_scores: whether attention keeps its scores, their softmax and its dropout mask.
        float32_norms: whether norms compute in float32 where the rest is half as wide.
        float32: whether values are float32, instead of half as wide.

    Raises:
        InputError: a number that is not positive.
    """
    if min(hidden, sequence, batch, heads, tensor_parallel) <= 0:
        raise InputError("transformer_activations: all sizes must be positive")
    t = tensor_parallel
    wide = 2 if float32 else 1
    width = 4.0 if feed_forward is None else feed_forward / hidden
    # Masks of dropout, one byte an element: two of 10, and one of 5 for the scores.
    whole = 2 * dropout + 8 * wide + (16 if float32_norms and not float32 else 0)
    split = (8 + (8 if gated else 4) * width) * wide
    scores = dropout + 4 * wide
    per_element = whole + split / t
    if keeps_scores:
        per_element += scores * heads * sequence / (hidden * t)
    return sequence * batch * hidden * per_element
