"""The leaderboard: rows that anybody may submit, each with its placement, simulated anew.

    gnnplace bench pack results/rows.jsonl --by "Ada, 2026" --code URL -o FILE.jsonl.xz
    gnnplace bench check benchmarks/submissions/*.jsonl*
    python -m benchmarks.submissions board

Rows are those of ``gnnplace bench SUITE -o results --keep``, all of them: cells that failed are
rows too. ``check`` builds each problem from its suite, simulates each placement, refuses a row
whose digest, placement or step time is not what it says, and says of each method how much of its
suite it covers. ``board`` ranks what is complete and lists everything else with the reason. The
rows of this repository are submissions like anybody's (``gnnplace-*.jsonl.xz``); rows that were run
before placements were kept (``benchmarks/results``) are listed and not ranked.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser

from gnnplace.bench.headline import headline_grids
from gnnplace.bench.rows import read_rows
from gnnplace.bench.standings import (
    RIVAL,
    BestKnown,
    ProblemId,
    highest_bounds,
    is_closed,
    merge_best_known,
    problem_id,
    read_best_known,
    standings,
)
from gnnplace.bench.submissions import (
    Coverage,
    compute_coverage,
    method_name,
    read_submission,
)
from gnnplace.bench.summary import HELD_OUT, group_by_clock, select_unseen_rows
from gnnplace.bench.tables import find_budget_unit, standings_grid
from gnnplace.errors import GnnplaceError
from gnnplace.files import write_text
from gnnplace.report import TextTable, as_markdown, text_table

HERE = Path(__file__).parent
RESULTS, SUBMITTED = HERE / "results", HERE / "submissions"
RANKED = (
    "standard",
    "real",
    "large",
    "small",
    "whole",
    "by-ops",
    "scale",
    "smoke",
    "doppler",
)
OWN = "gnnplace"  # who submits the rows of this repository
HELD_OUT_NAMES = {
    "seen": "Without the problems that one of these has seen",
    "seen_block": "Without the blocks of similar graphs that one of these has seen",
}
PAGE = """# Leaderboard

Written by `python -m benchmarks.submissions board` from
[what was submitted](../benchmarks/submissions/README.md), the rows of this repository like
anybody's, and from older [committed rows](../benchmarks/results/README.md) that keep no placements.

**Ranked** is what is complete: a row for every problem and seed of the suite, failures too, each
with a placement that `check` simulates anew. Everything else stands below, with its coverage and
the reason. What counts, and how to get on the board: [protocol](protocol.md). A method has *seen* a
problem if its weights were trained or chosen on the problem, its graph or its family; tables stand
twice, with all problems and without those that a ranked method has seen.
"""
Row = Mapping[str, Any]
Best = Mapping[ProblemId, BestKnown]


def submission_files() -> list[Path]:
    """Return the files of committed submissions."""
    return sorted(path for path in SUBMITTED.iterdir() if ".jsonl" in path.name)


def board() -> str:
    """Return the leaderboard as Markdown: of every suite what is ranked, and below it the rest."""
    submitted = [row for path in submission_files() for row in read_submission(path)]
    text = [PAGE]
    for name in RANKED:
        own = [row for row in submitted if str(row["suite"]).partition("@")[0] == name]
        older: list[Row] = [
            row
            for path in sorted((RESULTS / name).glob("*.jsonl"))
            for row in read_rows(path)
        ]
        if own or older:
            text += [f"## {name}\n", *suite_lines(own, older)]
    text += headline_lines()
    return "\n".join(text).rstrip("\n") + "\n"


def suite_lines(submitted: Sequence[Row], older: Sequence[Row]) -> list[str]:
    """Return the tables of one suite.

    Args:
        submitted: Rows of submissions.
        older: Committed rows without placements; those of methods that are submitted are left out.
    """
    entries = compute_coverage(submitted)
    names = {(entry.placer, entry.budget, entry.unit) for entry in entries}
    entries += [
        entry
        for entry in compute_coverage(older)
        if (entry.placer, entry.budget, entry.unit) not in names
    ]
    best = merge_best_known(
        read_best_known(HERE / "best_known.json"), [*submitted, *older]
    )
    ranked = [
        {**row, "placer": entry.placer}
        for entry in entries
        if entry.ranked
        for row in entry.rows
    ]
    lines = []
    parts = group_by_clock(ranked)
    for title, rows in parts.items():
        if len(parts) > 1 and not any(row["budget"] for row in rows):
            continue  # constructions alone: they stand in the other table as well
        grid = _ranking(rows, best, f"{title}: step time over best known, predicted")
        lines += _table(grid)
        bounds = highest_bounds([*submitted, *older])
        hard = [row for row in rows if _is_open(row, best, bounds)]
        if hard and len(hard) < len(rows):
            count = len({row["problem"] for row in hard})
            lines += _table(
                _ranking(hard, best, f"Hard (open) problems alone: {count}")
            )
        previous = rows
        for column, what in HELD_OUT_NAMES.items():
            unseen = select_unseen_rows(rows, column)
            if unseen and len(unseen) < len(previous):
                count = len({row["problem"] for row in unseen})
                lines += _table(_ranking(unseen, best, f"{what}: {count} problems"))
                previous = unseen
    if not ranked:
        lines += ["Nothing is ranked.", ""]
    lines += [_best_known_line([*submitted, *older], submitted, best), ""]
    return lines + _unranked(entries, best)


def _is_open(row: Row, best: Best, bounds: Mapping[ProblemId, float]) -> bool:
    """Return whether nobody knows if the best known step of a row's problem can be shortened."""
    problem = problem_id(row)
    known = best.get(problem)
    return known is None or not is_closed(known.step_time, bounds.get(problem, 0.0))


