"""How far the lower bounds are below the shortest steps found: before, as rows say, and now.

Takes the rows of a suite's run: of each problem whose digest is still the same the shortest
feasible step and the general bound that its rows were written with, and computes the bounds anew.
Means of the gap (step over bound, minus one) with one batch and with micro-batches, which bound
binds how often, and CPU seconds. A bound above a step that was found is an error.

    python benchmarks/bounds.py SUITE.yaml ROWS.jsonl [SUITE.yaml ROWS.jsonl ...] > table.md
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gnnplace.bench.rows import read_rows
from gnnplace.bench.suite import read_suite
from gnnplace.placers.contract import training_chain
from gnnplace.problem import compute_digest
from gnnplace.simulation import LowerBounds, lower_bounds

PROVEN = 1e-3  # Gap that counts as none.


class Figure(NamedTuple):
    """One problem: seconds of the step and of both bounds, and CPU seconds of the new ones."""

    key: str
    cut: bool
    step: float
    before: float
    bounds: LowerBounds
    seconds: float


def figures(suite: str, rows: str) -> Iterator[Figure]:
    """Figures of all problems that the rows are of."""
    solved: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in read_rows(Path(rows)):
        if row["feasible"]:
            solved[row["problem"], row["digest"]].append(row)
    for entry in read_suite(suite).problems:
        problem = entry.load()
        known = solved.get((entry.key, compute_digest(problem)), [])
        if not known:
            continue
        begin = time.process_time()
        bounds = lower_bounds(problem)
        seconds = time.process_time() - begin
        step = min(row["step_time"] for row in known)
        before = min(
            row["lower_bound"] for row in known
        )  # What `exact` proves is not general.
        cut = problem.microbatches > 1
        yield Figure(entry.key, cut, step, before, bounds, seconds)


def line(name: str, found: list[Figure]) -> str:
    """A line of the table."""
    before = np.array([figure.step / figure.before - 1 for figure in found])
    now = np.array([figure.step / figure.bounds.best - 1 for figure in found])
    binding = Counter(figure.bounds.binding for figure in found)
    cells = [
        name,
        str(len(found)),
        f"{before.mean():.1%}",
        f"{now.mean():.1%}",
        f"{np.median(before):.1%}",
        f"{np.median(now):.1%}",
        f"{(before < PROVEN).sum()}",
        f"{(now < PROVEN).sum()}",
        ", ".join(f"{what} {count}" for what, count in binding.most_common()),
        f"{max(figure.seconds for figure in found):.3f}",
    ]
    return f"| {' | '.join(cells)} |"


def main(files: list[str]) -> None:
    """Prints a Markdown table, and every problem below it."""
    lower_bounds(training_chain())  # Compiles what is not compiled yet.
    print(
        "| suite | problems | mean gap before | now | median before | now | no gap before | now ",
        end="",
    )
    print("| which binds | most CPU s |")
    print("|---|" + "---:|" * 7 + "---|---:|")
    every: list[Figure] = []
    for suite, rows in zip(files[::2], files[1::2], strict=True):
        found = list(figures(suite, rows))
        every += found
        for cut, name in ((False, "M = 1"), (True, "M > 1")):
            some = [figure for figure in found if figure.cut is cut]
            if some:
                print(line(f"{Path(suite).stem}, {name}", some), flush=True)
    above = [
        figure.key for figure in every if figure.bounds.best > figure.step * (1 + 1e-9)
    ]
    if above:
        raise SystemExit(f"a bound is above a step that was found: {above[0]}")
    print("\n| problem | step, s | bound before | bound now | gap before | gap now |")
    print("|---|---:|---:|---:|---:|---:|")
    for f in every:
        gaps = f"{f.step / f.before - 1:.1%} | {f.step / f.bounds.best - 1:.1%}"
        print(
            f"| {f.key} | {f.step:.6g} | {f.before:.6g} | {f.bounds.best:.6g} | {gaps} |"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
