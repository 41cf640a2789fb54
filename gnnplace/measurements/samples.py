"""Measured placements with the problems that they are of: what a calibration is fitted to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnnplace.measurements.records import EMULATED, OK, StepRecord, StoredRun, fastest, medians
from gnnplace.measurements.store import MeasurementStore, Selection
from gnnplace.problem import Problem, problem_from_data
from gnnplace.problem.placement import Placement, placement_from_data

WALL, VIRTUAL = "wall", "virtual"
CLOCKS = (WALL, VIRTUAL)


@dataclass(frozen=True, eq=False)
class Sample:
    """One measured placement.

    Attributes:
        problem: As it was profiled.
        placement: The placement that was measured, with its sequences.
        measured: Seconds of a step: the shortest that was measured.
        name: Who made the placement.
        run: Its name in the store, if it has one.
    """

    problem: Problem
    placement: Placement
    measured: float
    name: str
    run: str | None = None


def stored_samples(
    store: MeasurementStore,
    selection: Selection,
    clock: str | None = None,
    machine: Mapping[str, Any] | None = None,
) -> list[Sample]:
    """Samples of all runs that ended well and computed the right thing, the newest first.

    Runs in which the CPU played other devices are left out: their seconds are not those predicted.

    Args:
        store: The store that holds the runs.
        selection: Which of its runs are taken.
        clock: "wall" or "virtual"; None takes the clock of each run's mode.
        machine: That the runs were made on; None takes all.
    """
    problems: dict[str, Problem] = {}
    samples = []
    for run in store.runs(selection):
        seconds = fastest_of(run, clock)
        if run.outcome.status != OK or run.outcome.verified is False or not seconds:
            continue
        if machine is not None and run.machine != machine:
            continue
        if run.problem not in problems:
            problems[run.problem] = problem_from_data(store.problem(run.problem))
        problem = problems[run.problem]
        placement = placement_from_data(store.placement(run.id), problem)
        if run.mode == EMULATED and _others_than_cpus(problem, placement):
            continue
        name = run.placer or run.source
        samples.append(Sample(problem, placement, seconds, name, run.id))
    return samples


def _others_than_cpus(problem: Problem, placement: Placement) -> bool:
    devices = problem.cluster.devices
    return any(devices[d].kind != "cpu" for d in set(placement.device.tolist()))


def least_disturbed(samples: Sequence[Sample]) -> list[Sample]:
    """One sample of each placement of a problem: the one with the shortest step."""
    best: dict[tuple[str, ...], Sample] = {}
    for sample in samples:
        parts = (sample.placement.device, *(sample.placement.sequence or ()))
        key = (sample.problem.fingerprint, *(part.tobytes().hex() for part in parts))
        if key not in best or sample.measured < best[key].measured:
            best[key] = sample
    return list(best.values())


def thinned(samples: Sequence[Sample], most: int, seed: int = 0) -> list[Sample]:
    """At most so many samples, drawn without replacement, in their order."""
    if len(samples) <= most:
        return list(samples)
    chosen = np.random.default_rng(seed).choice(len(samples), most, replace=False)
    return [samples[i] for i in sorted(chosen.tolist())]


def fastest_of(run: StoredRun, clock: str | None) -> float | None:
    """Seconds of a run's shortest step by a clock, or by that of its mode; None without a step."""
    return {WALL: run.fastest_wall, VIRTUAL: run.fastest_virtual, None: run.fastest}[clock]


def clocked(steps: list[StepRecord], clock: str) -> tuple[float | None, float | None]:
    """Seconds of the shortest step and of the median one by a clock; None without a step."""
    times = [(s.wall, s.virtual, s.interrupted) for s in steps]
    number = CLOCKS.index(clock)
    return fastest(times)[number], medians(times)[number]
