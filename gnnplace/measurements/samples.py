"""Measured placements with the problems that they are of: what a calibration is fitted to."""

from __future__ import annotations

from dataclasses import dataclass

from gnnplace.measurements.records import OK, StepRecord, medians
from gnnplace.measurements.store import MeasurementStore, Selection
from gnnplace.placement import Placement, placement_from_data
from gnnplace.problem import Problem, problem_from_data

WALL, VIRTUAL = "wall", "virtual"
CLOCKS = (WALL, VIRTUAL)


@dataclass(frozen=True, eq=False)
class Sample:
    """One measured placement.

    Attributes:
        problem: As it was profiled.
        placement: With its sequences.
        measured: Seconds of a step.
        name: Who made the placement.
        run: Its name in the store, if it has one.
    """

    problem: Problem
    placement: Placement
    measured: float
    name: str
    run: str | None = None


def stored_samples(
    store: MeasurementStore, selection: Selection, clock: str | None = None
) -> list[Sample]:
    """Samples of all runs that ended well and computed the right thing, the newest first.

    Args:
        store: Where they are.
        selection: Which runs.
        clock: "wall" or "virtual"; None takes the clock of each run's mode.
    """
    problems: dict[str, Problem] = {}
    samples = []
    for run in store.runs(selection):
        seconds = {WALL: run.wall, VIRTUAL: run.virtual, None: run.step_time}[clock]
        if run.outcome.status != OK or run.outcome.verified is False or not seconds:
            continue
        if run.problem not in problems:
            problems[run.problem] = problem_from_data(store.problem(run.problem))
        problem = problems[run.problem]
        placement = placement_from_data(store.placement(run.id), problem)
        name = run.placer or run.source
        samples.append(Sample(problem, placement, seconds, name, run.id))
    return samples


def clocked(steps: list[StepRecord], clock: str) -> float | None:
    """Median seconds of steps by a clock; None without a step."""
    wall, virtual = medians([(s.wall, s.virtual, s.interrupted) for s in steps])
    return wall if clock == WALL else virtual
