"""Rows that anybody may submit, each with its placement, so that the tests simulate it again.

    python -m benchmarks.submissions pack rows.jsonl --by "Ada, 2026" -o FILE.jsonl
    python -m benchmarks.submissions check benchmarks/submissions/*.jsonl
    python -m benchmarks.submissions board -o docs/leaderboard.md

A row is that of `gnnplace bench SUITE.yaml -o results --keep` with `by` (who, and where a paper or
code is) and `placement` (the file's content) instead of `kept`. `check` builds the problem from the
suite in `benchmarks/suites`, and refuses a row whose digest, placement or step time is not what it
says. `board` writes the leaderboard from the committed rows and from what was submitted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser

from gnnplace.bench.headline import headline_grids
from gnnplace.bench.rows import digest, read_rows
from gnnplace.bench.standings import RIVAL, merged, read_best_known, standings
from gnnplace.bench.suite import PLACE, read_suite
from gnnplace.bench.tables import standings_grid
from gnnplace.errors import GnnplaceError, InputError
from gnnplace.files import read_json, write_text
from gnnplace.problem import Problem
from gnnplace.problem.placement import placement_from_data
from gnnplace.simulation import simulate

HERE = Path(__file__).parent
SUITES, RESULTS, SUBMITTED = HERE / "suites", HERE / "results", HERE / "submissions"
RANKED = ("standard", "real", "large", "small", "whole", "by-ops", "scale", "smoke", "headline")
NEEDED = (
    "suite",
    "problem",
    "placer",
    "seed",
    "budget",
    "seconds",
    "step_time",
    "digest",
    "machine",
    "by",
    "placement",
)
EXACT = 1e-9  # relative: the simulator's arithmetic is the same everywhere
FEW = 12  # lines of a suite on the leaderboard
PAGE = """# Leaderboard

Written by `python -m benchmarks.submissions board` from the
[committed rows](../benchmarks/results/README.md) and from
[what was submitted](../benchmarks/submissions/README.md). What counts, and how to get on it:
[protocol](protocol.md). On busy machines budgets are worth less: see the seconds.
"""
Row = Mapping[str, Any]


def problem_of(row: Row, where: str) -> Problem:
    """The problem that a row names, from its suite.

    Raises:
        InputError: there is no such suite of that version, or no such problem in it.
    """
    name, _, version = str(row["suite"]).partition("@")
    path = SUITES / f"{name}.yaml"
    if not path.is_file():
        raise InputError(f"{where}: suite {name!r}: there is no {path.name} in {SUITES}")
    suite = read_suite(path)
    if suite.kind != PLACE or suite.version != int(version or 1):
        raise InputError(
            f"{where}: suite {row['suite']!r}: rows of {suite.title}, of kind place, are taken"
        )
    for entry in suite.problems:
        if entry.key == row["problem"]:
            return entry.load(SUITES)
    raise InputError(f"{where}: problem {row['problem']!r}: {suite.title} has no such problem")


def check_row(row: Row, where: str) -> None:
    """Simulates a submitted row again.

    Raises:
        InputError: what the row lacks, or what is otherwise than it says.
        FormatError: the placement is malformed, or of another problem.
    """
    if missing := [key for key in NEEDED if key not in row]:
        raise InputError(f"{where}: {missing[0]!r} is missing; `pack` writes it")
    problem = problem_of(row, where)
    if digest(problem) != row["digest"]:
        raise InputError(
            f"{where}: the problem's digest is {digest(problem)}, the row's {row['digest']}"
        )
    found = simulate(problem, placement_from_data(row["placement"], problem, where))
    if found.faults:
        raise InputError(f"{where}: infeasible: {found.faults[0]}")
    if abs(found.step_time - row["step_time"]) > EXACT * found.step_time:
        raise InputError(
            f"{where}: the step takes {found.step_time!r} s, the row says {row['step_time']!r}"
        )


def check(paths: Iterable[str | Path]) -> int:
    """Checks every row of files; returns how many there are."""
    count = 0
    for path in paths:
        for number, row in enumerate(read_rows(Path(path)), 1):
            check_row(row, f"{path}: line {number}")
            count += 1
    return count


def pack(path: Path, by: str) -> str:
    """Feasible rows of a run with `--keep`, as they are submitted: JSON lines.

    Raises:
        InputError: a row has no kept placement.
    """
    lines = []
    for row in read_rows(path):
        if row["feasible"]:
            if "kept" not in row:
                raise InputError(
                    f"{path}: {row['problem']}: no placement was kept; run it with --keep"
                )
            placement = read_json(path.parent / "kept" / row["kept"])
            own = {key: value for key, value in row.items() if key != "kept"}
            lines.append(json.dumps({**own, "by": by, "placement": placement}))
    return "\n".join(lines) + "\n"


def board() -> str:
    """The leaderboard as Markdown: of every suite the best methods, over the best known."""
    submitted = [row for path in sorted(SUBMITTED.glob("*.jsonl")) for row in read_rows(path)]
    named = [{**row, "placer": f"{row['placer']} ({row['by']})"} for row in submitted]
    text = [PAGE]
    for name in RANKED:
        rows: list[Row] = [
            r for path in sorted((RESULTS / name).glob("*.jsonl")) for r in read_rows(path)
        ]
        rows += [row for row in named if str(row["suite"]).partition("@")[0] == name]
        rows = [row for row in rows if not row.get("seen")]
        if not rows:
            continue
        known = read_best_known(HERE / "best_known.json") if name != "headline" else {}
        text.append(f"## {name}\n")
        grids = headline_grids(rows)
        if not grids:
            best = merged(known, rows)
            grids = [standings_grid(standings(rows, best), RIVAL, "Over best known, predicted")]
        (head, rule, *lines), title = grids[0].markdown()[2:], grids[0].title
        text += [f"{title}.\n", head, rule, *_best(lines, grids[0].headings), ""]
    return "\n".join(text)


def _best(lines: Sequence[str], headings: Sequence[str]) -> list[str]:
    """Those with the least ratio; a table of all machines is in that order already."""
    if "over best known" not in headings:
        return [line for line in lines if line]
    place = headings.index("over best known") + 1
    numbered = [(line.split("|")[place].split("[")[0].strip(), line) for line in lines if line]
    ranked = sorted((float(ratio), line) for ratio, line in numbered if ratio != "-")
    return [line for _, line in ranked[:FEW]]


def run(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = ArgumentParser(
        description="Packs, checks and ranks submitted rows.", exit_on_error=True
    )
    parser.add_argument("what", choices=["pack", "check", "board"])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--by", default="", help="Who submits, and where the code or paper is.")
    parser.add_argument("-o", "--output", default="", help="The file to write.")
    args = parser.parse_args(argv)
    try:
        if args.what == "check":
            print(f"{check(args.files)} rows are what they say")
        elif args.what == "pack":
            if not args.by or not args.output or len(args.files) != 1:
                raise InputError("pack: give one file of rows, --by WHO and -o FILE")
            write_text(args.output, pack(Path(args.files[0]), args.by))
        else:
            write_text(args.output or HERE.parent / "docs" / "leaderboard.md", board())
    except GnnplaceError as error:
        print(f"submissions: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(run())
