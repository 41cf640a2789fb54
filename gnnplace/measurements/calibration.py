"""Calibration: five parameters that correct predicted seconds by measured ones.

    seconds of op i             = (profiled * (1 + slowdown) + op_overhead)
                                  * (1 + contention * overlap_i)
    sender's cost of a message   = the link's + send_overhead
    receiver's cost of a message = the link's + receive_overhead

`overlap_i` is the mean number of other devices that compute while op i does, in the uncalibrated
simulation of the same placement. Cores share caches and memory, so that an op is slower beside
others than it was when it was profiled alone. Parameters may be negative; seconds do not become
negative.

**Fit.** Least squares of log(predicted / measured) over measured placements, with a loss that is
linear for large errors, so that single outliers weigh little. Cross-validation judges the fit: each
placement is predicted with parameters that were fitted to others.

``calibrate`` fits a calibration to the runs of a store. `apply_calibration` applies one to a
problem. Complexity of a fit: at most 1,440 simulations of each placement, for four searches of 60
evaluations, each with a gradient of five parameters.
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
    read_samples,
    select_least_disturbed,
    thin_samples,
)
from gnnplace.problem import Cluster, Placement, Problem, describe_machine
from gnnplace.simulation import (
    RECEIVES,
    SENDS,
    Links,
    Simulation,
    Simulator,
    with_overheads,
)

# Parameters are in the order of the fields of `Calibration`: three in seconds, two shares.
UNIT = np.array([5e-6, 1e-5, 1e-5, 0.02, 0.02])
"""The unit in which the fit counts each parameter."""
LOWEST = np.array([-2e-5, -1e-3, -1e-3, -0.5, -0.5])
"""The least value of each parameter."""
HIGHEST = np.array([1e-3, 1e-2, 1e-2, 2.0, 2.0])
"""The largest value of each parameter."""
STARTS = (
    (0.0, 0.0, 0.0, 0.0, 0.0),
    (2.0, 1.0, 1.0, 1.0, 1.0),
    (0.0, 2.0, 2.0, 0.0, 5.0),
)
"""Where the fit starts, in ``UNIT``. A step time is a longest path, so the error has several local
minima."""
ROUNDS = 60
"""The largest number of evaluations of the fit from each start."""
ROUND = 0.005
"""Relative error up to which the loss is quadratic; above, it is linear."""
RIDGE = 1e-4
"""Weight of the parameters themselves. It keeps those that no sample depends on at zero."""
PRIOR = 0.5
"""``RIDGE`` of the last fit over the median error of the first. With noisy measurements, folds
would otherwise differ in parameters that make up for each other."""
FEWEST = 6
"""The least number of samples that five parameters are fitted to."""
MOST = 120
"""The largest number of placements that are fitted to: more would only take longer."""
FEWEST_PARTS = 5
"""The least number of parts of a cross-validation."""
NUM_FOLDS = 5


@dataclass(frozen=True)
class Calibration:
    """A correction of predicted seconds. The default corrects nothing.

    Attributes:
        op_overhead: Seconds that an op takes beyond the profiled ones.
        send_overhead: Seconds that a message takes of its sender beyond those of the link.
        receive_overhead: Seconds that a message takes of its receiver beyond those of the link.
        contention: Share by which an op is slower for each other device that computes meanwhile.
        slowdown: Share by which every op is slower than profiled.
    """

    op_overhead: float = 0.0
    send_overhead: float = 0.0
    receive_overhead: float = 0.0
    contention: float = 0.0
    slowdown: float = 0.0

    def __str__(self) -> str:
        op_us = 1e6 * self.op_overhead
        send_us = 1e6 * self.send_overhead
        receive_us = 1e6 * self.receive_overhead
        return (
            f"ops {self.slowdown:+.1%} and {op_us:+.1f} us each, message {send_us:+.1f} us on "
            f"the sender and {receive_us:+.1f} us on the receiver, contention "
            f"{self.contention:+.1%} for each other device at work"
        )


class CalibrationFile(Schema):
    """A calibration file. Its keys are the parameters, and the usual overlap."""

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
    """Write a calibration, and the usual overlap that `apply_calibration` needs with it."""
    head = {"format": "gnnplace-calibration", "version": 1}
    write_json(path, head | asdict(calibration) | {"overlap": overlap})


def read_calibration(path: str | Path) -> tuple[Calibration, float]:
    """Read a calibration and its usual overlap.

    Raises:
        FormatError: The file is malformed; the message names the file, the key and the fault.
    """
    file = parse(CalibrationFile, read_json(path), str(path))
    values = file.model_dump(exclude={"format", "version", "overlap"})
    return Calibration(**values), file.overlap


class Forward:
    """A compiled placement whose step can be predicted under any calibration.

    Attributes:
        simulation: The uncalibrated step.
        overlap: Mean number of other devices that compute while each op does. [n]
    """

    def __init__(self, problem: Problem, placement: Placement) -> None:
        self._simulator = Simulator(problem)
        self._uncalibrated = self._simulator.compiled
        self._device = placement.device
        self._order = self._simulator.find_order(placement)
        self.simulation = self._simulator.run(self._device, self._order)
        self.overlap = overlap(self.simulation, problem.num_devices)

    def seconds(self, calibration: Calibration) -> float:
        """Return the predicted seconds of a step under a calibration."""
        uncalibrated = self._uncalibrated
        slowdown = 1.0 + calibration.slowdown
        contention = 1.0 + calibration.contention * self.overlap[:, None]
        times = uncalibrated.times * slowdown + calibration.op_overhead
        links = uncalibrated.links
        self._simulator.compiled = uncalibrated._replace(
            times=np.maximum(times, 0.0) * contention,
            links=with_overheads(
                links,
                _add_overhead(links, links.each(SENDS), calibration.send_overhead),
                _add_overhead(
                    links, links.each(RECEIVES), calibration.receive_overhead
                ),
            ),
        )
        return self._simulator.step_time(self._device, self._order)


def _add_overhead(links: Links, overhead: FloatArray, extra: float) -> FloatArray:
    """Return the seconds of overhead of each link, with ``extra`` seconds added. [D, D]"""
    linked = links.channel[:, :, 0] >= 0
    return np.where(linked, np.maximum(overhead + extra, 0.0), overhead)


def overlap(simulation: Simulation, num_devices: int) -> FloatArray:
    """Return the mean number of other devices that compute while each op does. [n]"""
    start = simulation.start
    finish = simulation.finish
    device = simulation.device
    length = finish - start
    # Seconds that each op overlaps with ops of other devices, summed over these devices.
    overlapped = np.zeros(len(start))
    for d in range(num_devices):
        local_ops = np.flatnonzero(device == d)
        if not len(local_ops):
            continue
        local_ops = local_ops[np.argsort(start[local_ops], kind="stable")]
        # The seconds that the device has computed, at the start and finish of each of its ops.
        instants = np.ravel([start[local_ops], finish[local_ops]], order="F")
        computed = np.cumsum(finish[local_ops] - start[local_ops])
        busy = np.ravel([computed, computed], order="F")
        busy[::2] -= length[local_ops]
        elsewhere = device != d
        seconds = np.interp(finish, instants, busy) - np.interp(start, instants, busy)
        overlapped[elsewhere] += seconds[elsewhere]
    mean = np.zeros_like(overlapped)
    return np.divide(overlapped, length, out=mean, where=length > 0)


def fit(samples: Sequence[Sample]) -> Calibration:
    """Fit a calibration to measured placements.

    Raises:
        InputError: There are fewer than ``FEWEST`` samples.
    """
    models = [Forward(sample.problem, sample.placement) for sample in samples]
    return fit_forward(models, _list_measured(samples))


def fit_forward(models: Sequence[Forward], measured: FloatArray) -> Calibration:
    """Fit a calibration to compiled placements and their measured seconds; see `fit`."""
    if len(models) < FEWEST:
        raise InputError(
            f"calibration: {len(models)} measured placements; {FEWEST} are needed"
        )

    from scipy.optimize import least_squares  # late: a tenth of a second

    def compute_errors(values: FloatArray, ridge: float) -> FloatArray:
        calibration = Calibration(*(values * UNIT).tolist())
        predicted = [model.seconds(calibration) for model in models]
        error = np.log(predicted) - np.log(measured)
        return np.concatenate([error, ridge * values])

    options: Any = {
        "bounds": (LOWEST / UNIT, HIGHEST / UNIT),
        "loss": "soft_l1",
        "f_scale": ROUND,
        "max_nfev": ROUNDS,
    }
    fits = [
        least_squares(compute_errors, np.array(start), args=(RIDGE,), **options)
        for start in STARTS
    ]
    best = min(fits, key=lambda result: result.cost).x

    # Fit again from the best fit, with a ridge that is as strong as the measurements are noisy.
    errors = compute_errors(best, 0.0)[: len(models)]
    noise = float(np.median(np.abs(errors)))
    ridge = max(RIDGE, PRIOR * noise)
    last = least_squares(compute_errors, best, args=(ridge,), **options)
    return Calibration(*(last.x * UNIT).tolist())


def cross_validated(
    samples: Sequence[Sample],
    folds: int = NUM_FOLDS,
    seed: int = 0,
    *,
    by_problem: bool = False,
) -> list[float]:
    """Return the seconds of each sample, predicted with parameters fitted to the other folds.

    Args:
        samples: Measured placements. All samples of one placement are in one fold.
        folds: The number of folds.
        seed: The seed by which samples are dealt to folds.
        by_problem: Whether all placements of one problem are in one fold. Then each problem is
            predicted with parameters that were fitted to other problems.

    Raises:
        InputError: There are too few samples to fit to, or only one placement or problem.
    """
    models = [Forward(sample.problem, sample.placement) for sample in samples]
    measured = _list_measured(samples)
    keys = [_make_key(sample, by_problem) for sample in samples]
    fold_of_sample = _assign_folds(keys, folds, seed)
    predicted = np.empty(len(samples))
    for fold in range(int(fold_of_sample.max()) + 1):
        fitted = np.flatnonzero(fold_of_sample != fold)
        held_out = np.flatnonzero(fold_of_sample == fold)
        calibration = fit_forward([models[i] for i in fitted], measured[fitted])
        predicted[held_out] = [models[i].seconds(calibration) for i in held_out]
    return [float(seconds) for seconds in predicted]


def _assign_folds(keys: Sequence[bytes], folds: int, seed: int) -> NDArray[np.intp]:
    """Return the fold of every sample; samples of equal keys share one. [samples]"""
    distinct = list(dict.fromkeys(keys))
    if len(distinct) < 2:
        raise InputError(
            "calibration: one placement (or problem) cannot be cross-validated; measure more"
        )
    count = min(folds, len(distinct))
    shuffled = np.random.default_rng(seed).permutation(len(distinct)) % count
    fold_by_key = dict(zip(distinct, shuffled.tolist(), strict=True))
    return np.array([fold_by_key[key] for key in keys])


def _make_key(sample: Sample, by_problem: bool) -> bytes:
    """Return a key that samples of one placement, or of one problem, share."""
    problem = sample.problem.fingerprint.encode()
    if by_problem:
        return problem
    return b"|".join([problem, sample.placement.key])


def _list_measured(samples: Sequence[Sample]) -> FloatArray:
    """Return the measured seconds of each sample. [samples]"""
    return np.array([sample.measured for sample in samples])


def apply_calibration(
    problem: Problem, calibration: Calibration, usual_overlap: float
) -> Problem:
    """Return the problem with corrected times and links.

    In a problem, an op's time does not depend on what other devices do. So every op is as slow as
    if `usual_overlap` other devices computed meanwhile. Deviation: a placement on one device, where
    no other computes, is then predicted too slow.

    Args:
        problem: The problem as it was profiled.
        calibration: The parameters that correct times and links.
        usual_overlap: Mean number of other devices at work in the placements of interest.
    """
    slowdown = 1.0 + calibration.slowdown
    contention = 1.0 + calibration.contention * usual_overlap
    time = {}
    for kind, profiled in problem.time.items():
        seconds = profiled * slowdown + calibration.op_overhead
        time[kind] = np.maximum(seconds, 0.0) * contention
    cluster = calibrate_cluster(problem.cluster, calibration)
    return replace(problem, time=time, cluster=cluster)


def calibrate_cluster(cluster: Cluster, calibration: Calibration) -> Cluster:
    """Return the cluster with corrected overheads of messages on its links."""
    links = []
    for link in cluster.links:
        send_overhead = link.send_overhead + calibration.send_overhead
        receive_overhead = link.receive_overhead + calibration.receive_overhead
        overheads = {
            "send_overhead": max(send_overhead, 0.0),
            "receive_overhead": max(receive_overhead, 0.0),
        }
        links.append(link.model_copy(update=overheads))
    return Cluster(cluster.devices, tuple(links), cluster.name)


def mean_overlap(model: Forward) -> float:
    """Return the mean number of other devices at work, over the seconds of a placement's ops."""
    length = model.simulation.finish - model.simulation.start
    total = float(length.sum())
    if total > 0:
        return float((model.overlap * length).sum()) / total
    return 0.0


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A calibration of this machine's runs, with predictions that test it.

    Attributes:
        calibration: The calibration that was fitted to all samples.
        overlap: The largest mean overlap of a sample; for ``write_calibration``.
        samples: The placements that it was fitted to.
        held_out: Seconds of each sample, predicted with parameters that were fitted to others.
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
        store: The store of measured steps.
        selection: The runs that are used; all by default.
        clock: ``auto`` (by each run's mode), ``wall`` or ``virtual``.
        seed: The seed of the folds of the cross-validation.
        progress: Called with a line before the fit.

    Raises:
        InputError: The clock is unknown, or the store has no such runs.
    """
    if clock not in ("auto", *CLOCKS):
        raise InputError(f"--clock {clock!r}: must be auto, {' or '.join(CLOCKS)}")
    if clock == "auto":
        clock_name = None
    else:
        clock_name = clock
    stored = read_samples(
        store, selection or Selection(), clock_name, describe_machine()
    )
    if not stored:
        raise InputError(
            f"measurements calibrate: store {store.url!r} has no such runs of this machine; "
            "make some with gnnplace fidelity"
        )
    # Fit to one run of every placement.
    samples = thin_samples(select_least_disturbed(stored), MOST, seed)
    problems = dict.fromkeys(sample.problem.fingerprint for sample in samples)
    progress(f"fitting to {len(samples)} placements of {len(problems)} problems")
    folds = max(FEWEST_PARTS, len(problems))
    has_several = len(problems) > 1
    held_out = cross_validated(samples, folds, seed, by_problem=has_several)
    models = [Forward(sample.problem, sample.placement) for sample in samples]
    return Calibrated(
        calibration=fit(samples),
        overlap=max(mean_overlap(model) for model in models),
        samples=samples,
        held_out=held_out,
    )
