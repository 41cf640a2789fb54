"""Calibration: few, named parameters by which predictions are brought to measurements.

    time of op i    = (profiled * (1 + slowdown) + op_overhead) * (1 + contention * overlap_i)
    sender's cost   = the link's + send_overhead, a message
    receiver's cost = the link's + receive_overhead, a message

`overlap_i` is how many other devices compute while op i does, on average over its time, in the
uncalibrated simulation of the same placement: cores share caches and memory, and an op profiled
alone is slower beside others. Parameters may be negative; no time becomes so. They are fitted to
measured placements by least squares of the logarithm of predicted over measured, with a loss that
is linear for large errors so that single outliers weigh little, and judged by cross-validation:
each placement is predicted with parameters fitted to others. ``calibrate`` fits one to the runs of
a store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gnnplace.arrays import FloatArray
from gnnplace.errors import InputError
from gnnplace.files import Schema, parse, read_json, write_json
from gnnplace.measurements import MeasurementStore, Selection
from gnnplace.measurements.samples import (
    CLOCKS,
    Sample,
    least_disturbed,
    read_samples,
    thinned,
)
from gnnplace.problem import Cluster, Placement, Problem, machine
from gnnplace.simulation import (
    RECEIVES,
    SENDS,
    Links,
    Simulation,
    Simulator,
    with_overheads,
)

UNIT = np.array([5e-6, 1e-5, 1e-5, 0.02, 0.02])
"""Steps in which parameters are searched: seconds, seconds, seconds, two shares."""
LOWEST = np.array([-2e-5, -1e-3, -1e-3, -0.5, -0.5])
HIGHEST = np.array([1e-3, 1e-2, 1e-2, 2.0, 2.0])
STARTS = (
    (0.0, 0.0, 0.0, 0.0, 0.0),
    (2.0, 1.0, 1.0, 1.0, 1.0),
    (0.0, 2.0, 2.0, 0.0, 5.0),
)
"""In these steps. A step time is a longest path, so that the error has several low points."""
ROUNDS = 60
"""Of the search from each start."""
ROUND = 0.005
"""Relative error below which the loss is square, above which it is absolute."""
RIDGE = 1e-4
"""Keeps parameters that nothing depends on at zero."""
PRIOR = 0.5
"""Ridge of the last fit over the median error of the first: where measurements are noisy, folds
would else differ in parameters that make up for each other, and change ranks."""
FEWEST = 6
"""Samples for five parameters."""
MOST = 120
"""Placements that a calibration is fitted to: more would only take longer."""
FEWEST_PARTS = 5


@dataclass(frozen=True)
class Calibration:
    """Corrections of predictions. The default corrects nothing.

    Attributes:
        op_overhead: Seconds an op of the problem takes more than profiled.
        send_overhead: Seconds a message costs its sender more than the link says.
        receive_overhead: Seconds a message costs its receiver more than the link says.
        contention: Share by which an op is slower for each other device that computes beside it.
        slowdown: Share by which every op is slower than profiled, wherever the others are.
    """

    op_overhead: float = 0.0
    send_overhead: float = 0.0
    receive_overhead: float = 0.0
    contention: float = 0.0
    slowdown: float = 0.0

    def __str__(self) -> str:
        micro = [
            1e6 * t
            for t in (self.op_overhead, self.send_overhead, self.receive_overhead)
        ]
        return (
            f"ops {self.slowdown:+.1%} and {micro[0]:+.1f} us each, message {micro[1]:+.1f} us on "
            f"the sender and {micro[2]:+.1f} us on the receiver, contention "
            f"{self.contention:+.1%} for each other device at work"
        )


class CalibrationFile(Schema):
    """The keys of a calibration file."""

    format: Literal["gnnplace-calibration"]
    version: Literal[1]
    op_overhead: float
    send_overhead: float
    receive_overhead: float
    contention: float
    slowdown: float = 0.0
    overlap: Annotated[float, Field(ge=0)] = 0.0


def write_calibration(
    path: str | Path, calibration: Calibration, overlap: float
) -> None:
    """Write a calibration and the usual overlap that goes with it; see `calibrated`."""
    head = {"format": "gnnplace-calibration", "version": 1}
    write_json(path, head | asdict(calibration) | {"overlap": overlap})


def read_calibration(path: str | Path) -> tuple[Calibration, float]:
    """Return a calibration and its usual overlap.

    Raises:
        FormatError: naming the file, the key path and the fault.
    """
    file = parse(CalibrationFile, read_json(path), str(path))
    values = file.model_dump(exclude={"format", "version", "overlap"})
    return Calibration(**values), file.overlap


class Forward:
    """A prediction of one placement under any calibration, compiled once."""

    def __init__(self, problem: Problem, placement: Placement) -> None:
        self._simulator = Simulator(problem)
        self._plain = self._simulator.compiled
        self._device = placement.device
        self._order = self._simulator.find_order(placement)
        self.simulation = self._simulator.run(self._device, self._order)
        self.overlap = overlap(self.simulation, problem.num_devices)

    def seconds(self, calibration: Calibration) -> float:
        """Return the predicted seconds of a step."""
        plain = self._plain
        c = calibration
        slower = 1.0 + c.contention * self.overlap[:, None]
        links = plain.links
        self._simulator.compiled = plain._replace(
            times=np.maximum(plain.times * (1.0 + c.slowdown) + c.op_overhead, 0.0)
            * slower,
            links=with_overheads(
                links,
                _more(links, links.each(SENDS), c.send_overhead),
                _more(links, links.each(RECEIVES), c.receive_overhead),
            ),
        )
        return self._simulator.step_time(self._device, self._order)


def _more(links: Links, overhead: FloatArray, extra: float) -> FloatArray:
    linked = links.channel[:, :, 0] >= 0
    return np.where(linked, np.maximum(overhead + extra, 0.0), overhead)


def overlap(simulation: Simulation, num_devices: int) -> FloatArray:
    """Mean number of other devices that compute while each op does. [n]"""
    start = simulation.start
    finish = simulation.finish
    device = simulation.device
    overlapped = np.zeros(len(start))
    for d in range(num_devices):
        local_ops = np.flatnonzero(device == d)
        local_ops = local_ops[np.argsort(start[local_ops], kind="stable")]
        instants = np.ravel([start[local_ops], finish[local_ops]], order="F")
        busy = np.ravel(
            [np.cumsum(finish[local_ops] - start[local_ops])] * 2, order="F"
        )
        busy[::2] -= (finish - start)[local_ops]
        if not len(local_ops):
            continue
        elsewhere = device != d
        share = np.interp(finish, instants, busy) - np.interp(start, instants, busy)
        overlapped[elsewhere] += share[elsewhere]
    length = finish - start
    return np.divide(
        overlapped, length, out=np.zeros_like(overlapped), where=length > 0
    )


def fit(samples: Sequence[Sample]) -> Calibration:
    """Return the calibration that explains samples best.

    Raises:
        InputError: there are too few samples to fit to.
    """
    return fit_forward(
        [Forward(s.problem, s.placement) for s in samples], _measured(samples)
    )


def fit_forward(models: Sequence[Forward], measured: FloatArray) -> Calibration:
    """Fit a calibration to placements that are compiled already; see `fit`."""
    if len(models) < FEWEST:
        raise InputError(
            f"calibration: {len(models)} measured placements; {FEWEST} are needed"
        )

    from scipy.optimize import least_squares  # late: a tenth of a second

    def errors(values: FloatArray, ridge: float) -> FloatArray:
        c = Calibration(*(values * UNIT).tolist())
        error = np.log([model.seconds(c) for model in models]) - np.log(measured)
        return np.concatenate([error, ridge * values])

    limits = (LOWEST / UNIT, HIGHEST / UNIT)
    options: Any = {
        "bounds": limits,
        "loss": "soft_l1",
        "f_scale": ROUND,
        "max_nfev": ROUNDS,
    }
    fits = [
        least_squares(errors, np.array(s), args=(RIDGE,), **options) for s in STARTS
    ]
    best = min(fits, key=lambda result: result.cost).x
    noise = float(np.median(np.abs(errors(best, 0.0)[: len(models)])))
    ridge = max(RIDGE, PRIOR * noise)
    return Calibration(
        *(least_squares(errors, best, args=(ridge,), **options).x * UNIT).tolist()
    )


def cross_validated(
    samples: Sequence[Sample],
    folds: int = 5,
    seed: int = 0,
    *,
    by_problem: bool = False,
) -> list[float]:
    """Return each sample's predicted seconds by parameters fitted to the other folds.

    Args:
        samples: Placements; two samples of one placement are never in two folds.
        folds: The number of parts that the samples are dealt to.
        seed: The seed of the parts.
        by_problem: All placements of one problem are in one fold: is a problem predicted well that
            nothing was fitted to?

    Raises:
        InputError: there are too few samples to fit to.
    """
    models = [Forward(s.problem, s.placement) for s in samples]
    measured = _measured(samples)
    part = _parts([_key(sample, by_problem) for sample in samples], folds, seed)
    predicted = np.empty(len(samples))
    for fold in range(int(part.max()) + 1):
        inside = np.flatnonzero(part != fold)
        outside = np.flatnonzero(part == fold)
        calibration = fit_forward([models[i] for i in inside], measured[inside])
        predicted[outside] = [models[i].seconds(calibration) for i in outside]
    return [float(seconds) for seconds in predicted]


def _parts(keys: Sequence[bytes], folds: int, seed: int) -> NDArray[np.intp]:
    """Fold of every sample; equal keys share one."""
    distinct = list(dict.fromkeys(keys))
    if len(distinct) < 2:
        raise InputError(
            "calibration: one placement (or problem) cannot be cross-validated"
        )
    count = min(folds, len(distinct))
    shuffled = np.random.default_rng(seed).permutation(len(distinct)) % count
    fold = dict(zip(distinct, shuffled.tolist(), strict=True))
    return np.array([fold[key] for key in keys])


def _key(sample: Sample, by_problem: bool) -> bytes:
    problem = sample.problem.fingerprint.encode()
    if by_problem:
        return problem
    return b"|".join([problem, sample.placement.key])


def _measured(samples: Sequence[Sample]) -> FloatArray:
    return np.array([sample.measured for sample in samples])


def calibrated(
    problem: Problem, calibration: Calibration, usual_overlap: float
) -> Problem:
    """Return the problem with corrected times and links, for simulator and placers as they are.

    These know one time for each op wherever the others are, so contention enters as it is usually:
    every op is slower as it is beside `usual_overlap` others. A placement on one device is then
    predicted too slow by as much.

    Args:
        problem: The problem as it was profiled.
        calibration: The parameters by which times and links are corrected.
        usual_overlap: Mean number of other devices at work in placements that matter.
    """
    slower = 1.0 + calibration.contention * usual_overlap
    time = {
        kind: np.maximum(
            seconds * (1.0 + calibration.slowdown) + calibration.op_overhead, 0.0
        )
        * slower
        for kind, seconds in problem.time.items()
    }
    return replace(
        problem, time=time, cluster=calibrate_cluster(problem.cluster, calibration)
    )


def calibrate_cluster(cluster: Cluster, calibration: Calibration) -> Cluster:
    """Return the cluster with the links' corrected costs of a message."""
    links = tuple(
        link.model_copy(
            update={
                "send_overhead": max(
                    link.send_overhead + calibration.send_overhead, 0.0
                ),
                "receive_overhead": max(
                    link.receive_overhead + calibration.receive_overhead, 0.0
                ),
            }
        )
        for link in cluster.links
    )
    return Cluster(cluster.devices, links, cluster.name)


