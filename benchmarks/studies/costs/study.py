"""`study costs`: predictions against published steps, promised errors against found ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.studies.costs.layers import LayerTimes, layer_times
from benchmarks.studies.costs.left_out import (
    GPU,
    OP,
    POINT,
    Trial,
    gpus_left_out,
    ops_left_out,
    points_left_out,
)
from benchmarks.studies.costs.provenance import SourceRow, source_rows
from benchmarks.studies.costs.steps import (
    NetworkRow,
    StepRow,
    language_rows,
    network_rows,
)
from gnnplace.costs.tables import load_shipped_tables
from gnnplace.files import write_text

Say = Callable[[str], None]
SAILOR = "benchmarks.studies.costs.sailor"  # pipelines on several GPUs


@dataclass(frozen=True, eq=False)
class CostStudy:
    """What was found.

    Attributes:
        steps: Of language models, with all tables.
        unseen: The same without rows of the steps' own shapes.
        networks: Convolutional ones.
        trials: Promised and found errors, by what was left out.
        pipelines: Steps of several GPUs, as `benchmarks.studies.costs.sailor` makes them.
        sources: Where times of ops are from, by model.
        layers: Of a transformer on seven kinds of GPUs.
    """

    steps: list[StepRow]
    unseen: list[StepRow]
    networks: list[NetworkRow]
    trials: dict[str, list[Trial]]
    pipelines: list[Any]
    sources: list[SourceRow] = field(default_factory=list)
    layers: list[LayerTimes] = field(default_factory=list)


def study_costs(
    output: str | Path | None = None, *, progress: Say = lambda line: None
) -> CostStudy:
    """Compares predicted times with published ones; nothing is fitted to what is compared.

    Args:
        output: Folder for `costs.md` and its pictures; nothing is written without one.
        progress: Called with a line before each model.

    Returns:
        All rows. A run takes three minutes of one core, most of it to capture 71 models.
    """
    tables = load_shipped_tables()
    steps = language_rows(progress, unseen=False)
    unseen = language_rows(progress, unseen=True)
    networks = network_rows(progress)
    progress("leaving points, GPUs and ops out of the tables")
    trials = {
        POINT: list(points_left_out(tables)),
        GPU: list(gpus_left_out(tables.rows)),
        OP: list(ops_left_out(tables.rows)),
    }
    study = CostStudy(
        steps,
        unseen,
        networks,
        trials,
        _pipelines(),
        source_rows(progress),
        layer_times(),
    )
    if output is not None:
        write_study(study, Path(output))
    return study


def _pipelines() -> list[Any]:
    if find_spec(SAILOR) is None:
        return []
    from importlib import import_module

    return list(import_module(SAILOR).rows())


def write_study(study: CostStudy, folder: Path) -> None:
    """Writes `costs.md` and its pictures."""
    from benchmarks.studies.costs.report import network_picture, page, step_picture
    from gnnplace.report.pictures import write_picture

    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "costs.md", page(study))
    write_picture(folder / "costs-steps.svg", step_picture(study))
    write_picture(folder / "costs-networks.svg", network_picture(study))
