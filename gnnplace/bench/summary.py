"""Summary of rows: tables and plots, over all problems and over those that no placer has seen.

``gnnplace bench summary FILE...`` reads rows of any number of runs; the best known step times are
the minimum over all of them and over a file that is kept.

A page of results: tables and plots in one HTML file that needs nothing else, no script.

Pictures of standings: quality against seconds, and performance profiles.

Seconds are on a logarithmic axis. A placer's budgets make a line; one that ran with a single budget
is a dot. The shade is the 95 % interval of the geometric mean over the best known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from gnnplace.bench.headline import headline_grids, headline_plot, list_machines
from gnnplace.bench.rows import STEPS, get_budget_unit, read_rows, results_file
from gnnplace.bench.standings import (
    RIVAL,
    BestKnown,
    ProblemId,
    Standing,
    merge_best_known,
    problem_id,
    read_best_known,
    standings,
    was_run,
    write_best_known,
)
from gnnplace.bench.statistics import Interval
from gnnplace.bench.tables import (
    Profile,
    find_budget_unit,
    performance_profiles,
    standings_grid,
    tables,
)
from gnnplace.errors import InputError
from gnnplace.files import write_text
from gnnplace.report import (
    Axis,
    Series,
    TextTable,
    as_markdown,
    boxed,
    chart,
    html,
    html_parts,
    svg,
)

if TYPE_CHECKING:
    from gnnplace.report import Picture


@dataclass(frozen=True)
class Section:
    """The summary of one suite's rows.

    Attributes:
        name: The name of the suite, fit for a file's name.
        title: One line.
        grids: Tables, the most important one first.
        plots: Text of an SVG each, by what they show.
    """

    name: str
    title: str
    grids: Sequence[TextTable]
    plots: dict[str, str]


def page(sections: Sequence[Section], note: str, origin: str) -> str:
    """Return the text of the page.

    Args:
        sections: The sections in their order.
        note: How to read the tables.
        origin: Where the rows are from.
    """
    parts = [html.paragraph(note), html.links([section.name for section in sections])]
    for section in sections:
        first, *further = [html_parts(grid, level=3) for grid in section.grids]
        plots = [html.figure(svg) for svg in section.plots.values()]
        title = html.heading(section.title, anchor=section.name)
        parts += [title, *first, *plots, *chain.from_iterable(further)]
    return html.page("gnnplace bench", [*parts, html.footer(origin)])


HIGHEST = 2.0  # ratios above it are left out of the picture
SHORTEST = 1e-4  # seconds that can be told on the axis
CLOSE = 1.05  # factor by which profiles are ordered and told


def quality_plot(found: Sequence[Standing], title: str) -> Picture:
    """Plot the ratio over the best known against mean seconds, a line a placer."""
    lines: dict[str, list[tuple[Standing, Interval]]] = {}
    for standing in sorted(found, key=lambda s: s.seconds):
        if standing.ratio is not None and standing.ratio.mean <= HIGHEST:
            lines.setdefault(standing.placer, []).append((standing, standing.ratio))
    highest = max(
        (ratio.high for line in lines.values() for _, ratio in line), default=1.1
    )
    limits = (1.0, max(1.05, min(HIGHEST, highest)))
    axes = (
        Axis("seconds of search (mean)", logarithmic=True),
        Axis("step time over best known", limits=limits),
    )
    return chart([_line(*entry) for entry in lines.items()], axes, title=title)


def _line(placer: str, line: Sequence[tuple[Standing, Interval]]) -> Series:
    return Series(
        placer,
        [max(standing.seconds, SHORTEST) for standing, _ in line],
        [ratio.mean for _, ratio in line],
        told=[
            f"{placer}, {standing.budget:g} s: {ratio.mean:.3f}"
            for standing, ratio in line
        ],
        low=[ratio.low for _, ratio in line],
        high=[ratio.high for _, ratio in line],
    )


def profile_plot(found: Sequence[Profile], title: str) -> Picture:
    """Plot the share of problems against the factor of the best known, of each largest budget."""
    shown = {
        profile.placer: profile for profile in sorted(found, key=lambda p: p.budget)
    }
    axes = (
        Axis(
            "step time over best known, at most",
            limits=(1.0, HIGHEST),
            text="{:.1f}".format,
        ),
        Axis("share of problems", limits=(0.0, 1.0), text="{:.0%}".format),
    )
    best_first = sorted(shown.values(), key=lambda profile: -profile.share(CLOSE))
    return chart([_steps(profile) for profile in best_first], axes, title=title)


def _steps(profile: Profile) -> Series:
    """Return a line that rises where a problem is solved."""
    factors = sorted({1.0, HIGHEST, *(r for r in profile.ratios if 1.0 < r <= HIGHEST)})
    name = f"{profile.placer} {profile.budget:g} s"
    hint = (
        f"{profile.placer}, {profile.budget:g} s: {profile.share(CLOSE):.0%} within 5 %"
    )
    shares = [profile.share(factor) for factor in factors]
    return Series(name, factors, shares, told=[hint], joined="steps", dots=False)


Row = Mapping[str, Any]
Best = Mapping[ProblemId, BestKnown]
WIDEST = 10
# Parts of a suite by column.
HELD_OUT = {"seen": "held-out", "seen_block": "new-structure"}
NOTE = (
    "Over best known: geometric mean of step times. Gap closed: (portfolio - placer) / "
    "(portfolio - best known), mean, and pooled over logarithms, where portfolio and best known "
    "differ by more than 1 %. In brackets: 95 % bootstrap intervals, in the first table over "
    "problems, in the others over problems and seeds."
)


@dataclass(frozen=True)
class SummaryOptions:
    """Options of a summary: which rows count and what is written.

    Attributes:
        best_known: File of best known step times that count as well.
        record: Write that file anew with what the rows found.
        rival: The placer that wins and losses are counted against.
        only: Problems whose key contains this text.
        folder: Tables and plots are written here too, as Markdown, HTML and SVG.
        dirty: Rows of a checkout with changes that no commit has count, too.
    """

    best_known: str | None = None
    record: bool = False
    rival: str = RIVAL
    only: str = ""
    folder: str | None = None
    dirty: bool = False


def summarise(
    files: Sequence[str], out: Console, options: SummaryOptions | None = None
) -> int:
    """Print standings of all rows of result files.

    Args:
        files: The files of rows.
        out: Where the tables go.
        options: What counts and what is written.

    Raises:
        InputError: There are no rows, or no file to record in; rows of changed code; two rows of
            one suite disagree on what their problem says.
        FormatError: A file is malformed.
    """
    options = options or SummaryOptions()
    best_known = options.best_known
    record = options.record
    only = options.only
    if record and best_known is None:
        raise InputError("bench summary: --record needs --best-known FILE")
    for path in files:
        if not Path(path).is_file():
            raise InputError(f"{path}: no such file of rows")
    rows = [row for path in files for row in _clean(path, options.dirty)]
    best = merge_best_known(read_best_known(best_known) if best_known else {}, rows)
    if record and best_known is not None:
        write_best_known(
            best_known,
            {p: best_time for p, best_time in best.items() if not was_run(p)},
        )
    shown = [row for row in rows if only in row["problem"]]
    if not rows and not only:
        raise InputError(
            "bench summary: no file has a row; give files of rows, as bench writes"
        )
    if not shown:
        raise InputError(f"bench summary: no row's problem contains {only!r}")
    print_standings(shown, out, best, options.rival, options.folder)
    return 0


def _clean(path: str, dirty: bool) -> list[dict[str, Any]]:
    """Return the rows of a file.

    Raises:
        InputError: A row is of code that no commit has, and `dirty` is false.
    """
    rows = read_rows(Path(path))
    for number, row in enumerate(rows, 1):
        commit = str(row.get("commit") or "")
        if commit.endswith("+") and not dirty:
            raise InputError(
                f"{path}: line {number}: a row of code that was changed after {commit[:10]}; "
                "commit and run it again, or give --dirty"
            )
    return rows


def _check_digests(rows: Sequence[Row]) -> None:
    """Refuse rows of one problem of one suite's version that were made from different data."""
    first_rows: dict[tuple[str, str], Row] = {}
    for row in rows:
        first = row
        if row.get("digest"):
            first = first_rows.setdefault((_suite(row), problem_id(row)[0]), row)
        if first.get("digest") != row.get("digest") and _clock(first) == _clock(row):
            digests = [
                f"{r['digest']} of commit {str(r.get('commit'))[:10]}"
                for r in (first, row)
            ]
            raise InputError(
                f"{_suite(row)}: {row['problem']}: it says something else in two rows, "
                f"{digests[0]} and {digests[1]}; leave the older rows out, or raise "
                "the suite's version"
            )


