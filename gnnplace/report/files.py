"""``write_report``: a page about placements of one problem, and a trace for Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gnnplace.problem import read_problem
from gnnplace.problem.placement import Placement, read_placement_for
from gnnplace.report.placements import write_placements
from gnnplace.report.rows import Row
from gnnplace.report.timeline import from_simulation
from gnnplace.report.trace import write_trace
from gnnplace.report.units import faults_text
from gnnplace.simulation import Simulation, simulate


def write_report(
    problem: str | Path,
    placements: Sequence[str | Path],
    output: str | Path,
    *,
    trace: str | Path | None = None,
) -> None:
    """Writes one self-contained page: timelines, memory, graph and tables; two are compared.

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
    own = [p.placer or Path(f).stem for (p, _), f in zip(read, placements, strict=True)]
    names = [n if own.count(n) == 1 else f"{n} {i}" for i, n in enumerate(own, 1)]
    timelines = [
        from_simulation(shown, s, name) for s, name in zip(simulations, names, strict=True)
    ]
    rows = [_row(p, s, n) for (p, _), s, n in zip(read, simulations, names, strict=True)]
    write_placements(output, shown, timelines, rows, beside=len(timelines) == 2)
    if trace is not None:
        write_trace(trace, timelines)


def _row(placement: Placement, simulation: Simulation, name: str) -> Row:
    bound = placement.lower_bound
    gap = simulation.step_time / bound - 1 if bound else None
    return Row(
        placer=name,
        predicted=simulation.step_time if np.isfinite(simulation.step_time) else None,
        peak_memory=tuple(simulation.peak_memory.tolist()),
        lower_bound=bound,
        gap=gap,
        seconds=placement.seconds,
        error=faults_text(simulation.faults),
    )
