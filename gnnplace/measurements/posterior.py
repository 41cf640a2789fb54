"""A posterior over the step times of all placements of a problem, given a few measurements.

It corrects the simulator by three Gaussian posteriors, which weigh measurements by their noise:

1. Ops. Every measured step tells the seconds of every op in place. With the log of measured over
   profiled, y = g + e + u + noise, g is common to all ops of a device kind, e is an op's own, u is
   common to a measurement: how busy the machine was. e ~ N(0, OP_SPREAD^2), noise ~
   N(0, OP_NOISE^2), more for an op of microseconds. An op's time is profiled * exp(g + E[e]), and
   a measured step time counts as measured * exp(-u) (``OpTimes``).
2. Messages and contention: the named parameters of ``Calibration``, except those that the ops have
   already, at the greatest of their posterior: independent priors N(0, PRIOR^2) around zero
   (``fit_parameters``).
3. What is left of a step time, log measured - log simulated, is a Gaussian process over placements
   with the kernel s^2 exp(-d / REACH): d is the share of the work that two placements have on
   different devices (``distance``), up to the names of devices of one kind (Rasmussen & Williams,
   2006, eq. 2.25-2.26).

A placement that failed counts as one that is ``FAILURE`` times slower than predicted: what is like
it becomes unattractive. The constants are choices, checked against measurements (see
``docs/measurements.md``), not fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gnnplace.arrays import TINY, FloatArray
from gnnplace.measurements.calibration import (
    Calibration,
    Forward,
    apply_calibration,
    mean_overlap,
)
from gnnplace.measurements.objective import Measured
from gnnplace.problem import Placement, Problem

OP_SPREAD = 0.15
OP_NOISE = 0.05
NOISE = 0.04
"""Of the log of a measured step time: the shortest steps of several runs of a placement, two quiet
cores, have a standard deviation of 0.04 to 0.09, of which the ops' own times tell a part."""
CLOCK = 2e-6  # seconds: noise of an op's measured time beside its share
PRIOR = np.array([1e-5, 1e-5, 0.05, 0.05])
"""Of send and receive overhead (seconds), contention and slowdown (shares): standard deviations."""
STEP = (0.1, 0.1, 0.1, 0.1)
"""In which they are searched, relative: a step time is a longest path, flat within less."""
SWEEPS = 5
REACH = 0.3
FAILURE, SURE = 2.0, 0.015
"""How much slower a failure counts, and the deviation of its log: it is no noise."""
ORDER = 0.03
"""Distance of two placements that differ in the order of their ops alone."""
LEFT, LEFT_WEIGHT = 0.03, 2.0
"""Share that the simulator is off by, beforehand, and for how many measurements that stands."""


@dataclass(frozen=True, eq=False)
class Observation:
    """A placement that was measured."""

    placement: Placement
    measured: Measured


class OpTimes:
    """Corrected times of the ops of a problem, from their measured seconds.

    Args:
        problem: The problem as it was profiled.
        observed: Placements and the seconds of their ops.

    Attributes:
        problem: With the corrected times.
        spread: Standard deviation of the log of each op's time, by kind. [n]
        drift: Log of how much slower than usual all ops of a measurement were. [observed]
    """

    def __init__(self, problem: Problem, observed: Sequence[Observation]) -> None:
        ratios = _log_ratios(problem, observed)
        self.drift = _drift(problem, ratios, len(observed))
        self.spread: dict[str, FloatArray] = {}
        time: dict[str, FloatArray] = {}
        for kind, seconds in problem.time.items():
            rows = ratios[kind] - self.drift[:, None]
            shift, self.spread[kind] = _shrunk(seconds, rows)
            time[kind] = seconds * np.exp(shift)
        self.problem = replace(problem, time=time)

    def draw(self, problem: Problem, rng: np.random.Generator) -> Problem:
        """Return the problem with times that might be the true ones."""
        time = {
            kind: seconds * np.exp(self.spread[kind] * rng.normal(size=len(seconds)))
            for kind, seconds in problem.time.items()
        }
        return replace(problem, time=time)


def _log_ratios(
    problem: Problem, observed: Sequence[Observation]
) -> dict[str, FloatArray]:
    """Log of measured over profiled seconds by kind; nan where not seen. [observed, n]"""
    kinds = np.array([device.kind for device in problem.cluster.devices])
    ratios = {
        kind: np.full((len(observed), problem.num_ops), np.nan) for kind in problem.time
    }
    for row, entry in enumerate(observed):
        measured = np.array(
            [entry.measured.ops.get(n, np.nan) for n in problem.graph.names]
        )
        for kind, profiled in problem.time.items():
            good = (
                (kinds == kind)[entry.placement.device]
                & (measured > 0)
                & (profiled > 0)
            )
            ratios[kind][row, good] = np.log(measured[good] / profiled[good])
    return ratios


