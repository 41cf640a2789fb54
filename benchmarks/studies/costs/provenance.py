"""Where times of ops are from: counts of ops by provenance, of the zoo and of ten models of
Hugging Face at their full size, as `gnnplace profile` prices them for a kind of GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.studies.costs.steps import mean_error
from gnnplace.costs.prediction import PROVENANCES
from gnnplace.costs.profiling.estimation import estimate_times
from gnnplace.tracing.models import capture_model
from gnnplace.zoo.workload import list_workload_names

KIND = "h100"
HUGGING_FACE = (
    "gpt2", "bert", "llama", "t5", "opt", "roberta", "vit", "qwen2", "bart", "electra",
)  # fmt: skip


@dataclass(frozen=True)
class SourceRow:
    """A model's training step.

    Attributes:
        model: As `gnnplace profile` takes it.
        ops: Number of ATen ops, views among them.
        views: Number of views, which launch nothing.
        counts: Number of the other ops by provenance.
        shares: Of the time, by provenance.
        without: Number of ops without a time, a source or an error.
        error: Promised, of the step.
    """

    model: str
    ops: int
    views: int
    counts: dict[str, int]
    shares: dict[str, float]
    without: int
    error: float


def source_rows(progress: Callable[[str], None], kind: str = KIND) -> list[SourceRow]:
    """Every model of the zoo, then those of Hugging Face with one example."""
    rows = []
    for model in (
        *list_workload_names(),
        *(f"hf:{name}?batch=1" for name in HUGGING_FACE),
    ):
        progress(f"where times of {model} are from")
        rows.append(source_row(model, kind))
    return rows


def source_row(model: str, kind: str = KIND) -> SourceRow:
    """One model."""
    program = capture_model(model, fake=True)
    times = estimate_times(program, kind)
    views = sum(op.view for op in program.ops)
    kernels = len(program.ops) - views
    known = np.isfinite(times.seconds) & np.isfinite(times.error)
    sourced = np.array([bool(source) for source in times.source])
    return SourceRow(
        model,
        len(program.ops),
        views,
        {name: round(times.shares[name][1] * kernels) for name in PROVENANCES},
        {name: times.shares[name][0] for name in PROVENANCES},
        int(np.sum(~(known & sourced))),
        mean_error(times),
    )


def table_rows(rows: list[SourceRow]) -> Iterator[list[str]]:
    """Cells of the report."""
    for row in rows:
        counts = [
            f"{row.counts[name]} ({row.shares[name]:.0%})" for name in PROVENANCES
        ]
        yield [row.model, f"{row.ops}", f"{row.views}", *counts, f"{row.without}",
               f"±{row.error:.0%}"]  # fmt: skip
