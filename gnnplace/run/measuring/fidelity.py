"""``check_fidelity``: predicted against measured step times, on placements that differ.

Measures about 30 placements, compares, fits a calibration, and shows both before and after. Every
run goes into the store of measurements; one that fails is a row.

A placement's step time is that of its shortest step over all rounds: other processes and the
hypervisor make steps longer, never shorter, so that the shortest is what the placement takes by
itself (the argument of Python's `timeit`). What a step takes typically, by medians, is reported
beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gnnplace.costs import find_local_device, profile_model
from gnnplace.errors import ExecutionError, GnnplaceError, InputError
from gnnplace.measurements import (
    CLOCKS,
    FidelityRow,
    Forward,
    MeasurementStore,
    Sample,
    Selection,
    Study,
    agreement,
    cross_validated,
    fit,
    halves,
    mean_overlap,
    read_samples,
    settle_step_times,
    shortest,
    summarize_steps,
)
from gnnplace.placing import list_shown_placers, place, warm
from gnnplace.problem import Placement, describe_machine
from gnnplace.run.measuring.candidates import Candidate, draw_candidates
from gnnplace.run.measuring.recording import step_record
from gnnplace.run.measuring.running import Executed, execute_placement
from gnnplace.run.placed import ExecutionOptions, RecordOptions, execution_mode
from gnnplace.simulation import simulate
from gnnplace.tracing import CaptureOptions, Program, capture_model

Progress = Callable[[str], None]
FEWEST_PLACEMENTS = 5


@dataclass(frozen=True)
class FidelityOptions:
    """Options of a study.

    Attributes:
        placements: how many differing placements are measured.
        placers: The placers whose placements are measured. By default, all that are listed.
        rounds: how often each placement is measured.
        clock: ``auto`` (of the mode), ``wall`` or ``virtual``.
        stored: whether earlier runs in the store are calibrated on as well.
        budget: seconds of each placer's search.
        seed: the seed of all randomness.
        steps: steps of a run.
        mode: ``auto``, ``measured`` or ``emulated``.
        transport: how tensors travel, ``shm`` or ``gloo``.
        timeout: seconds without progress after which a run is given up.
    """

    placements: int = 30
    placers: Sequence[str] = ()
    rounds: int = 6
    clock: str = "auto"
    stored: bool = False
    budget: float = 2.0
    seed: int = 0
    steps: int = 10
    mode: str = "auto"
    transport: str = "shm"
    timeout: float = 120.0

    def __post_init__(self) -> None:
        if self.clock not in ("auto", *CLOCKS):
            raise InputError(
                f"--clock {self.clock!r}: must be auto, {' or '.join(CLOCKS)}"
            )
        if self.placements < FEWEST_PLACEMENTS:
            raise InputError(
                f"--placements {self.placements}: at least {FEWEST_PLACEMENTS} are needed"
            )
        if self.rounds < 1:
            raise InputError(f"--rounds {self.rounds}: must be a positive number")


def check_fidelity(
    model: str,
    cluster: str,
    *,
    capture: CaptureOptions | None = None,
    options: FidelityOptions | None = None,
    store: MeasurementStore | None = None,
    progress: Progress = lambda line: None,
) -> Study:
    """Measure placements of a model, compare with predictions, and fit a calibration.

    Args:
        model: a zoo name, ``hf:CONFIG`` or ``module:callable``.
        cluster: ``cpu:N``, ``cuda:N``, ``auto``, a preset or a YAML file.
        capture: how the model is captured.
        options: how many placements, how often, by which clock.
        store: where every run is kept; None: nowhere.
        progress: called with a line when something begins that takes seconds.

    Returns:
        The study; where too few placements could be measured, ``before`` is None and ``note`` says
        why.

    Raises:
        InputError, CaptureError: there is no such model or cluster, or it cannot be captured.
    """
    capture = capture or CaptureOptions()
    options = options or FidelityOptions()
    program = capture_model(model, options=capture)
    problem = profile_model(program, cluster, options=capture, progress=progress)
    for kind in problem.cluster.kinds:  # CPU seconds say nothing about others'
        if kind != "cpu" and (
            options.mode == "emulated" or find_local_device(kind) is None
        ):
            raise InputError(
                f"fidelity: devices of kind {kind!r} cannot be measured here; take cpu:N, or "
                "cuda:N with mode measured where there are GPUs"
            )
    study = Study(model, cluster, problem)
    runner = _Runner(study, program, capture, options, store, progress)
    progress("placing")
    runner.measure_all()
    study.mode = _get_mode(study, options.mode)
    try:
        _compare(study, options, store, progress)
    except InputError as error:
        # Too few placements could be measured. Those that were are shown.
        study.note = str(error)
    return study


def _get_mode(study: Study, mode: str) -> str:
    """Return measured or emulated, as all runs of the study were."""
    if mode != "auto":
        return mode
    modes = {execution_mode(s.placement, s.problem) for s in study.samples}
    if len(modes) == 1:
        return modes.pop()
    return "emulated"


@dataclass(frozen=True)
class _Runner:
    """Measures placements of one model."""

    study: Study
    program: Program
    capture: CaptureOptions
    options: FidelityOptions
    store: MeasurementStore | None
    progress: Progress

    def measure_all(self) -> None:
        """Measure all placements round by round, so that a disturbance meets all of them alike.

        Every second round goes backwards, so that a machine that slows down favours none of them.
        """
        contenders = self._candidates()
        self.study.rows = [
            FidelityRow(candidate.name, error=candidate.error)
            for candidate in contenders
        ]
        for number in range(self.options.rounds):
            pairs = list(zip(self.study.rows, contenders, strict=True))
            for row, candidate in pairs[:: -1 if number % 2 else 1]:
                if candidate.placement is not None and not row.error:
                    self.progress(f"round {number + 1}: executing {candidate.name}")
                    self._measure(row, candidate.placement)
        _settle(self.study, contenders)

    def _candidates(self) -> list[Candidate]:
        options = self.options
        names = list(self.options.placers or list_shown_placers())
        budget = options.budget
        seed = options.seed

        def placed(name: str) -> Placement:
            return place(
                self.study.problem, placer=name, budget=budget, seed=seed
            ).placement

        warm(names, progress=self.progress)
        return draw_candidates(
            self.study.problem, names, placed, options.placements, seed
        )

    def _measure(self, row: FidelityRow, placement: Placement) -> None:
        row.predicted = simulate(self.study.problem, placement).step_time
        try:
            self._take(row, self._run(placement))
        except GnnplaceError as error:
            row.error = str(error)

    def _run(self, placement: Placement) -> Executed:
        """Execute and verify a placement.

        Raises:
            ExecutionError: it failed, or computed something else than one device.
        """
        run = execute_placement(
            self.program,
            self.study.problem,
            placement,
            options=self.capture,
            run=ExecutionOptions(
                steps=self.options.steps,
                mode=self.options.mode,
                transport=self.options.transport,
                timeout=self.options.timeout,
            ),
            record=RecordOptions(
                store=self.store, label=self.study.model, source="fidelity"
            ),
        )
        if run.fault:
            self.progress(f"measurements are not all kept: {run.fault}")
        if not run.passed:
            raise ExecutionError(run.summary())
        return run

    def _take(self, row: FidelityRow, run: Executed) -> None:
        """Note what a run measured; the steps of a placement's rounds go under its name."""
        execution = run.execution
        clock = self.options.clock
        steps = [step_record(k, timing) for k, timing in enumerate(execution.steps)]
        self.study.steps.setdefault(row.name, []).extend(steps)
        self.study.runs.add(run.run or "")
        fastest: float | None = execution.fastest
        median: float | None = execution.step_time
        if clock != "auto":
            fastest, median = summarize_steps(steps, clock)
        row.rounds.append(float(fastest or 0.0))
        row.medians.append(float(median or 0.0))


