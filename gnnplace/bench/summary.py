"""Summary of rows: standings as tables, over all problems and apart for those like the training's.

``gnnplace bench summary FILE...`` reads rows of any number of runs; the best known step times are
the minimum over all of them and over a file that is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gnnplace.bench.best_known import (
    BestKnown,
    ProblemId,
    merged,
    read_best_known,
    write_best_known,
)
from gnnplace.bench.plot import quality_plot
from gnnplace.bench.rows import read_rows, results_file
from gnnplace.bench.standings import RIVAL, Standing, standings
from gnnplace.bench.statistics import Interval
from gnnplace.errors import InputError
from gnnplace.files import write_text

Row = Mapping[str, Any]
HEADINGS = (
    "placer",
    "budget",
    "over best known",
    "gap closed",
    "pooled",
    "won/lost/tied",
    "infeasible",
    "seconds",
)
NOTE = (
    "Over best known: geometric mean of predicted step times. Gap closed: (portfolio - placer) / "
    "(portfolio - best known), mean, and pooled over logarithms, where portfolio and best known "
    "differ by more than 1 %. In brackets: 95 % bootstrap intervals over problems."
)


def summarise(
    files: Sequence[str],
    out: Console,
    *,
    best_known: str | None = None,
    record: bool = False,
    rival: str = RIVAL,
    only: str = "",
    folder: str | None = None,
) -> int:
    """Prints standings of all rows of result files.

    Args:
        files: of rows.
        out: where the tables go.
        best_known: file of best known step times that count as well.
        record: write that file anew with what the rows found.
        rival: who wins and losses are counted against.
        only: problems whose key contains this text.
        folder: tables and plots are written here too, as Markdown and SVG.

    Raises:
        InputError: there are no rows, or no file to record in.
        FormatError: a malformed file.
    """
    if record and best_known is None:
        raise InputError("bench summary: --record needs --best-known FILE")
    for path in files:
        if not Path(path).is_file():
            raise InputError(f"{path}: no such file of rows")
    rows = [row for path in files for row in read_rows(Path(path))]
    best = merged(read_best_known(best_known) if best_known else {}, rows)
    if record and best_known is not None:
        write_best_known(best_known, best)
    shown = [row for row in rows if only in row["problem"]]
    if not shown:
        raise InputError(f"bench summary: no row's problem contains {only!r}")
    print_standings(shown, out, best, rival, folder)
    return 0


def print_standings(
    rows: Sequence[Row],
    out: Console,
    best: Mapping[ProblemId, BestKnown] | None = None,
    rival: str = RIVAL,
    folder: str | None = None,
) -> None:
    """Prints a table for each part of the rows; the best known are theirs if none are given."""
    best = merged({}, rows) if best is None else best
    text = []
    for title, part in parts(rows).items():
        found = standings(part, best, rival)
        heading = f"{title}: {describe(part, found)}"
        out.print(standings_table(found, f"{heading}; against {rival}"))
        text += [f"## {heading}", "", *markdown(found, rival), ""]
        if folder is not None:
            path = results_file(folder, title).with_suffix(".svg")
            write_text(path, quality_plot(found, heading))
    out.print(NOTE)
    if folder is not None:
        write_text(Path(folder) / "summary.md", "\n".join([*text, NOTE]) + "\n")


def parts(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by suite, apart for problems like those of the training data."""
    result: dict[str, list[Row]] = {}
    for row in rows:
        title = f"{row.get('suite', 'rows')}{'-seen' if row.get('seen') else ''}"
        result.setdefault(title, []).append(row)
    return result


def describe(rows: Sequence[Row], found: Sequence[Standing]) -> str:
    """How many problems there are, and how many of them have no gap."""
    count = len({row["problem"] for row in rows})
    apart = max((standing.ties_apart for standing in found), default=0)
    return f"{count} problems, {apart} of them without a gap"


def standings_table(found: Sequence[Standing], title: str) -> Table:
    """Standings as a table."""
    table = Table(title=title, title_justify="left")
    for i, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if i else "left")
    for standing in found:
        table.add_row(*_cells(standing))
    return table


def markdown(found: Sequence[Standing], rival: str) -> list[str]:
    """Standings as lines of a Markdown table."""
    headings = [f"{h} ({rival})" if h.startswith("won") else h for h in HEADINGS]
    lines = [f"| {' | '.join(headings)} |", "|---|" + "---:|" * (len(HEADINGS) - 1)]
    return lines + [f"| {' | '.join(_cells(standing))} |" for standing in found]


def _cells(standing: Standing) -> list[str]:
    versus = (standing.wins, standing.losses, standing.ties)
    return [
        standing.placer,
        f"{standing.budget:g} s",
        _interval(standing.ratio, ".3f"),
        _interval(standing.closed, ".0%"),
        "-" if isnan(standing.pooled) else f"{standing.pooled:.0%}",
        "/".join(map(str, versus)) if any(versus) else "-",
        f"{standing.infeasible} of {standing.rows}",
        f"{standing.seconds:.3g}",
    ]


def _interval(interval: Interval | None, form: str) -> str:
    if interval is None:
        return "-"
    return f"{interval.mean:{form}} [{interval.low:{form}}, {interval.high:{form}}]"
