"""Measured placements with the problems that they are of: what a calibration is fitted to.

How well predictions agree with measurements: rank correlation, error, bias, regret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnnplace.errors import InputError
from gnnplace.measurements.records import (
    EMULATED,
    OK,
    StepRecord,
    StoredRun,
    fastest,
    medians,
)
from gnnplace.measurements.store import MeasurementStore, Selection
from gnnplace.problem import Placement, Problem, placement_from_data, problem_from_data

WALL = "wall"
VIRTUAL = "virtual"
CLOCKS = (WALL, VIRTUAL)


@dataclass(frozen=True, eq=False)
class Sample:
    """One measured placement.

    Attributes:
        problem: The problem as it was profiled.
        placement: The placement that was measured, with its sequences.
        measured: Seconds of a step: the shortest that was measured.
        name: The placer that made the placement.
        run: Its name in the store, if it has one.
    """

    problem: Problem
    placement: Placement
    measured: float
    name: str
    run: str | None = None


def read_samples(
    store: MeasurementStore,
    selection: Selection,
    clock: str | None = None,
    machine: Mapping[str, Any] | None = None,
) -> list[Sample]:
    """Return samples of all runs that ended well and computed the right thing, the newest first.

    Runs in which the CPU played other devices are left out: their seconds are not those predicted.

    Args:
        store: The store that holds the runs.
        selection: Which of its runs are taken.
        clock: "wall" or "virtual"; None takes the clock of each run's mode.
        machine: The machine that the runs were made on; None takes all.
    """
    problems: dict[str, Problem] = {}
    samples = []
    for run in store.runs(selection):
        seconds = find_fastest(run, clock)
        if run.outcome.status != OK or run.outcome.verified is False or not seconds:
            continue
        if machine is not None and run.machine != machine:
            continue
        if run.problem not in problems:
            problems[run.problem] = problem_from_data(store.problem(run.problem))
        problem = problems[run.problem]
        placement = placement_from_data(store.placement(run.id), problem)
        used = (problem.cluster.devices[d] for d in set(placement.device.tolist()))
        if run.mode == EMULATED and any(device.kind != "cpu" for device in used):
            continue
        name = run.placer or run.source
        samples.append(Sample(problem, placement, seconds, name, run.id))
    return samples


def select_least_disturbed(samples: Sequence[Sample]) -> list[Sample]:
    """Return, for each placement of a problem, its sample with the shortest step."""
    best: dict[tuple[str, bytes], Sample] = {}
    for sample in samples:
        key = (sample.problem.fingerprint, sample.placement.key)
        if key not in best or sample.measured < best[key].measured:
            best[key] = sample
    return list(best.values())


def thin_samples(samples: Sequence[Sample], most: int, seed: int = 0) -> list[Sample]:
    """Return at most `most` samples, drawn without replacement, in their order."""
    if len(samples) <= most:
        return list(samples)
    drawn = np.random.default_rng(seed).choice(len(samples), most, replace=False)
    return [samples[i] for i in sorted(drawn.tolist())]


def find_fastest(run: StoredRun, clock: str | None) -> float | None:
    """Return the seconds of a run's shortest step, or None without a step."""
    return {WALL: run.fastest_wall, VIRTUAL: run.fastest_virtual, None: run.fastest}[
        clock
    ]


def summarize_steps(
    steps: list[StepRecord], clock: str
) -> tuple[float | None, float | None]:
    """Return the seconds of the shortest and of the median step by a clock, or None."""
    times = [(s.wall, s.virtual, s.interrupted) for s in steps]
    number = CLOCKS.index(clock)
    return fastest(times)[number], medians(times)[number]


FEWEST = 3
"""Pairs below which a rank correlation says nothing."""
POLISH = 10
"""Sweeps of the median polish; it settles within a few."""