def _settle(study: Study, found: list[Candidate]) -> None:
    """Set the step times of each placement that was measured in every round."""
    good = [
        (row, candidate.placement)
        for row, candidate in zip(study.rows, found, strict=True)
        if candidate.placement is not None and row.rounds and not row.error
    ]
    if not good:
        return
    rows = [row for row, _ in good]
    fastest = shortest(_rounds(rows))
    typical = settle_step_times(_rounds(rows, typical=True))
    for (row, placement), seconds, typical_seconds in zip(
        good, fastest, typical, strict=True
    ):
        row.measured = seconds
        row.typical = typical_seconds
        study.samples.append(
            Sample(study.problem, placement, seconds, row.name, row.name)
        )


def _compare(
    study: Study,
    options: FidelityOptions,
    store: MeasurementStore | None,
    progress: Progress,
) -> None:
    """Set the agreement before and after a cross-validated calibration.

    Every placement is predicted by a calibration that was not fitted to it. Earlier measurements of
    the same problem on this machine, if the store has some, are fitted to as well.
    """
    good = [row for row in study.rows if row.measured is not None]
    measured = [row.measured or 0.0 for row in good]
    study.before = agreement([row.predicted or 0.0 for row in good], measured)
    if options.rounds > 1:
        study.repeated = halves(_rounds(good))
        study.typical_repeated = halves(_rounds(good, typical=True), settle_step_times)
    progress("calibrating")
    older = _older(study, options, store)
    samples = [*study.samples, *older]
    held_out = cross_validated(samples, seed=options.seed)[: len(good)]
    for row, seconds in zip(good, held_out, strict=True):
        row.calibrated = seconds
    study.after = agreement(held_out, measured)
    study.typical = agreement(held_out, [row.typical or 0.0 for row in good])
    study.calibration = fit(samples)
    best = min(study.samples, key=lambda sample: sample.measured)
    study.overlap = mean_overlap(Forward(best.problem, best.placement))


def _rounds(rows: list[FidelityRow], *, typical: bool = False) -> list[list[float]]:
    """Return the seconds of all placements in each round. [rounds, placements]"""
    times = (row.medians if typical else row.rounds for row in rows)
    return [list(seconds) for seconds in zip(*times, strict=True)]


def _older(
    study: Study, options: FidelityOptions, store: MeasurementStore | None
) -> list[Sample]:
    if store is None or not options.stored:
        return []
    selection = Selection(fingerprint=study.problem.fingerprint, mode=study.mode)
    if options.clock == "auto":
        clock = None
    else:
        clock = options.clock
    samples = read_samples(store, selection, clock, describe_machine())
    return [sample for sample in samples if sample.run not in study.runs]
