"""``write_placements``: the page about placements of one model, predicted or run.

It has the figures that matter most, the placers side by side, a timeline to search and click in,
where each device's seconds go, and what two placements do differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np

from gnnplace.errors import GnnplaceError, MismatchError
from gnnplace.explaining import (
    Causes,
    PlacementDifference,
    steps_differ,
    sum_device_times,
)
from gnnplace.files import write_text
from gnnplace.placers import Result
from gnnplace.problem import Placement, Problem, read_placement_for, read_problem
from gnnplace.report import html
from gnnplace.report.answer import html_parts
from gnnplace.report.explanations import device_table, move_table
from gnnplace.report.html import Html
from gnnplace.report.rows import Row, make_row, with_best_bound
from gnnplace.report.tables import comparison
from gnnplace.report.timeline import Timeline, from_simulation
from gnnplace.report.trace import write_trace
from gnnplace.report.viewer import viewer
from gnnplace.simulation import Simulation, simulate
from gnnplace.units import bytes_text, faults_text
from gnnplace.units import page_seconds as seconds_text

MOST_STEPS = 6  # timelines of one page


def write_page(
    path: str | Path,
    problem: Problem,
    results: Sequence[Result | tuple[str, GnnplaceError]],
) -> None:
    """Write one page about what placers found, the fastest one first.

    Args:
        path: The page's path. The page is written at once or not at all.
        problem: what was placed.
        results: results of placers; one that could not stands with its name and its error.

    Raises:
        InputError: the file cannot be written.
    """
    write_text(path, results_page(problem, results))


def results_page(
    problem: Problem, results: Sequence[Result | tuple[str, GnnplaceError]]
) -> str:
    """Make the text of the page about what placers found; arguments as for ``write_page``."""
    feasible = [result for result in results if isinstance(result, Result)]
    feasible.sort(key=lambda result: result.step_time)
    timelines = [
        from_simulation(problem, one.simulation, one.placer)
        for one in feasible[:MOST_STEPS]
    ]
    rows = with_best_bound([make_row(result) for result in results])
    return placements_page(problem, timelines, rows)


def write_report(
    problem: str | Path,
    placements: Sequence[str | Path],
    output: str | Path,
    *,
    trace: str | Path | None = None,
) -> None:
    """Write one self-contained page: timelines, memory, graph and tables; two are compared.

    Args:
        problem: a problem file.
        placements: placement files of it.
        output: the page to write.
        trace: a Perfetto trace to write as well.

    Raises:
        FormatError: a malformed file.
        MismatchError: a placement of another problem.
    """
    base = read_problem(problem)
    read = [read_placement_for(path, base) for path in placements]
    shown = read[-1][1]
    simulations = [simulate(shown, placement) for placement, _ in read]
    placer_names = [
        p.placer or Path(f).stem for (p, _), f in zip(read, placements, strict=True)
    ]
    names = [
        n if placer_names.count(n) == 1 else f"{n} {i}"
        for i, n in enumerate(placer_names, 1)
    ]
    timelines = [
        from_simulation(shown, s, name)
        for s, name in zip(simulations, names, strict=True)
    ]
    rows = [
        _row(p, s, n) for (p, _), s, n in zip(read, simulations, names, strict=True)
    ]
    write_placements(output, shown, timelines, rows, beside=len(timelines) == 2)
    if trace is not None:
        write_trace(trace, timelines)


def _row(placement: Placement, simulation: Simulation, name: str) -> Row:
    bound = placement.lower_bound
    if bound:
        gap = simulation.step_time / bound - 1
    else:
        gap = None
    return Row(
        placer=name,
        predicted=simulation.step_time if np.isfinite(simulation.step_time) else None,
        peak_memory=tuple(simulation.peak_memory.tolist()),
        lower_bound=bound,
        gap=gap,
        seconds=placement.seconds,
        error=faults_text(simulation.faults),
    )


def write_placements(
    path: str | Path,
    problem: Problem,
    timelines: Sequence[Timeline],
    rows: Sequence[Row] = (),
    *,
    beside: bool = False,
) -> None:
    """Write the page atomically.

    Args:
        path: The page's path.
        problem: what was placed.
        timelines: steps to show, the first one first: ``from_simulation``, ``from_execution``.
        rows: placers to compare; none where there is nothing to compare.
        beside: whether the first two are shown beside each other, with what moved between them.
    """
    write_text(path, placements_page(problem, timelines, rows, beside=beside))


def placements_page(
    problem: Problem,
    timelines: Sequence[Timeline],
    rows: Sequence[Row] = (),
    *,
    beside: bool = False,
) -> str:
    """Make the page's text; arguments as for ``write_placements``."""
    placed = [row for row in rows if row.predicted is not None]
    parts = [html.cards(_cards(placed) if rows else _figures(timelines))]
    if len(rows) > 1:
        parts += html_parts(comparison(rows, "Placers side by side"))
    if timelines:
        parts += [viewer(timelines, beside=beside)]
    if beside and len(timelines) > 1:
        parts += _moves(timelines[0], timelines[1])
    for step in timelines:
        parts += _devices(step)
    parts.append(html.footer(f"gnnplace {version('gnnplace')}"))
    title = f"{problem.name} on {problem.num_devices} devices"
    estimated = float(problem.estimated.mean())
    if estimated == 0:
        origin = "measured"
    elif estimated == 1:
        origin = "estimated"
    else:
        origin = "partly measured"
    facts = (
        f"{problem.num_ops:,} ops in {problem.num_units:,} placement units, "
        f"{problem.microbatches} micro-batch{'es' if problem.microbatches > 1 else ''}, "
        f"{origin} op times, devices of kind {', '.join(problem.cluster.kinds)}."
    )
    return html.page(title, parts, facts=facts)


