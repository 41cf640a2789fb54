"""Published training steps beside what the tables make of a capture of the same model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks.studies.costs.cnns import __name__ as cnns
from benchmarks.studies.costs.models import captured
from gnnplace.costs.floors import EAGER
from gnnplace.costs.profiling.description import describe
from gnnplace.costs.profiling.estimation import KindTimes, estimate_times
from gnnplace.costs.rows import SHORTEST, Rows
from gnnplace.costs.tables import CostTables, load_shipped_tables
from gnnplace.files import read_json
from gnnplace.problem.cluster.gpus import get_figures
from gnnplace.tracing.models import capture_model
from gnnplace.tracing.program.program import BACKWARD, FORWARD, UPDATE, Program

PUBLISHED = Path(__file__).parent / "published.json"
IMAGE = 4 * 3 * 224 * 224  # bytes of an image of the convolutional networks
# Bytes a second of a copy to a GPU from pageable memory: assumed, half of what PCIe 3.0 x16 attains
# from pinned memory, since the driver copies it into that first.
PAGEABLE = 6e9
SPLITS = 20  # random halves of the networks that a GPU's one factor is fitted on
Say = Callable[[str], None]


@dataclass(frozen=True)
class StepRow:
    """A published step of a language model; seconds.

    Attributes:
        gpu: Kind.
        model: As `models.CONFIGURATIONS` has it.
        batch: Sequences.
        length: Tokens of each.
        forward: Predicted.
        backward: Predicted.
        measured_forward: Published.
        measured_backward: Published.
        sound: Whether the published forward pass is.
        error: Promised, of the whole step.
        unseen: Whether shapes of the step were taken out of the tables.
    """

    gpu: str
    model: str
    batch: int
    length: int
    forward: float
    backward: float
    measured_forward: float
    measured_backward: float
    sound: bool
    error: float
    unseen: bool

    @property
    def backward_off(self) -> float:
        """Predicted over measured, less 1."""
        return self.backward / self.measured_backward - 1

    @property
    def both_off(self) -> float:
        """Of forward and backward together."""
        measured = self.measured_forward + self.measured_backward
        return (self.forward + self.backward) / measured - 1


@dataclass(frozen=True)
class NetworkRow:
    """A published step of a convolutional network; seconds."""

    gpu: str
    network: str
    predicted: float
    measured: float
    error: float

    @property
    def off(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Agreement:
    """Networks of one GPU.

    Attributes:
        gpu: Kind.
        networks: How many.
        off: Mean relative error, nothing fitted.
        fitted: The same of one half of them with a factor fitted on the other, mean of splits.
        factor: Measured over predicted, geometric mean.
        rank: Spearman's correlation.
    """

    gpu: str
    networks: int
    off: float
    fitted: float
    factor: float
    rank: float


def published() -> dict[str, Any]:
    """The steps that ship with the study, with their sources."""
    data: dict[str, Any] = read_json(PUBLISHED)
    return data


def language_rows(
    progress: Say, *, unseen: bool, tables: CostTables | None = None
) -> list[StepRow]:
    """The published steps of language models.

    Args:
        progress: Called with a line for each model.
        unseen: Take every row whose sizes are an op's of the step out of the tables first.
        tables: Those that are shipped by default.
    """
    rows = []
    for entry in published()["steps"]["rows"]:
        progress(f"{entry['model']}, batch {entry['batch']}, on {entry['gpu']}")
        program = captured(entry["model"], entry["batch"], entry["length"])
        mine = tables or load_shipped_tables()
        if unseen:
            mine = without_shapes(mine, describe(program).rows)
        times = estimate_times(program, entry["gpu"], mine)
        forward, backward = (
            phase_seconds(program, times, p) for p in (FORWARD, BACKWARD)
        )
        rows.append(
            StepRow(
                gpu=entry["gpu"],
                model=entry["model"],
                batch=entry["batch"],
                length=entry["length"],
                forward=forward,
                backward=backward,
                measured_forward=entry["forward"],
                measured_backward=entry["backward"],
                sound=entry["sound"],
                error=mean_error(times),
                unseen=unseen,
            )
        )
    return rows


def phase_seconds(program: Program, times: KindTimes, phase: str) -> float:
    """Sum of a phase's ops."""
    chosen = np.array([op.phase == phase for op in program.ops])
    return float(times.seconds[chosen].sum())