def _best_known_line(rows: Sequence[Row], submitted: Sequence[Row], best: Best) -> str:
    """Return how many of the best known steps anybody can simulate anew."""
    problems = {problem_id(row) for row in rows if row["feasible"]}
    checked = {
        problem_id(row)
        for row in submitted
        if row["feasible"] and row["step_time"] <= best[problem_id(row)].step_time
    }
    text = f"Best known: {len(checked)} of {len(problems)} have a committed placement"
    if len(checked) < len(problems):
        text += "; the others are of rows that were run before placements were kept"
    return f"{text}."


def _ranking(rows: Sequence[Row], best: Best, title: str) -> TextTable:
    """Return the standings of complete methods, the best first, with what they are and cost."""
    grid = standings_grid(standings(rows, best), RIVAL, title, find_budget_unit(rows))
    first = {str(row["placer"]): row for row in rows}
    names = grid.shown().headings
    place = names.index("over best known")
    lines = sorted(grid.rows, key=lambda line: (line[place] == "-", line[place]))
    extra = []
    for line in lines:
        members = [row for row in rows if row["placer"] == line[0]]
        spent = [
            row.get("processor_seconds", 0.0)
            for row in members
            if _budget_of(line, row)
        ]
        seen = {row["problem"] for row in members if row.get("seen")}
        row = first[line[0]]
        hours = float(row.get("training_hours", 0.0))
        extra.append(
            [
                *line,
                f"{sum(spent) / max(len(spent), 1):.3g}",
                f"{row.get('parameters', 0):,}",
                f"{hours:.3g}" if hours else "-",
                f"{len(seen)} of {len({row['problem'] for row in members})}",
            ]
        )
    headings = (*names, "processor s", "parameters", "training h", "seen")
    return text_table(title, headings, extra)


def _budget_of(line: Sequence[str], row: Row) -> bool:
    """Return whether a row is of the budget that a line of standings is of."""
    return line[1].split()[0] == f"{row['budget']:g}"


def _unranked(entries: Sequence[Coverage], best: Best) -> list[str]:
    """Return the table of what is not ranked, with coverage and reasons."""
    rows = []
    for entry in entries:
        if entry.ranked:
            continue
        (standing,) = standings(
            [{**row, "placer": entry.placer} for row in entry.rows], best
        )
        ratio = "-" if standing.ratio is None else f"{standing.ratio.mean:.3f}"
        unit = "s" if entry.unit == "seconds" else entry.unit
        coverage = f"{len(entry.rows)} of {entry.cells}"
        cells = [entry.placer, f"{entry.budget:g} {unit}", ratio, coverage]
        rows.append([*cells, "; ".join(entry.reasons)])
    headings = ("placer", "budget", "over best known", "rows", "why it is not ranked")
    return _table(
        text_table("Not ranked", headings, sorted(rows, key=lambda cells: cells[2]))
    )


def _table(grid: TextTable) -> list[str]:
    """Return a table with its title as a line of text; nothing for one without lines."""
    if not grid.rows:
        return []
    return [f"{grid.title}:", "", as_markdown(grid)]


def headline_lines() -> list[str]:
    """Return the headline table, with all problems and without those that a method has seen.

    It is a comparison and no ranking: plans are priced, and have no placement to be simulated.
    """
    rows = [
        row
        for path in sorted((RESULTS / "headline").glob("*.jsonl"))
        for row in read_rows(path)
    ]
    named = [{**row, "placer": method_name(row)} for row in rows]
    lines = [
        "## headline\n",
        "Placements and plans of one step; no ranking, since plans are priced.\n",
    ]
    for column in ("", *HELD_OUT):
        shown = select_unseen_rows(named, column) if column else named
        if grids := headline_grids(shown):
            count = len({row["problem"] for row in shown})
            what = HELD_OUT_NAMES[column] if column else grids[0].title
            lines += _table(replace(grids[0], title=f"{what}: {count} problems"))
    return lines


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = ArgumentParser(description="Writes the leaderboard.", exit_on_error=True)
    parser.add_argument("what", choices=["board"])
    parser.add_argument("-o", "--output", default="", help="The file to write.")
    args = parser.parse_args(argv)
    try:
        write_text(args.output or HERE.parent / "docs" / "leaderboard.md", board())
    except GnnplaceError as error:
        print(f"submissions: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(run())
