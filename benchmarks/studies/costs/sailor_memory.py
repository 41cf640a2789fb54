"""Sailor's measured peaks of memory on GH200, and the fit of a formula to them.

Of every plan in ``sailor.json`` the fullest stage is predicted: 16 bytes of state a parameter
(float32 and Adam), and the activations of the micro-batches that 1F1B has in flight there (S - s of
S stages, at most all), in bytes that Sailor counts for each layer.

Two rows are left out: GPT-Neo-2.7B N4_D4, which is unsound (``sailor``), and N8_D2 of the same
model, whose peak is 24 % below that of N16_D4 with the same stages, micro-batch and micro-batches
in flight on each GPU.

What a GPU holds while ``allocated`` bytes are in tensors at the peak, its parameters included::

    held = PROCESS + (1 + SLACK) (allocated + 4 bytes a parameter)

SLACK is what the caching allocator keeps beyond what is in use. PROCESS is the CUDA context, loaded
kernels, and NCCL's buffers for groups of tensor, data and pipeline parallelism. The one copy more
is of gradients as they are reduced, or of the optimizer's temporaries. SLACK and PROCESS are fitted
to the peaks of 25 of Sailor's runs on GH200 (fp32, 1 to 64 servers): mean error 1.0 %, at most 3.4
%; fitted to OPT-350M alone, GPT-Neo-2.7B is predicted to 1.5 %, and the other way round to 2.0 %.
One run more is left out: its peak is 24 % below that of another with the same stages and micro-
batches on each GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.studies.costs.sailor_data import UNSOUND, data
from gnnplace.costs.memory import state_terms
from gnnplace.problem.cluster.headroom import PROCESS, SLACK

LEFT_OUT = {*UNSOUND, ("GPT-Neo-2.7", "N8_D2")}


@dataclass(frozen=True)
class MemoryRow:
    """A published peak and its prediction.

    Attributes:
        model: its name.
        plan: its name in the source.
        stages: parameters, and bytes of activations in flight, of each stage.
        predicted: bytes of the fullest GPU.
        published: bytes.
    """

    model: str
    plan: str
    stages: tuple[tuple[float, float], ...]
    predicted: float
    published: float

    @property
    def error(self) -> float:
        """Predicted over published bytes, less one."""
        return self.predicted / self.published - 1.0


def memory_rows() -> list[MemoryRow]:
    """The published peaks that can be relied on, with their predictions."""
    plans = [p for p in data()["plans"] if (p["model"], p["name"]) not in LEFT_OUT]
    return [_row(plan) for plan in plans]


def _row(plan: dict[str, Any]) -> MemoryRow:
    stages = tuple(_stages(plan))
    predicted = max(held_bytes(state_terms(n).total + kept, n) for n, kept in stages)
    return MemoryRow(plan["model"], plan["name"], stages, predicted, plan["memory"])


def _stages(plan: dict[str, Any]) -> list[tuple[float, float]]:
    model, size, count = (
        data()["models"][plan["model"]],
        plan["microbatch"],
        len(plan["layers"]),
    )
    microbatches = max(plan["batch"] // (size * plan["replicas"]), 1)
    found, first = [], 0
    for s, layers in enumerate(plan["layers"]):
        own = slice(first, first + layers)
        first += layers
        flying = min(count - s, microbatches)
        kept = flying * size * sum(model["activations"][own])
        found.append((float(sum(model["parameters"][own])), float(kept)))
    return found


def fit(rows: Sequence[MemoryRow]) -> tuple[float, float]:
    """SLACK and PROCESS by least squares of relative errors.

    Which stage is the fullest depends on neither: both are the same for all stages.
    """
    full = [
        max(state_terms(n).total + 4.0 * n + kept for n, kept in row.stages)
        for row in rows
    ]
    published = np.array([row.published for row in rows])
    design = np.stack([np.array(full), np.ones(len(rows))], axis=1) / published[:, None]
    (factor, process), *_ = np.linalg.lstsq(design, np.ones(len(rows)), rcond=None)
    return float(factor) - 1.0, float(process)


def held_bytes(allocated: float, parameters: float = 0.0) -> float:
    """Bytes that a GPU holds, as `nvidia-smi` counts them, of a training with NCCL.

    Args:
        allocated: bytes in tensors at the peak, with state.
        parameters: of which a copy more is made.
    """
    return PROCESS + (1.0 + SLACK) * (allocated + 4.0 * parameters)