def mean_error(times: KindTimes) -> float:
    """Of a whole step: errors of one table go together, so they are averaged by time."""
    return float(np.average(times.error, weights=times.seconds))


def without_shapes(tables: CostTables, seen: Rows) -> CostTables:
    """The tables without every row that has an op's name, sizes and bytes, or its transposes'."""
    shapes = {
        _shape(sizes, moved)
        for sizes, moved in zip(seen.sizes, seen.bytes, strict=True)
    }
    kept = {}
    for kind, rows in tables.rows.items():
        mine = zip(rows.sizes, rows.bytes, strict=True)
        kept[kind] = rows.take(np.array([_shape(s, b) not in shapes for s, b in mine]))
    return CostTables(kept, tables.errors, tables.user_errors)


def _shape(sizes: np.ndarray[Any, Any], moved: float) -> tuple[float, ...]:
    """Products by batch and sorted m, n, k; vectors by their size, whoever reads how much of it."""
    batch, m, n, k = sizes[:4]
    if k > 1:
        return (batch, *sorted((m, n, k)))
    return (0.0, m * n)


def network_rows(progress: Say, tables: CostTables | None = None) -> list[NetworkRow]:
    """The published steps of convolutional networks."""
    entries = published()["networks"]
    rows = []
    for name in dict.fromkeys(
        name for mine in entries["rows"].values() for name in mine
    ):
        progress(name)
        program = _network(name, entries["batch"])
        for gpu, measured in entries["rows"].items():
            if name in measured:
                times = estimate_times(program, gpu.partition(",")[0], tables)
                before = zeroing(program, gpu.partition(",")[0])
                if gpu in entries["copied"]:
                    before += entries["batch"] * IMAGE / PAGEABLE
                seconds = before + float(times.seconds.sum())
                rows.append(
                    NetworkRow(gpu, name, seconds, measured[name], mean_error(times))
                )
    return rows


def zeroing(program: Program, kind: str) -> float:
    """Seconds of setting all gradients to zero before a step, on an idle GPU.

    `zero_grad` did so until PyTorch 2.0, by an op for each parameter that Python calls.
    """
    sizes = [
        program.values[op.reads[0]].bytes for op in program.ops if op.phase == UPDATE
    ]
    kernel = SHORTEST + EAGER.gap + np.array(sizes) / get_figures(kind).bandwidth
    return float(np.maximum(kernel, EAGER.forward).sum())


@cache
def _network(name: str, batch: int) -> Program:
    return capture_model(f"{cnns}:network?name={name}&batch={batch}", fake=True)


def agreements(rows: list[NetworkRow]) -> Iterator[Agreement]:
    """By GPU."""
    for gpu in dict.fromkeys(row.gpu for row in rows):
        mine = [row for row in rows if row.gpu == gpu]
        predicted = np.array([row.predicted for row in mine])
        measured = np.array([row.measured for row in mine])
        log = np.log(measured / predicted)
        yield Agreement(
            gpu,
            len(mine),
            float(np.abs(predicted / measured - 1).mean()),
            _fitted(log),
            float(np.exp(log.mean())),
            float(spearmanr(predicted, measured)[0]),
        )


def _fitted(log: np.ndarray[Any, Any]) -> float:
    """Mean relative error of halves with a factor of the other halves."""
    off = []
    for seed in range(SPLITS):
        order = np.random.default_rng(seed).permutation(len(log))
        one, other = order[: len(log) // 2], order[len(log) // 2 :]
        off.append(np.abs(np.expm1(np.median(log[one]) - log[other])).mean())
    return float(np.mean(off))