def _figures(timelines: Sequence[Timeline]) -> list[tuple[str, str]]:
    """Return the step time of each step."""
    return [
        (
            seconds_text(step.step_time) if np.isfinite(step.step_time) else "none",
            step.label,
        )
        for step in timelines
    ]


def _cards(placed: Sequence[Row]) -> list[tuple[str, str]]:
    if not placed:
        return [("none", "no feasible placement was found")]
    run = [row for row in placed if row.executed] or placed
    best = min(run, key=lambda row: row.predicted or np.inf)
    single = next((row for row in placed if row.placer == "single"), None)
    cards = [(seconds_text(best.predicted), f"predicted step time, {best.placer}")]
    if best.executed:
        cards.append(
            (seconds_text(best.executed), f"{best.mode} step time, {best.placer}")
        )
    if single and single.executed and best.executed:
        speedup = f"{single.executed / best.executed:.2f}x"
        cards.append((speedup, f"{best.mode} speed-up over one device"))
    elif single and single.predicted and best.predicted:
        speedup = f"{single.predicted / best.predicted:.2f}x"
        cards.append((speedup, "predicted speed-up over one device"))
    if best.lower_bound:
        cards.append(
            (f"{best.gap or 0.0:.1%}", "at most so far from the best possible")
        )
    return cards


def _devices(step: Timeline) -> list[Html]:
    """Return a table of what each device's seconds of a predicted step are spent on."""
    simulation = step.simulation
    if simulation is None or not np.isfinite(step.step_time):
        return []
    times = sum_device_times(Causes(step.problem, simulation))
    table = device_table(step.problem, simulation, times)
    title = f"Where each device's seconds go: {step.label}"
    return html_parts(replace(table, title=title))


def _moves(before: Timeline, after: Timeline) -> list[Html]:
    """Make the section on what the second step does otherwise than the first, by module."""
    if before.simulation is None or after.simulation is None:
        return []
    try:
        changes = steps_differ(
            before.problem, before.simulation, after.simulation, after.problem
        )
    except MismatchError as error:
        return [html.paragraph(str(error))]
    parts = [html.heading("What moved"), html.paragraph(_moved(changes, before, after))]
    if changes.moves:
        parts += html_parts(replace(move_table(changes), title=""))
    return parts


def _moved(found: PlacementDifference, before: Timeline, after: Timeline) -> str:
    num_moved = sum(move.ops for move in found.moves)
    first = found.before
    then = found.after
    change = ""
    if (
        np.isfinite(first.step_time)
        and np.isfinite(then.step_time)
        and first.step_time > 0
    ):
        change = f" ({then.step_time / first.step_time - 1.0:+.1%})"
    times = f"{seconds_text(first.step_time)} to {seconds_text(then.step_time)}{change}"
    sent = [f"{side.transfers:,} ({bytes_text(side.bytes)})" for side in (first, then)]
    return (
        f"Between {before.name} and {after.name}, {num_moved:,} ops change their device and "
        f"{found.same:,} do not. The step goes from {times}, and transfers from {sent[0]} to "
        f"{sent[1]}."
    )
