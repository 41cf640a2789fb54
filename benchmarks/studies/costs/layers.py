"""A layer of OPT-350M on seven kinds of GPUs, three of them without tables: Sailor's profiles.

Sailor (eth-easl/sailor, MIT) profiled forward and backward of Megatron's layers in float32, with
TF32 where a GPU has it (its README of A100's rate). The layer here is Megatron's: pre-norm, scale,
mask and softmax in one kernel. Of two layers in a row the second is priced; nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from benchmarks.studies.costs.sailor_data import data
from gnnplace.costs.profiling.estimation import estimate_times
from gnnplace.tracing.models import capture_model
from gnnplace.tracing.program.program import BACKWARD, FORWARD

HIDDEN, HEADS, POSITIONS = 1024, 16, 2048


class Layer(nn.Module):
    """Pre-norm; its softmax stands for the fused one of scaled, masked scores."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.heads, self.joined = (
            nn.Linear(HIDDEN, 3 * HIDDEN),
            nn.Linear(HIDDEN, HIDDEN),
        )
        self.up, self.down = (
            nn.Linear(HIDDEN, 4 * HIDDEN),
            nn.Linear(4 * HIDDEN, HIDDEN),
        )
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of values [batch, positions, hidden]."""
        batch, length, _ = x.shape
        split = self.heads(self.before(x)).view(
            batch, length, 3, HEADS, HIDDEN // HEADS
        )
        several = split.permute(2, 0, 3, 1, 4).reshape(
            3, batch * HEADS, length, HIDDEN // HEADS
        )
        query, key, value = several.unbind(0)
        weights = self.drop(torch.softmax(torch.bmm(query, key.transpose(1, 2)), -1))
        found = torch.bmm(weights, value).view(batch, HEADS, length, -1).transpose(1, 2)
        x = x + self.drop(self.joined(found.reshape(batch, length, HIDDEN)))
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.between(x)))))


def two_layers(batch: int) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Two layers, and values for them."""
    return nn.Sequential(Layer(), Layer()), (torch.zeros(batch, POSITIONS, HIDDEN),)


@dataclass(frozen=True)
class LayerTimes:
    """A layer on a GPU; seconds.

    Attributes:
        gpu: Kind.
        batch: Examples of a micro-batch.
        forward: Predicted.
        backward: Predicted.
        measured_forward: Published.
        measured_backward: Published.
    """

    gpu: str
    batch: int
    forward: float
    backward: float
    measured_forward: float
    measured_backward: float

    @property
    def off(self) -> float:
        """Both passes, predicted over measured, less 1."""
        measured = self.measured_forward + self.measured_backward
        return (self.forward + self.backward) / measured - 1


def layer_times() -> list[LayerTimes]:
    """All published layers with their predictions."""
    batches = sorted({int(size) for mine in data()["layers"].values() for size in mine})
    return [row for batch in batches for row in _of_batch(batch)]


def _of_batch(batch: int) -> Iterator[LayerTimes]:
    program = capture_model(f"{__name__}:two_layers?batch={batch}", fake=True)
    second = np.array([(op.module or "").startswith("1") for op in program.ops])
    phase = np.array([op.phase for op in program.ops])
    for gpu, mine in data()["layers"].items():
        if str(batch) in mine:
            with tf32():
                seconds = estimate_times(program, gpu).seconds
            ahead, back = (
                float(seconds[second & (phase == name)].sum())
                for name in (FORWARD, BACKWARD)
            )
            yield LayerTimes(gpu, batch, ahead, back, *mine[str(batch)])


@contextmanager
def tf32() -> Iterator[None]:
    """Products of float32 may use TF32 inside."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
