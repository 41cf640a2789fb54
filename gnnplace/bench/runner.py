"""Runs suites: every cell once, resumable, failures and time-outs are rows too.

Cells run wherever ``workers`` says; the rows come back here and are written by this process alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from gnnplace.bench.cells import list_tasks, read_digests
from gnnplace.bench.kinds import check_name
from gnnplace.bench.rows import (
    append,
    identity,
    read_rows,
    results_file,
    set_aside,
    sole_writer,
)
from gnnplace.bench.suite import Cell, ProblemEntry, SuiteFile, cells, read_suite
from gnnplace.bench.summary import print_standings
from gnnplace.bench.workers import (
    Runner,
    Say,
    run_cells_here,
    run_cells_in_processes,
    run_cells_on_dask,
)
from gnnplace.errors import InputError

MAX_ROUNDS = 3  # The most rounds of cells whose problems changed while others ran
KEPT = "kept"  # folder of problems and placements


@dataclass(frozen=True)
class Where:
    """The place where cells run: by default, this process.

    Attributes:
        processes: Worker processes; 0 for none.
        dask: Address of a Dask scheduler.
        keep: Problems and placements are kept too, in a folder beside the rows.
    """

    processes: int = 0
    dask: str = ""
    keep: bool = False

    def __post_init__(self) -> None:
        if self.processes and self.dask:
            raise InputError("--processes, --dask: give one of them")

    def runner(self, suite: SuiteFile, say: Say) -> Runner:
        """Return the runner of a suite's cells.

        ``say`` is called with lines while kernels are compiled.

        Raises:
            InputError: A negative number of processes, or no scheduler.
        """
        warmed = [*suite.constructions, *suite.placers]
        if self.dask:
            return run_cells_on_dask(self.dask, warmed)
        if self.processes:
            return run_cells_in_processes(self.processes, warmed, say)
        return run_cells_here(warmed, say)


@dataclass(frozen=True)
class Override:
    """Settings that replace a suite's own in one run. Empty or None: the suite's.

    Attributes:
        placers: Run instead of the suite's placers and constructions.
        budgets: Seconds; with ``steps`` alone there are none.
        steps: Budgets in simulated steps; with ``budgets`` alone there are none.
        seeds: The seeds of the placers.
        part: (k, n): the k-th of n parts of the problems, from 1, so that n processes can share.
        accept_other_loss: Models' batches are cut also where that changes the loss.
    """

    placers: tuple[str, ...] = ()
    budgets: tuple[float, ...] = ()
    steps: tuple[int, ...] = ()
    seeds: tuple[int, ...] = ()
    part: tuple[int, int] | None = None
    accept_other_loss: bool = False

    def __post_init__(self) -> None:
        if self.part is not None and not 1 <= self.part[0] <= self.part[1]:
            raise InputError(
                f"part {self.part[0]}/{self.part[1]}: give K/N with 1 <= K <= N"
            )

    def apply(self, suite: SuiteFile) -> SuiteFile:
        """Return the suite with what is given here."""
        changed: dict[str, Any] = {}
        if self.placers:
            methods = {
                name: method
                for name, method in suite.methods.items()
                if name in self.placers
            }
            changed |= {
                "placers": list(self.placers),
                "constructions": [],
                "methods": methods,
            }
        if self.budgets or self.steps:
            changed |= {"budgets": list(self.budgets), "steps": list(self.steps)}
        if self.seeds:
            changed["seeds"] = list(self.seeds)
        if self.budgets or self.steps or self.seeds:
            changed["methods"] = {}
        if self.part is not None:
            first, step = self.part
            changed["problems"] = suite.problems[first - 1 :: step]
        if self.accept_other_loss:
            problems = changed.get("problems", suite.problems)
            changed["problems"] = [_accepting(entry) for entry in problems]
        return suite.model_copy(update=changed)


def _accepting(entry: ProblemEntry) -> ProblemEntry:
    """Return an entry of a model with leave to cut it although its loss changes.

    Other entries are returned as they are.
    """
    cut = entry.model is not None and entry.microbatches > 1
    if cut:
        return entry.model_copy(update={"accept_other_loss": True})
    return entry


def run_suite(
    path: str,
    folder: str,
    out: Console,
    say: Say,
    override: Override | None = None,
    location: Where | None = None,
) -> int:
    """Run what is missing of a suite and print the summary.

    Args:
        path: Suite file.
        folder: Results; a part's rows are in a file of their own.
        out: Where the summary goes.
        say: Called with a line of progress a cell.
        override: What to run instead of what the suite says.
        location: Where cells run. By default, in this process.

    Returns:
        0, also when cells failed: A failure is a row.

    Raises:
        FormatError: The suite or a results file is malformed.
        InputError: A placer is unknown, there is nowhere to run, or another run writes these rows.
    """
    override = override or Override()
    location = location or Where()
    suite = override.apply(read_suite(path))
    _check_names(path, suite)
    rows_path = results_file(folder, suite.title, override.part)
    with sole_writer(rows_path):
        _run_missing(suite, rows_path, Path(path).parent, location, say)
    print_standings(read_rows(rows_path), out)
    return 0


def _run_missing(
    suite: SuiteFile, rows_path: Path, folder: Path, location: Where, say: Say
) -> None:
    """Run the cells that have no row of their problem as it is now, and write a row each."""
    _set_changed_aside(suite, rows_path, read_digests(suite, folder), say)
    for _ in range(MAX_ROUNDS):
        missing = _missing_cells(suite, rows_path)
        digests = _run_cells(suite, missing, rows_path, folder, location, say)
        # Problems that are loaded only to be run may say something else than when older rows ran.
        if not _set_changed_aside(suite, rows_path, digests, say):
            return


def _missing_cells(suite: SuiteFile, rows_path: Path) -> list[Cell]:
    complete = {identity(row) for row in read_rows(rows_path)}
    return [
        cell for cell in cells(suite) if tuple(cell.identity().values()) not in complete
    ]


def _run_cells(
    suite: SuiteFile,
    missing: list[Cell],
    rows_path: Path,
    folder: Path,
    location: Where,
    say: Say,
) -> dict[str, str]:
    """Run cells and append their rows. Return the digest of each of their problems, by key."""
    run = location.runner(suite, say)
    if location.keep:
        keep = str((rows_path.parent / KEPT).resolve())
    else:
        keep = ""
    tasks = list_tasks(suite, missing, folder, keep)
    num_done = len(cells(suite)) - len(missing)
    say(
        f"{suite.title}: {len(missing)} cells to run, {num_done} rows already in {rows_path}"
    )
    digests = {}
    for number, row in enumerate(run(tasks), 1):
        append(rows_path, row)
        if row.get("digest"):
            digests[row["problem"]] = row["digest"]
        outcome = row["error"]
        if row["feasible"]:
            outcome = f"{row['step_time']:.6g} s ({row.get('clock')})"
        end = f"{outcome}, found in {row['seconds']:.3g} s"
        say(f"{number}/{len(missing)} {row['problem']}: {row['placer']} {end}")
    return digests


def _set_changed_aside(
    suite: SuiteFile, rows_path: Path, digests: dict[str, str], say: Say
) -> bool:
    """Set rows aside whose problem says something else now. Return whether there were any.

    Args:
        suite: The suite whose rows they are.
        rows_path: The file of rows.
        digests: Digests of problems as they are now, by key.
        say: Is called with a line for each problem that changed.
    """
    changed = [
        row
        for row in read_rows(rows_path)
        if row.get("digest")
        and digests.get(row["problem"], row["digest"]) != row["digest"]
    ]
    if not changed:
        return False
    aside = set_aside(rows_path, changed)
    for problem in dict.fromkeys(row["problem"] for row in changed):
        rows = [row for row in changed if row["problem"] == problem]
        say(
            f"{suite.title}: {problem} has changed since {len(rows)} of its rows were made (digest "
            f"{rows[0]['digest']}, now {digests[problem]}): they are in {aside}, and run again"
        )
    return True


def _check_names(path: str, suite: SuiteFile) -> None:
    for name in (*suite.constructions, *suite.placers):
        try:
            check_name(suite.kind, name)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
