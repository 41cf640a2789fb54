"""Sorts the problems of suites into easy and hard ones: writes ``results/difficulty.md``.

    python -m benchmarks.difficulty

A problem is *easy* if it is closed: the best known step is within ``CLOSED`` of a lower bound. It
is *hard* if it is open: nobody knows whether a shorter step exists (the sorting of FrontierCO, Feng
et al., 2025). Best known steps are those of ``best_known.json``, of committed rows and of
submissions; bounds are the general ones that rows have, without what ``exact`` proves of its model.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.submissions import RANKED, RESULTS, submission_files
from gnnplace.bench.rows import read_rows
from gnnplace.bench.standings import (
    BestKnown,
    ProblemId,
    highest_bounds,
    is_closed,
    merge_best_known,
    problem_id,
    read_best_known,
)
from gnnplace.bench.submissions import read_submission
from gnnplace.files import write_text

HERE = Path(__file__).parent
Row = Mapping[str, Any]
SORTED = (*RANKED, "pipedream", "dnn-partitioning")
"""Suites that are sorted; the last two are ranked by nobody, since their files are collected."""
PAGE = """# Easy and hard problems

Written by `python -m benchmarks.difficulty`. **Easy** problems are closed: the best known step is
within 1 % of a lower bound. **Hard** ones are open. *Gap* is the best known step over the bound.
The [leaderboard](../../docs/leaderboard.md) has the hard problems in a table of their own.
"""


def suite_rows(name: str, submitted: Sequence[Row]) -> list[Row]:
    """Return the rows of a suite's present version, committed and submitted ones."""
    rows: list[Row] = [
        row
        for path in sorted((RESULTS / name).glob("*.jsonl"))
        for row in read_rows(path)
    ]
    return rows + [
        row for row in submitted if str(row["suite"]).partition("@")[0] == name
    ]


def lines_of(
    rows: Iterable[Row], best: Mapping[ProblemId, BestKnown]
) -> tuple[dict[bool, int], list[str]]:
    """Return how many problems are closed and open, and a line of each, the widest gap first."""
    rows = list(rows)
    bounds = highest_bounds(rows)
    names = {problem_id(row): row["problem"] for row in rows}
    counts: dict[bool, int] = defaultdict(int)
    lines = []
    for problem, bound in bounds.items():
        step = best[problem].step_time
        closed = is_closed(step, bound)
        counts[closed] += 1
        cells = [
            names[problem],
            "easy" if closed else "hard",
            f"{step:.6g}",
            f"{bound:.6g}",
        ]
        lines.append(
            (step / bound, f"| {' | '.join(cells)} | {step / bound - 1:.2%} |")
        )
    return counts, [line for _, line in sorted(lines, reverse=True)]


def main() -> int:
    """Write the page."""
    submitted = [row for path in submission_files() for row in read_submission(path)]
    known = read_best_known(HERE / "best_known.json")
    summary = ["| suite | problems | easy | hard |", "|---|---:|---:|---:|"]
    sections = []
    for name in SORTED:
        rows = suite_rows(name, submitted)
        if not rows:
            continue
        counts, lines = lines_of(rows, merge_best_known(known, rows))
        summary.append(
            f"| `{name}` | {len(lines)} | {counts[True]} | {counts[False]} |"
        )
        head = ["| problem | it is | best known, s | lower bound, s | gap |"]
        sections += [f"## {name}", "", *head, "|---|---|---:|---:|---:|", *lines, ""]
    write_text(RESULTS / "difficulty.md", "\n".join([PAGE, *summary, "", *sections]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