def mean_overlap(model: Forward) -> float:
    """Mean number of other devices at work, over the time of all ops of a placement."""
    length = model.simulation.finish - model.simulation.start
    total = float(length.sum())
    if total > 0:
        return float((model.overlap * length).sum()) / total
    return 0.0


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A calibration, and what it does on what it was not fitted to.

    Attributes:
        calibration: fitted to all samples.
        overlap: the largest of a sample; for ``write_calibration``.
        samples: the placements it was fitted to.
        held_out: seconds of each sample, predicted by parameters fitted to others.
    """

    calibration: Calibration
    overlap: float
    samples: list[Sample]
    held_out: list[float]


def calibrate(
    store: MeasurementStore,
    selection: Selection | None = None,
    *,
    clock: str = "auto",
    seed: int = 0,
    progress: Callable[[str], None] = lambda line: None,
) -> Calibrated:
    """Fit one calibration to the runs of this machine.

    With several problems, each is predicted by what was fitted to the others.

    Args:
        store: the store of measured steps.
        selection: The runs that are used; all by default.
        clock: ``auto`` (of each run's mode), ``wall`` or ``virtual``.
        seed: the seed of the parts of the cross-validation.
        progress: called with a line before the fit.

    Raises:
        InputError: an unknown clock, or no such runs.
    """
    if clock not in ("auto", *CLOCKS):
        raise InputError(f"--clock {clock!r}: must be auto, {' or '.join(CLOCKS)}")
    if clock == "auto":
        clock_name = None
    else:
        clock_name = clock
    stored = read_samples(store, selection or Selection(), clock_name, machine())
    if not stored:
        raise InputError(
            f"measurements calibrate: store {store.url!r} has no such runs of this machine; "
            "make some with gnnplace fidelity"
        )
    samples = thinned(least_disturbed(stored), MOST, seed)  # of every placement one run
    problems = dict.fromkeys(sample.problem.fingerprint for sample in samples)
    several = len(problems) > 1
    progress(f"fitting to {len(samples)} placements of {len(problems)} problems")
    parts = max(FEWEST_PARTS, len(problems))
    held_out = cross_validated(samples, parts, seed, by_problem=several)
    overlap = max(mean_overlap(Forward(s.problem, s.placement)) for s in samples)
    return Calibrated(fit(samples), overlap, samples, held_out)