def _drift(problem: Problem, ratios: dict[str, FloatArray], count: int) -> FloatArray:
    """Estimate what the ops of a measurement share, zero on average; by turns with the ops'
    own means, long ops weighing more. [observed]
    """
    drift = np.zeros(count)
    for _ in range(SWEEPS if count > 1 else 0):
        above = np.zeros(count)
        weight = np.zeros(count)
        for kind, rows in ratios.items():
            is_observed = np.isfinite(rows)
            level = np.where(is_observed, rows - drift[:, None], 0.0).sum(axis=0)
            level /= np.maximum(is_observed.sum(axis=0), 1)
            work = np.where(is_observed, problem.time[kind], 0.0)
            above += (work * np.where(is_observed, rows - level, 0.0)).sum(axis=1)
            weight += work.sum(axis=1)
        drift = np.divide(above, weight, out=np.zeros(count), where=weight > 0)
        drift[weight > 0] -= drift[weight > 0].mean() if (weight > 0).any() else 0.0
    return drift


def _shrunk(seconds: FloatArray, seen: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the posterior mean and standard deviation of each op's log ratio. [n], [n]"""
    n = len(seconds)
    count = np.isfinite(seen).sum(axis=0)
    if not count.any():
        return np.zeros(n), np.full(n, OP_SPREAD)
    mean = np.nansum(seen, axis=0) / np.maximum(count, 1)
    noise = (OP_NOISE + CLOCK / np.maximum(seconds, 1e-9)) ** 2 / np.maximum(count, 1)
    weight = np.where(count > 0, seconds, 0.0)
    if weight.sum() > 0:
        common = float((weight * mean).sum() / weight.sum())
    else:
        common = 0.0
    trust = np.where(count > 0, OP_SPREAD**2 / (OP_SPREAD**2 + noise), 0.0)
    return common + trust * (mean - common), OP_SPREAD * np.sqrt(1.0 - trust)


def fit_parameters(
    models: Sequence[Forward], measured: FloatArray, noise: float
) -> Calibration:
    """Return message costs, contention and slowdown where their posterior is greatest.

    Args:
        models: The models of the measured placements.
        measured: Seconds that each step took.
        noise: Standard deviation of the log of a measurement.
    """
    if not models:
        return Calibration()

    from scipy.optimize import least_squares  # late: a tenth of a second

    def errors(values: FloatArray) -> FloatArray:
        c = _calibration(values)
        error = np.log([model.seconds(c) for model in models]) - np.log(measured)
        return np.concatenate([error / noise, values])

    return _calibration(
        least_squares(errors, np.full(len(PRIOR), 0.1), max_nfev=15, diff_step=STEP).x
    )


def _calibration(values: FloatArray) -> Calibration:
    send, receive, contention, slowdown = (values * PRIOR).tolist()
    return Calibration(0.0, send, receive, contention, slowdown)


class Posterior:
    """The posterior of a problem's op times and step times.

    Args:
        problem: The problem as it was profiled.
        noise: Standard deviation of the log of a measured step time.

    Attributes:
        observed: All that was measured, in its order.
        ops: What is believed of the times of ops.
        calibration: What is believed of messages, contention and slowdown.
    """

    def __init__(self, problem: Problem, noise: float = NOISE) -> None:
        self.profiled = problem
        self.noise = noise
        self.observed: list[Observation] = []
        self._fit()

    def add(
        self, placements: Sequence[Placement], measured: Sequence[Measured]
    ) -> None:
        """Update the posterior with measured placements."""
        self.observed += map(Observation, placements, measured)
        self._fit()

    @property
    def succeeded(self) -> list[Observation]:
        """Return the placements that could be measured."""
        return [entry for entry in self.observed if entry.measured.seconds is not None]

    @property
    def problem(self) -> Problem:
        """Return the corrected problem, for placers and their simulator."""
        return apply_calibration(self.ops.problem, self.calibration, self._overlap)

    def drawn(self, rng: np.random.Generator) -> Problem:
        """Return the corrected problem as it might be: what is in doubt is drawn."""
        return self.ops.draw(self.problem, rng)

    def predict(self, placements: Sequence[Placement]) -> tuple[FloatArray, FloatArray]:
        """Log seconds of a step and their standard deviations. [p], [p]"""
        plain = np.array(
            [self._simulate_candidate(placement) for placement in placements]
        )
        if not self.observed:
            return plain, np.full(len(plain), self._scale)
        from scipy.linalg import cho_solve

        across = self._kernel(placements, [entry.placement for entry in self.observed])
        mean = plain + across @ self._weights
        explained = (across * cho_solve(self._factor, across.T).T).sum(axis=1)
        return mean, np.sqrt(np.maximum(self._scale**2 - explained, 0.0))

    def best(self) -> Observation:
        """Return the measured placement that is believed to be the fastest.

        Raises:
            ValueError: none could be measured.
        """
        measured_entries = self.succeeded
        mean, _ = self.predict([entry.placement for entry in measured_entries])
        return measured_entries[int(mean.argmin())]

    def _fit(self) -> None:
        measured_entries = self.succeeded
        self.ops = OpTimes(self.profiled, measured_entries)
        models = [
            Forward(self.ops.problem, entry.placement) for entry in measured_entries
        ]
        measured = np.array(
            [entry.measured.seconds for entry in measured_entries], dtype=np.float64
        )
        measured *= np.exp(-self.ops.drift)
        self.calibration = fit_parameters(models, measured, max(self.noise, LEFT))
        if models:
            self._overlap = mean_overlap(models[int(measured.argmin())])
        else:
            self._overlap = 0.0
        residuals = self._left(measured)
        spare = np.maximum(
            residuals[residuals < np.log(FAILURE)] ** 2 - self.noise**2, 0.0
        )
        weight = LEFT_WEIGHT + len(spare)
        self._scale = float(np.sqrt((LEFT_WEIGHT * LEFT**2 + spare.sum()) / weight))
        self._solve(residuals)

    def _solve(self, left: FloatArray) -> None:
        """Fit the process to what the simulator leaves unexplained."""
        if not len(left):
            return
        from scipy.linalg import cho_factor, cho_solve

        placements = [entry.placement for entry in self.observed]
        failed = np.array([entry.measured.seconds is None for entry in self.observed])
        noise = np.where(failed, SURE, self.noise)
        among = self._kernel(placements, placements) + np.diag(noise**2)
        self._factor = cho_factor(among)
        self._weights = cho_solve(self._factor, left)

    def _left(self, measured: FloatArray) -> FloatArray:
        """Log of what was measured over what is simulated; of a failure FAILURE's. [observed]"""
        residuals = []
        seconds = iter(np.log(measured).tolist())
        for entry in self.observed:
            failed = entry.measured.seconds is None
            if failed:
                above = np.log(FAILURE)
            else:
                above = next(seconds) - self._simulate_candidate(entry.placement)
            residuals.append(float(above))
        return np.array(residuals)

    def _simulate_candidate(self, placement: Placement) -> float:
        return float(
            np.log(Forward(self.ops.problem, placement).seconds(self.calibration))
        )

    def _kernel(
        self, rows: Sequence[Placement], columns: Sequence[Placement]
    ) -> FloatArray:
        far = np.array([[distance(self.profiled, a, b) for b in columns] for a in rows])
        return np.asarray(self._scale**2 * np.exp(-far / REACH)).reshape(
            len(rows), len(columns)
        )


def distance(problem: Problem, first: Placement, second: Placement) -> float:
    """Return the share of the work that two placements have on different devices.

    Devices of one kind are interchangeable: they are renamed so that the share is least. Different
    sequences add ``ORDER``.

    Args:
        problem: The problem, whose times are the work.
        first: A placement; the work of an op is its time there.
        second: Another placement.
    """
    from scipy.optimize import linear_sum_assignment  # late: a tenth of a second

    kinds = np.array([device.kind for device in problem.cluster.devices])
    times = np.where(np.isfinite(problem.times), problem.times, 0.0)
    work = times[np.arange(len(times)), first.device]

    # Work that device d of the first and device e of the second placement share; 0 for devices of
    # different kinds. The best renaming is the assignment with the most shared work.
    shared = np.zeros((len(kinds), len(kinds)))
    np.add.at(shared, (first.device, second.device), work)
    is_other_kind = kinds[:, None] != kinds[None, :]
    shared[is_other_kind] = 0.0
    rows, columns = linear_sum_assignment(-shared)
    shared_work = float(shared[rows, columns].sum())
    total_work = max(float(work.sum()), TINY)
    different_share = max(1.0 - shared_work / total_work, 0.0)
    if _same_order(first, second):
        return different_share
    return different_share + ORDER


def _same_order(first: Placement, second: Placement) -> bool:
    """Return whether two placements have the same sequences under any renaming of devices."""
    if first.sequence is None or second.sequence is None:
        return first.sequence is second.sequence
    return {part.tobytes() for part in first.sequence} == {
        part.tobytes() for part in second.sequence
    }
