"""One cell and its row: what is run, by whom and in whichever process.

A ``Task`` is a cell with all that running it needs, as plain data, so that it can be handed to
another process or machine (``workers``). ``run_task`` is the only code that runs cells.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

from gnnplace.bench.kinds import Loaded, described, load, outcome
from gnnplace.bench.rows import now, provenance
from gnnplace.bench.suite import Cell, ProblemEntry, SuiteFile
from gnnplace.errors import GnnplaceError

Row = dict[str, Any]
Begun = Callable[[Row], None]


class CellTimeoutError(GnnplaceError):
    """A cell took longer than the suite allows."""


@dataclass(frozen=True)
class Task:
    """A cell of a suite that is to be run.

    Attributes:
        suite: name of the suite.
        kind: of the suite.
        mode: of executions.
        timeout: seconds that the cell may take.
        folder: files of the problem are relative to it.
        cell: what to run.
    """

    suite: str
    kind: str
    mode: str
    timeout: float
    folder: str
    cell: Cell

    @property
    def row(self) -> Row:
        """The row of the cell before anything is known."""
        row: Row = {"suite": self.suite, **self.cell.identity(), "when": now()}
        empty = {"step_time": None, "lower_bound": None, "feasible": False}
        return row | empty | {"seconds": 0.0, "error": ""}

    def to_json(self) -> str:
        """One line of JSON."""
        entry = self.cell.problem.model_dump(mode="json", exclude_unset=True)
        data = {**vars(self), "cell": {**vars(self.cell), "problem": entry}}
        return json.dumps(data)

    @staticmethod
    def from_json(text: str) -> Task:
        """What ``to_json`` wrote."""
        data = json.loads(text)
        entry = ProblemEntry.model_validate(data["cell"]["problem"])
        return Task(**{**data, "cell": Cell(**{**data["cell"], "problem": entry})})


def tasks_of(suite: SuiteFile, todo: list[Cell], folder: Path) -> list[Task]:
    """Tasks of cells of a suite whose files are relative to ``folder``."""
    where = str(folder.resolve())
    about = (suite.name, suite.kind, suite.mode, suite.timeout, where)
    return [Task(*about, cell) for cell in todo]


def run_task(task: Task, begun: Begun | None = None) -> Row:
    """One row: the outcome of a cell, whatever it is.

    Its seconds are all that the placer took from the problem in memory on, search space included.

    Args:
        task: what to run.
        begun: called with the problem's part of the row once that is in memory.
    """
    row = task.row
    begin = time.perf_counter()
    try:
        problem = _loaded(task.kind, task.cell.problem.model_dump_json(), task.folder)
        if isinstance(problem, GnnplaceError):
            raise problem
        row |= described(task.cell.problem, problem)
        if begun is not None:
            begun(row)
        begin = time.perf_counter()
        with time_limit(task.timeout):
            found = outcome(task.cell, problem, task.mode)
        row |= {"seconds": time.perf_counter() - begin} | found
    except GnnplaceError as caught:
        seconds = time.perf_counter() - begin
        row |= {"seconds": seconds, "error": str(caught) or type(caught).__name__}
    return row | provenance()


@lru_cache(maxsize=1)
def _loaded(kind: str, entry: str, folder: str) -> Loaded | GnnplaceError:
    """A problem, loaded once for all its cells in turn; or why it cannot be."""
    try:
        return load(kind, ProblemEntry.model_validate_json(entry), Path(folder))
    except GnnplaceError as error:
        return error


def failed(task: Task, known: Row | None, seconds: float, error: str) -> Row:
    """The row of a cell that its process could not report.

    Args:
        task: what was run.
        known: what the process had told.
        seconds: since it began.
        error: what happened.
    """
    return {**(known or task.row), "seconds": seconds, "error": error} | provenance()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises ``CellTimeoutError`` after ``seconds``, in the main thread; no limit in others."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise CellTimeoutError(f"timed out after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
