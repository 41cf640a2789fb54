"""One cell and its row: the task as plain data, and the code that runs it in any process.

A ``CellTask`` is a cell with all that running it needs, as plain data, so that it can be handed to
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

from gnnplace.bench.exposure import find_row_family
from gnnplace.bench.kinds import Loaded, load, training
from gnnplace.bench.rows import format_now, provenance
from gnnplace.bench.suite import Cell, ProblemEntry, SuiteFile
from gnnplace.errors import GnnplaceError
from gnnplace.policy import Exhibit
from gnnplace.problem import compute_graph_digest

Row = dict[str, Any]
Begun = Callable[[Row], None]


class CellTimeoutError(GnnplaceError):
    """A cell took longer than the suite allows."""


@dataclass(frozen=True)
class CellTask:
    """A cell of a suite that is to be run.

    Attributes:
        suite: Name and version of the suite.
        kind: The kind of the suite.
        mode: The mode of executions.
        timeout: Seconds that the cell may take.
        folder: Files of the problem are relative to it.
        cell: What to run.
        keep: Folder for problems and placements; empty: none are kept.
    """

    suite: str
    kind: str
    mode: str
    timeout: float
    folder: str
    cell: Cell
    keep: str = ""

    @property
    def row(self) -> Row:
        """Return the row of the cell before anything is known."""
        row: Row = {"suite": self.suite, **self.cell.identity(), "when": format_now()}
        empty = {"step_time": None, "lower_bound": None, "feasible": False}
        return row | empty | {"seconds": 0.0, "error": ""}

    def to_json(self) -> str:
        """Return the task as one line of JSON."""
        entry = self.cell.problem.model_dump(mode="json", exclude_unset=True)
        data = {**vars(self), "cell": {**vars(self.cell), "problem": entry}}
        return json.dumps(data)

    @staticmethod
    def from_json(text: str) -> CellTask:
        """Return the task that ``to_json`` wrote."""
        data = json.loads(text)
        entry = ProblemEntry.model_validate(data["cell"]["problem"])
        return CellTask(**{**data, "cell": Cell(**{**data["cell"], "problem": entry})})


def list_tasks(
    suite: SuiteFile, todo: list[Cell], folder: Path, keep: str = ""
) -> list[CellTask]:
    """Return tasks of cells of a suite whose files are relative to ``folder``."""
    base_folder = str(folder.resolve())
    about = (suite.title, suite.kind, suite.mode, suite.timeout, base_folder)
    return [CellTask(*about, cell, keep) for cell in todo]


def run_task(task: CellTask, begun: Begun | None = None) -> Row:
    """Run a cell and return its row, whatever the outcome.

    Its seconds are all that the placer took from the problem in memory on, search space included.

    Args:
        task: What to run.
        begun: Called with the problem's part of the row once that is in memory.
    """
    row = task.row
    begin = time.perf_counter()
    processor = time.process_time()
    try:
        entry = task.cell.problem
        text = entry.model_dump_json()
        changed = _get_change_time(entry, task.folder)
        problem = _load_once(task.kind, text, task.folder, changed)
        if isinstance(problem, GnnplaceError):
            raise problem
        row |= problem.described(entry)
        row |= exposure_columns(task, row.get("digest", ""))
        if begun is not None:
            begun(row)
        begin = time.perf_counter()
        processor = time.process_time()
        with time_limit(task.timeout):
            outcome = problem.outcome(task.cell, task.mode, task.keep)
        row |= {"processor_seconds": time.process_time() - processor, **outcome}
    except Exception as caught:
        # Whatever a user's placer raises becomes its row.
        spent = {
            "seconds": time.perf_counter() - begin,
            "processor_seconds": time.process_time() - processor,
        }
        row |= spent | {"error": _describe_error(caught)}
    return row | provenance()


def exposure_columns(task: CellTask, digest: str) -> Row:
    """Return the columns that say what a placer was trained on and whether it saw the problem.

    Args:
        task: The cell.
        digest: The digest of its problem.
    """
    entry = task.cell.problem
    training_of_placer = training(task.kind, task.cell.placer)
    graph = _find_captured_digest(entry.model_dump_json(), task.folder)
    family = find_row_family(entry.key, entry.labels["family"])
    columns = training_of_placer.make_seen_columns(Exhibit(digest, graph, family))
    return {"graph": graph, **training_of_placer.columns(), **columns}


@lru_cache(maxsize=64)
def _find_captured_digest(entry: str, folder: str) -> str:
    """Return the digest of the captured graph of a suite's entry; empty if it has none."""
    graph = ProblemEntry.model_validate_json(entry).find_captured_graph(Path(folder))
    if graph is None:
        return ""
    return compute_graph_digest(graph.graph)


def _describe_error(caught: Exception) -> str:
    """Return one line for an error, with its class if nobody raised it on purpose."""
    line = (str(caught).splitlines() or [""])[0]
    if isinstance(caught, GnnplaceError) and line:
        return line
    if line:
        return f"{type(caught).__name__}: {line}"
    return type(caught).__name__


def _get_change_time(entry: ProblemEntry, folder: str) -> int:
    """Return when the problem's file was last changed, in ns, or 0 without a file.

    Workers live longer than files.
    """
    path = Path(folder) / (entry.file or entry.profile or "")
    if path.is_file():
        return path.stat().st_mtime_ns
    return 0


@lru_cache(maxsize=1)
def _load_once(
    kind: str, entry: str, folder: str, changed: int
) -> Loaded | GnnplaceError:
    """Return a problem, loaded once for all its cells in turn, or the error that prevents it."""
    try:
        return load(kind, ProblemEntry.model_validate_json(entry), Path(folder))
    except GnnplaceError as error:
        return error


def read_digests(suite: SuiteFile, folder: Path) -> dict[str, str]:
    """Return the digests of those of a suite's problems that files hold, by key.

    Others are made by seeds and code; their digests are known when they are loaded to be run.

    Args:
        suite: The suite whose problems are read.
        folder: Files of the problems are relative to it.
    """
    digests = {}
    absolute_folder = str(folder.resolve())
    for entry in suite.problems:
        if entry.file is None and entry.profile is None:
            continue
        changed = _get_change_time(entry, absolute_folder)
        problem = _load_once(
            suite.kind, entry.model_dump_json(), absolute_folder, changed
        )
        if not isinstance(problem, GnnplaceError):
            digests[entry.key] = problem.described(entry).get("digest", "")
    return digests


def make_failed_row(
    task: CellTask, known: Row | None, seconds: float, error: str
) -> Row:
    """Return the row of a cell that its process could not report.

    Args:
        task: What was run.
        known: What the process had told.
        seconds: Since it began.
        error: What happened.
    """
    return {**(known or task.row), "seconds": seconds, "error": error} | provenance()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise ``CellTimeoutError`` after ``seconds``, in the main thread; no limit in others."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise CellTimeoutError(f"timed out after {seconds:g} s")

    previous_handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)