@dataclass(frozen=True)
class Agreement:
    """Predicted against measured step times of the placements of one problem.

    Attributes:
        pairs: The number of placements that were predicted and measured.
        spearman: Spearman's rank correlation; nan if all predictions or measurements are equal.
        mape: Mean absolute error, relative to the measurement.
        bias: Mean error, relative to the measurement; negative where predictions are too fast.
        regret: How much slower the placement predicted to be best is than the best measured.
    """

    pairs: int
    spearman: float
    mape: float
    bias: float
    regret: float

    def __str__(self) -> str:
        return (
            f"Spearman {self.spearman:.3f}, MAPE {self.mape:.1%}, bias {self.bias:+.1%}, the "
            f"placement predicted best is {self.regret:.1%} slower than the best of {self.pairs} "
            "measured"
        )


def agreement(predicted: Sequence[float], measured: Sequence[float]) -> Agreement:
    """Compare predictions with measurements.

    Args:
        predicted: Seconds, all positive and finite.
        measured: Seconds of the same placements.

    Raises:
        InputError: there are fewer than ``FEWEST`` pairs.
    """
    p = np.asarray(predicted, dtype=float)
    m = np.asarray(measured, dtype=float)
    if len(p) != len(m) or len(p) < FEWEST:
        raise InputError(
            f"fidelity: {len(p)} placements were measured; at least {FEWEST} needed"
        )
    from scipy.stats import spearmanr  # takes a second to import

    flat = np.ptp(p) == 0 or np.ptp(m) == 0
    error = (p - m) / m
    return Agreement(
        pairs=len(p),
        spearman=float("nan") if flat else float(spearmanr(p, m).statistic),
        mape=float(np.abs(error).mean()),
        bias=float(error.mean()),
        regret=float(m[int(p.argmin())] / m.min() - 1.0),
    )


def shortest(rounds: Sequence[Sequence[float]]) -> list[float]:
    """Return the shortest step time of each placement over all rounds. [rounds, placements]"""
    return [
        float(seconds) for seconds in np.min(np.asarray(rounds, dtype=float), axis=0)
    ]


def settle_step_times(rounds: Sequence[Sequence[float]]) -> list[float]:
    """Return one step time of each placement from several rounds that measured them all.

    A round's time of a placement is taken as the product of the placement's, the round's (how busy
    the machine was) and noise; the first two are found by median polish of the logarithms (Tukey,
    1977), so that single outliers do not count. Rounds have a factor of one in the median.

    Args:
        rounds: Seconds of each placement. [rounds, placements]
    """
    logs = np.log(np.asarray(rounds, dtype=float))
    placement = np.zeros(logs.shape[1])
    busy = np.zeros(logs.shape[0])
    for _ in range(POLISH):
        placement = np.median(logs - busy[:, None], axis=0)
        busy = np.median(logs - placement[None, :], axis=1)
        busy -= np.median(busy)
    return [float(seconds) for seconds in np.exp(placement)]


def halves(
    rounds: Sequence[Sequence[float]],
    settle: Callable[[Sequence[Sequence[float]]], list[float]] = shortest,
) -> Agreement:
    """Return how well the odd rounds agree with the even ones.

    Args:
        rounds: Seconds of each placement. [rounds, placements]
        settle: What makes one step time of several rounds.

    Raises:
        InputError: fewer than two rounds, or too few placements.
    """
    if len(rounds) < 2:
        raise InputError("fidelity: one round of measuring says nothing of its noise")
    return agreement(settle(rounds[::2]), settle(rounds[1::2]))


def ceiling(reliability: float) -> float:
    """Return the correlation that a prediction without error would have with noisy measurements.

    Two halves that correlate with r make a whole of reliability 2 r / (1 + r) (Spearman, 1910;
    Brown, 1910); the truth correlates with it by the root of that (attenuation, Spearman, 1904).

    Args:
        reliability: Correlation of the halves, each a kind of average (`settle_step_times`, not
            `shortest`); 0 or less says that nothing was measured.
    """
    r = max(reliability, 0.0)
    return float(np.sqrt(2.0 * r / (1.0 + r)))