def print_standings(
    rows: Sequence[Row],
    out: Console,
    best: Best | None = None,
    rival: str = RIVAL,
    folder: str | None = None,
) -> None:
    """Print tables for each part of the rows, and write them where a folder is given.

    Args:
        rows: The rows of any number of suites.
        out: Where the tables go, but those with more than ``WIDEST`` columns.
        best: Best known step times; those of the rows by default.
        rival: The placer that others are compared with.
        folder: Gets ``summary.md``, ``summary.html`` and the plots as SVG.
    """
    _check_digests(rows)
    best = merge_best_known({}, rows) if best is None else best
    drawn = folder is not None
    sections = [
        _section(name, part, best, rival, drawn)
        for name, part in split_rows(rows).items()
    ]
    for section in sections:
        for grid in section.grids:
            if len(grid.columns) <= WIDEST:
                out.print(*boxed(grid))
    out.print(NOTE)
    if folder is not None:
        _write(Path(folder), sections, _origin(rows))


def _section(
    name: str, rows: Sequence[Row], best: Best, rival: str, drawn: bool
) -> Section:
    ranking = standings(rows, best, rival)
    title = f"{name}: {describe(rows, ranking)}"
    if name.endswith(tuple(HELD_OUT.values())):
        heading = f"{title}; against {rival}"
        grid = standings_grid(ranking, rival, heading, find_budget_unit(rows))
        return Section(name, title, [grid, *headline_grids(rows)[:1]], {})
    grids = [
        *tables(rows, best, rival, title),
        *headline_grids(rows),
    ]
    if not drawn:
        return Section(name, title, grids, {})
    profiles = profile_plot(performance_profiles(rows, best), title)
    machines = {
        name: svg(headline_plot(machine_rows, name))
        for name, machine_rows in list_machines(rows).items()
    }
    plots = {
        "seconds": svg(quality_plot(ranking, title)),
        "profiles": svg(profiles),
        **machines,
    }
    return Section(name, title, grids, plots)


