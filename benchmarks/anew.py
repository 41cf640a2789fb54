"""All suites anew, from a clean commit: says first what that takes, goes on where it stopped.

    python -m benchmarks.anew                        # processor hours of what is left to run
    python -m benchmarks.anew --run -o runs/anew     # runs what is left, then writes tables
    python -m benchmarks.anew --take -o runs/anew    # complete ones replace the committed rows

Hours are those of the committed rows of a suite (`benchmarks/results/SUITE`), by method and budget,
captures apart; of a method without rows its budget. Trainings are no suite. A checkout with changes
is refused: no commit would have the code of its rows.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from jsonargparse import ArgumentParser

from gnnplace.bench.rows import SECONDS, STEPS, identity, read_rows, results_file
from gnnplace.bench.runner import run_suite
from gnnplace.bench.suite import cells, read_suite
from gnnplace.bench.summary import SummaryOptions, summarise
from gnnplace.cli.console import console, say
from gnnplace.errors import GnnplaceError, InputError

HERE = Path(__file__).parent
SUITES, RESULTS = HERE / "suites", HERE / "results"
STEP = 2e-4  # seconds that a simulated step takes


@dataclass(frozen=True)
class Left:
    """What is left of a suite: its cells without a row, of how many, and seconds of a processor."""

    suite: str
    rows: Path
    cells: int
    of: int
    seconds: float


def left_of(path: Path, folder: Path) -> Left:
    """What is left of a suite whose rows go to a folder of its own in `folder`."""
    suite = read_suite(path)
    rows = results_file(folder / suite.name, suite.title)
    done = {identity(row) for row in read_rows(rows)} if rows.is_file() else set()
    every = cells(suite)
    todo = [cell for cell in every if tuple(cell.identity().values()) not in done]
    known = seconds_of(suite.name)
    seconds = sum(
        known.get((cell.placer, cell.budget), cell.budget)
        for cell in todo
        if cell.unit == SECONDS
    )
    seconds += STEP * sum(cell.budget for cell in todo if cell.unit == STEPS)
    return Left(suite.name, rows, len(todo), len(every), seconds)


def seconds_of(suite: str) -> dict[tuple[str, float], float]:
    """Mean seconds of the committed rows of a suite, by method and budget."""
    found: dict[tuple[str, float], list[float]] = defaultdict(list)
    for path in (RESULTS / suite).glob("*.jsonl"):
        for row in read_rows(path):
            spent = row.get("processor_seconds", row["seconds"])
            found[row["placer"], row["budget"]].append(float(spent))
    return {who: fmean(seconds) for who, seconds in found.items()}


def check_clean() -> None:
    """Refuses a checkout whose code no commit has.

    Raises:
        InputError: naming the first file that was changed.
    """
    told = [
        "git",
        "-C",
        str(HERE.parent),
        "status",
        "--porcelain",
        "--untracked-files=no",
    ]
    changed = subprocess.run(
        told, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    if changed:
        raise InputError(
            f"anew: {changed[0][3:]} has changes that no commit has; commit them first"
        )


def take(left: Left) -> None:
    """Puts the rows and tables of a complete suite where the committed ones are.

    Raises:
        InputError: cells have no row yet.
    """
    if left.cells:
        raise InputError(
            f"anew: {left.suite}: {left.cells} of {left.of} cells have no row yet"
        )
    target = RESULTS / left.suite
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(
        left.rows.parent, target, ignore=shutil.ignore_patterns("kept", "*.lock")
    )


def run(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = ArgumentParser(
        description="Runs all suites anew, and says first what that takes."
    )
    parser.add_argument("suites", nargs="*", help="Names of suites; all by default.")
    parser.add_argument("--run", action="store_true", help="Run what is left.")
    parser.add_argument(
        "--take", action="store_true", help="Replace the committed rows."
    )
    parser.add_argument(
        "-o", "--output", default="runs/anew", help="The folder of new rows."
    )
    args: Any = parser.parse_args(argv)
    names = args.suites or sorted(path.stem for path in SUITES.glob("*.yaml"))
    try:
        if unknown := [
            name for name in names if not (SUITES / f"{name}.yaml").is_file()
        ]:
            raise InputError(f"anew: suite {unknown[0]!r}: there is none in {SUITES}")
        found = [left_of(SUITES / f"{name}.yaml", Path(args.output)) for name in names]
        for one in found:
            told = f"{one.seconds / 3600:6.2f} processor hours"
            print(
                f"{one.suite:12} {one.cells:5} of {one.of:5} cells to run, {told}",
                flush=True,
            )
        print(
            f"{'all':12} {sum(one.seconds for one in found) / 3600:.2f} processor hours",
            flush=True,
        )
        if args.run:
            check_clean()
            for one in found:
                made = one.rows.parent
                run_suite(str(SUITES / f"{one.suite}.yaml"), str(made), console(), say)
                summarise([str(one.rows)], console(), SummaryOptions(folder=str(made)))
        if args.take:
            for name in names:
                take(left_of(SUITES / f"{name}.yaml", Path(args.output)))
    except GnnplaceError as error:
        print(f"{error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(run())
