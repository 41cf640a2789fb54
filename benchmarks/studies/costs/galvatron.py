"""Galvatron's memory profiles against the formulas of ``costs.memory``: bytes of one layer more.

The profiles (PKU-DAIR/Hetu-Galvatron, Apache-2.0) are of eight GPUs, mixed bfloat16 with Adam and
ZeRO-3 over the replicas. What a second layer adds to activations and to model states is compared;
nothing is fitted. A layer has 12 h^2 parameters, or 4 h^2 + 3 h f where its feed-forward is gated.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from gnnplace.costs.memory import MEBI, state_bytes, transformer_activations


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
    text = (files("benchmarks.studies.costs") / "galvatron.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def layer_rows() -> list[LayerRow]:
    """All published layers with their predictions."""
    return [_row(profile, *row) for profile in data()["profiles"] for row in profile["rows"]]


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
    held = state_bytes(parameters / ways, precision="bf16-mixed", zero=3, replicas=replicas)
    return LayerRow(
        profile["name"], ways, bool(shared), positions, batch,
        activations, MEBI * kept, held, MEBI * state,
    )  # fmt: skip
