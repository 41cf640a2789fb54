"""``calibrate``: one calibration fitted to the measured steps of a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gnnplace.errors import InputError
from gnnplace.measurements import MeasurementStore, Selection
from gnnplace.measurements.calibration import (
    Calibration,
    Forward,
    cross_validated,
    fit,
    mean_overlap,
)
from gnnplace.measurements.samples import (
    CLOCKS,
    Sample,
    least_disturbed,
    stored_samples,
    thinned,
)
from gnnplace.problem.cluster.machine import machine

MOST = 120
"""Placements that a calibration is fitted to: more would only take longer."""
FEWEST_PARTS = 5


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
    """Fits one calibration to the runs of this machine.

    With several problems, each is predicted by what was fitted to the others.

    Args:
        store: the store of measured steps.
        selection: which runs; all by default.
        clock: ``auto`` (of each run's mode), ``wall`` or ``virtual``.
        seed: the seed of the parts of the cross-validation.
        progress: called with a line before the fit.

    Raises:
        InputError: an unknown clock, or no such runs.
    """
    if clock not in ("auto", *CLOCKS):
        raise InputError(f"--clock {clock!r}: must be auto, {' or '.join(CLOCKS)}")
    samples = _samples_here(store, selection or Selection(), clock, seed)
    problems = dict.fromkeys(sample.problem.fingerprint for sample in samples)
    several = len(problems) > 1
    progress(f"fitting to {len(samples)} placements of {len(problems)} problems")
    parts = max(FEWEST_PARTS, len(problems))
    held_out = cross_validated(samples, parts, seed, by_problem=several)
    overlap = max(mean_overlap(Forward(s.problem, s.placement)) for s in samples)
    return Calibrated(fit(samples), overlap, samples, held_out)


def _samples_here(
    store: MeasurementStore, selection: Selection, clock: str, seed: int
) -> list[Sample]:
    """The least disturbed run of every placement, of this machine alone."""
    given = None if clock == "auto" else clock
    found = stored_samples(store, selection, given, machine())
    if not found:
        raise InputError(
            f"measurements calibrate: store {store.url!r} has no such runs of this machine; "
            "make some with gnnplace fidelity"
        )
    return thinned(least_disturbed(found), MOST, seed)
