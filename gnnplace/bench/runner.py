"""Runs suites: every cell once, resumable, failures and time-outs are rows too."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from rich.console import Console

from gnnplace import api
from gnnplace.bench.rows import append, identity, now, provenance, read_rows, results_file
from gnnplace.bench.suite import Cell, ProblemEntry, SuiteFile, cells, read_suite
from gnnplace.bench.summary import summary_table
from gnnplace.best import placer_names
from gnnplace.errors import GnnplaceError, InputError
from gnnplace.placers import SearchSpace
from gnnplace.problem import Problem

Say = Callable[[str], None]


class CellTimeoutError(GnnplaceError):
    """A cell took longer than the suite allows."""


def run_suite(path: str, folder: str, out: Console, say: Say) -> int:
    """Runs what is missing of a suite and prints the summary.

    Returns:
        0, also when cells failed: a failure is a row.

    Raises:
        FormatError: a malformed suite or results file.
        InputError: an unknown placer.
    """
    suite = read_suite(path)
    unknown = [name for name in suite.placers if name not in placer_names()]
    if unknown:
        raise InputError(f"{path}: placers: {unknown[0]!r} is unknown; {', '.join(placer_names())}")
    rows_path = results_file(folder, suite.name)
    done = {identity(row) for row in read_rows(rows_path)}
    todo = [c for c in cells(suite) if tuple(c.identity().values()) not in done]
    say(f"{suite.name}: {len(todo)} cells to run, {len(done)} rows already in {rows_path}")
    for number, row in enumerate(_run_cells(suite, todo, Path(path).parent), 1):
        append(rows_path, row)
        say(f"{number}/{len(todo)} {row['problem']}: {row['placer']} {_outcome(row)}")
    out.print(summary_table(read_rows(rows_path), suite.name))
    return 0


def _outcome(row: dict[str, Any]) -> str:
    return row["error"] or f"{row['step_time']:.6g} s (predicted), found in {row['seconds']:.3g} s"


def _run_cells(suite: SuiteFile, todo: list[Cell], folder: Path) -> Iterator[dict[str, Any]]:
    """Rows of the cells; a problem is loaded once for all its cells."""
    loaded: tuple[ProblemEntry, SearchSpace | GnnplaceError] | None = None
    if todo:
        api.warm(suite.placers)  # no cell's seconds contain compilation
    for cell in todo:
        if loaded is None or loaded[0] is not cell.problem:
            loaded = (cell.problem, _load(cell.problem, folder))
        yield run_cell(suite, cell, loaded[1])


def _load(entry: ProblemEntry, folder: Path) -> SearchSpace | GnnplaceError:
    try:
        return SearchSpace(entry.load(folder))
    except GnnplaceError as error:
        return error


def run_cell(suite: SuiteFile, cell: Cell, space: SearchSpace | GnnplaceError) -> dict[str, Any]:
    """One row: the outcome of a cell, whatever it is."""
    begin = time.perf_counter()
    row: dict[str, Any] = {"suite": suite.name, **cell.identity(), "when": now()}
    outcome: dict[str, Any] = {"step_time": None, "lower_bound": None, "feasible": False}
    error = ""
    try:
        if isinstance(space, GnnplaceError):
            raise space
        with time_limit(suite.timeout):
            result = api.place(
                space.problem, placer=cell.placer, budget=cell.budget, seed=cell.seed, space=space
            )
        outcome = {
            "step_time": result.step_time,
            "lower_bound": result.lower_bound,
            "feasible": True,
            "peak_memory": result.peak_memory.tolist(),
            "note": result.note,
        }
    except GnnplaceError as caught:
        error = str(caught) or type(caught).__name__
    size = {} if isinstance(space, GnnplaceError) else _size(space.problem)
    seconds = time.perf_counter() - begin
    return row | outcome | size | {"seconds": seconds, "error": error} | provenance()


def _size(problem: Problem) -> dict[str, Any]:
    return {
        "num_ops": problem.num_ops,
        "num_devices": problem.num_devices,
        "estimated": float(np.mean(problem.estimated)),
        "clock": "predicted",
    }


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises ``CellTimeoutError`` in the main thread after ``seconds``."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise CellTimeoutError(f"timed out after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