def _write(folder: Path, sections: Sequence[Section], origin: str) -> None:
    text = []
    for section in sections:
        stem = results_file(folder, section.name).with_suffix("")
        text += [f"## {section.title}", ""]
        for grid in section.grids:
            text += [f"### {grid.title}", "", as_markdown(grid)]
        for plot_name, picture in section.plots.items():
            write_text(f"{stem}-{plot_name}.svg", picture)
            text += [f"![{plot_name}]({stem.name}-{plot_name}.svg)", ""]
    write_text(folder / "summary.md", "\n".join([*text, NOTE, "", origin]) + "\n")
    write_text(folder / "summary.html", page(sections, NOTE, origin))


def _origin(rows: Sequence[Row]) -> str:
    """Return the origin of rows: commits, machines, days."""
    commits = {str(row.get("commit", "unknown"))[:10] for row in rows}
    machines = {
        f"{row['machine']['processor']}, {row['machine']['cores']} cores"
        for row in rows
        if "machine" in row
    }
    days = sorted(str(row["when"])[:10] for row in rows if "when" in row)
    if days:
        span = " to ".join(dict.fromkeys((days[0], days[-1])))
    else:
        span = ""
    commits_text = f"{len(rows)} rows of commits {', '.join(sorted(commits))}"
    return (
        "; ".join(part for part in (commits_text, span, *sorted(machines)) if part)
        + "."
    )


def split_rows(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each suite and clock; then those of problems that no placer has seen.

    A suite whose problems some placer has seen, as its training card says, has a second part,
    ``-held-out``, of all others; and a third, ``-new-structure``, of those that are in no block of
    similar graphs (``benchmarks/structure.py``) with a family that some placer has seen.
    """
    result: dict[str, list[Row]] = {}
    for title, suite_rows in group_by_clock(rows).items():
        result[title] = suite_rows
        previous = suite_rows
        for column, suffix in HELD_OUT.items():
            unseen = select_unseen_rows(suite_rows, column)
            if unseen and len(unseen) < len(previous):
                result[f"{title}-{suffix}"] = previous = unseen
    return result


def select_unseen_rows(rows: Sequence[Row], column: str = "seen") -> list[Row]:
    """Return the rows of problems that none of the rows' placers has seen.

    Args:
        rows: The rows of one suite.
        column: ``seen``, by graph and family; or ``seen_block``, by the structure of graphs.
    """
    seen_problems = {problem_id(row) for row in rows if row.get(column)}
    return [row for row in rows if problem_id(row) not in seen_problems]


def group_by_clock(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each suite, and of each clock and unit of budgets where it has several.

    Rows without a budget count for budgets in seconds and in simulated steps alike.
    """
    result: dict[str, list[Row]] = {}
    for title, members in _group_by_clock(rows).items():
        stepped = [
            row
            for row in members
            if get_budget_unit(row) == STEPS or row["budget"] == 0
        ]
        timed = [row for row in members if get_budget_unit(row) != STEPS]
        if timed:
            result[title] = timed
        if len(timed) < len(members):
            result[f"{title}-{STEPS}"] = stepped
    return result


def _group_by_clock(rows: Sequence[Row]) -> dict[str, list[Row]]:
    clocks: dict[str, set[str]] = {}
    for row in rows:
        if row["feasible"]:
            clocks.setdefault(_suite(row), set()).add(_clock(row))
    result: dict[str, list[Row]] = {}
    for row in rows:
        title = _suite(row)
        if len(clocks.get(title, ())) > 1:
            title += f"-{_clock(row) if row['feasible'] else 'failed'}"
        result.setdefault(title, []).append(row)
    return result


def _suite(row: Row) -> str:
    """Return the suite's name and version; "rows" for a row of no suite."""
    return str(row.get("suite", "rows"))


def _clock(row: Row) -> str:
    """Return the kind of a row's step time; if the row does not say, it is predicted."""
    return str(row.get("clock", "predicted"))


def describe(rows: Sequence[Row], found: Sequence[Standing]) -> str:
    """Describe the problems: how many there are, how many without a gap, and their step times."""
    count = len({row["problem"] for row in rows})
    apart = max((standing.ties_apart for standing in found), default=0)
    clocks = ", ".join(sorted({_clock(row) for row in rows if row["feasible"]}))
    return f"{count} problems, {apart} of them without a gap; step times {clocks or 'none'}"
