"""Runs suites: every cell once, resumable, failures and time-outs are rows too."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from rich.console import Console

from gnnplace import api
from gnnplace.bench.rows import append, digest, identity, now, provenance, read_rows, results_file
from gnnplace.bench.suite import Cell, ProblemEntry, SuiteFile, cells, read_suite
from gnnplace.bench.summary import print_standings
from gnnplace.best import placer_names
from gnnplace.errors import GnnplaceError, InputError
from gnnplace.placers import Result
from gnnplace.problem import Problem

Say = Callable[[str], None]


class CellTimeoutError(GnnplaceError):
    """A cell took longer than the suite allows."""


@dataclass(frozen=True)
class Override:
    """What replaces a suite's own for one run; empty or None: as the suite says.

    Attributes:
        placers: run instead of the suite's placers and constructions.
        budgets: seconds.
        seeds: of the placers.
        part: (k, n): the k-th of n parts of the problems, from 1, so that n processes can share.
    """

    placers: tuple[str, ...] = ()
    budgets: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    part: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.part is not None and not 1 <= self.part[0] <= self.part[1]:
            raise InputError(f"part {self.part[0]}/{self.part[1]}: give K/N with 1 <= K <= N")

    def apply(self, suite: SuiteFile) -> SuiteFile:
        """The suite with what is given here."""
        changed: dict[str, Any] = {}
        if self.placers:
            changed |= {"placers": list(self.placers), "constructions": []}
        if self.budgets:
            changed["budgets"] = list(self.budgets)
        if self.seeds:
            changed["seeds"] = list(self.seeds)
        if self.part is not None:
            first, step = self.part
            changed["problems"] = suite.problems[first - 1 :: step]
        return suite.model_copy(update=changed)


def run_suite(
    path: str, folder: str, out: Console, say: Say, override: Override | None = None
) -> int:
    """Runs what is missing of a suite and prints the summary.

    Args:
        path: suite file.
        folder: results; a part's rows are in a file of their own.
        out: where the summary goes.
        say: called with a line of progress a cell.
        override: what to run instead of what the suite says.

    Returns:
        0, also when cells failed: a failure is a row.

    Raises:
        FormatError: a malformed suite or results file.
        InputError: an unknown placer.
    """
    override = override or Override()
    suite = override.apply(read_suite(path))
    names = [*suite.constructions, *suite.placers]
    unknown = [name for name in names if name not in placer_names()]
    if unknown:
        raise InputError(f"{path}: placers: {unknown[0]!r} is unknown; {', '.join(placer_names())}")
    rows_path = results_file(folder, suite.name, override.part)
    done = {identity(row) for row in read_rows(rows_path)}
    todo = [c for c in cells(suite) if tuple(c.identity().values()) not in done]
    say(f"{suite.name}: {len(todo)} cells to run, {len(done)} rows already in {rows_path}")
    for number, row in enumerate(_run_cells(suite, todo, Path(path).parent), 1):
        append(rows_path, row)
        say(f"{number}/{len(todo)} {row['problem']}: {row['placer']} {_outcome(row)}")
    print_standings(read_rows(rows_path), out)
    return 0


def _outcome(row: dict[str, Any]) -> str:
    return row["error"] or f"{row['step_time']:.6g} s (predicted), found in {row['seconds']:.3g} s"


def _run_cells(suite: SuiteFile, todo: list[Cell], folder: Path) -> Iterator[dict[str, Any]]:
    """Rows of the cells; a problem is loaded once for all its cells."""
    loaded: tuple[ProblemEntry, Problem | GnnplaceError] | None = None
    if todo:  # no cell's seconds contain compilation
        api.warm([*suite.constructions, *suite.placers])
    for cell in todo:
        if loaded is None or loaded[0] is not cell.problem:
            loaded = (cell.problem, _load(cell.problem, folder))
        yield run_cell(suite, cell, loaded[1])


def _load(entry: ProblemEntry, folder: Path) -> Problem | GnnplaceError:
    try:
        return entry.load(folder)
    except GnnplaceError as error:
        return error


def run_cell(suite: SuiteFile, cell: Cell, problem: Problem | GnnplaceError) -> dict[str, Any]:
    """One row: the outcome of a cell, whatever it is.

    Its seconds are all that the placer took from the problem in memory on, search space included.
    """
    row: dict[str, Any] = {"suite": suite.name, **cell.identity(), "when": now()}
    row |= {"step_time": None, "lower_bound": None, "feasible": False, "seconds": 0.0, "error": ""}
    begin = time.perf_counter()
    try:
        if isinstance(problem, GnnplaceError):
            raise problem
        row |= _described(cell.problem, problem)
        one = anew(problem)
        begin = time.perf_counter()
        with time_limit(suite.timeout):
            result = api.place(one, placer=cell.placer, budget=cell.budget, seed=cell.seed)
        row |= _placed(result)
    except GnnplaceError as caught:
        row["error"] = str(caught) or type(caught).__name__
    return row | {"seconds": time.perf_counter() - begin} | provenance()


def anew(problem: Problem) -> Problem:
    """The same problem without what earlier placers have derived from it and left there."""
    return replace(problem, graph=replace(problem.graph), cluster=replace(problem.cluster))


def _placed(result: Result) -> dict[str, Any]:
    return {
        "step_time": result.step_time,
        "lower_bound": result.lower_bound,
        "feasible": True,
        "peak_memory": result.peak_memory.tolist(),
        "note": result.note,
    }


def _described(entry: ProblemEntry, problem: Problem) -> dict[str, Any]:
    return {
        "num_ops": problem.num_ops,
        "num_devices": problem.num_devices,
        "microbatches": problem.microbatches,
        "seen": entry.seen,
        "digest": digest(problem),
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
