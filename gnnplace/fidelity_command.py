"""``gnnplace fidelity MODEL --cluster C``: predicted against measured, on placements that differ.

Measures about 30 placements, compares, fits a calibration, and shows both before and after. Every
run goes into the store of measurements; one that fails is a row.

A placement's step time is that of its shortest step over all rounds: other processes and the
hypervisor make steps longer, never shorter, so that the shortest is what the placement takes by
itself (the argument of Python's `timeit`). What a step takes typically, by medians, is reported
beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from jsonargparse import Namespace

from gnnplace import api
from gnnplace.commands import open_store, options_of, say, say_kept
from gnnplace.demo import output_folder
from gnnplace.errors import ExecutionError, GnnplaceError, InputError
from gnnplace.fidelity_report import Row, Study, mode_of, print_study, write_study
from gnnplace.measurements import MeasurementStore, Selection
from gnnplace.measurements.agreement import agreement, halves, settled, shortest
from gnnplace.measurements.calibration import Forward, cross_validated, fit, mean_overlap
from gnnplace.measurements.candidates import Candidate, candidates
from gnnplace.measurements.environment import machine
from gnnplace.measurements.samples import CLOCKS, Sample, clocked, stored_samples
from gnnplace.placement import Placement
from gnnplace.problem import Problem
from gnnplace.tracing import Program


def fidelity(args: Namespace) -> int:
    """Measures, compares, calibrates, prints, writes."""
    if args.clock not in ("auto", *CLOCKS):
        raise InputError(f"--clock {args.clock!r}: must be auto, {' or '.join(CLOCKS)}")
    if args.placements < 5:
        raise InputError(f"--placements {args.placements}: at least 5 are needed")
    if args.rounds < 1:
        raise InputError(f"--rounds {args.rounds}: must be a positive number")
    folder, store, options = output_folder(args.output), open_store(args.store), options_of(args)
    program = api.capture(args.model, options=options)
    problem = api.profile(program, args.cluster, options=options, progress=say)
    study = Study(args, problem)
    say("placing")
    _measure_all(study, _Runner(args, program, problem, options, store))
    try:
        _compare(study, store)
    except InputError as error:  # too few could be measured; what was is shown all the same
        study.note = str(error)
    print_study(study)
    write_study(study, folder)
    return 0 if study.before is not None else 1


def _candidates(study: Study) -> list[Candidate]:
    args = study.args
    names = [name for name in args.placers.split(",") if name]

    def place(name: str) -> Placement:
        return api.place(study.problem, placer=name, budget=args.budget, seed=args.seed).placement

    api.warm(names, progress=say)
    return candidates(study.problem, names, place, args.placements, args.seed)


@dataclass(frozen=True)
class _Runner:
    """Executes placements of one model."""

    args: Namespace
    program: Program
    problem: Problem
    options: api.CaptureOptions
    store: MeasurementStore | None

    def run(self, placement: Placement) -> api.Executed:
        """Executes and verifies.

        Raises:
            ExecutionError: it failed, or computed something else than one device.
        """
        args = self.args
        run = api.execute(
            self.program,
            self.problem,
            placement,
            options=self.options,
            steps=args.steps,
            mode=args.mode,
            transport=args.transport,
            timeout=args.timeout,
            store=self.store,
            source="fidelity",
            label=args.model,
        )
        say_kept(run)
        if not run.verification.passed:
            raise ExecutionError(run.verification.summary())
        return run


def _measure_all(study: Study, runner: _Runner) -> None:
    """Measures all placements, round by round: what disturbs the machine disturbs all alike.

    Every second round goes backwards, so that a machine that slows down favours none of them.
    """
    found = _candidates(study)
    study.rows = [Row(candidate.name, error=candidate.error) for candidate in found]
    for number in range(study.args.rounds):
        pairs = list(zip(study.rows, found, strict=True))
        for row, candidate in pairs[:: -1 if number % 2 else 1]:
            if candidate.placement is None or row.error:
                continue
            say(f"round {number + 1}: executing {candidate.name}")
            row.predicted = api.simulate(study.problem, candidate.placement).step_time
            try:
                _take(study, row, runner.run(candidate.placement))
            except GnnplaceError as error:
                row.error = str(error)
    _settle(study, found)


def _settle(study: Study, found: list[Candidate]) -> None:
    """Step times of each placement that was measured in every round."""
    good = [
        (row, candidate.placement)
        for row, candidate in zip(study.rows, found, strict=True)
        if candidate.placement is not None and row.rounds and not row.error
    ]
    if not good:
        return
    rows = [row for row, _ in good]
    least, typical = shortest(_rounds(rows)), settled(_rounds(rows, typical=True))
    for (row, placement), seconds, usual in zip(good, least, typical, strict=True):
        row.measured, row.typical = seconds, usual
        study.samples.append(Sample(study.problem, placement, seconds, row.name, row.name))


def _take(study: Study, row: Row, run: api.Executed) -> None:
    """Notes what a run measured; the steps of a placement's rounds are kept under its name."""
    from gnnplace.execution.recording import step_record

    execution, clock = run.execution, study.args.clock
    steps = [step_record(k, timing) for k, timing in enumerate(execution.steps)]
    study.steps.setdefault(row.name, []).extend(steps)
    study.runs.add(run.run or "")
    times = (execution.fastest, execution.step_time) if clock == "auto" else clocked(steps, clock)
    row.rounds.append(float(times[0] or 0.0))
    row.medians.append(float(times[1] or 0.0))


def _compare(study: Study, store: MeasurementStore | None) -> None:
    """Before and after a calibration that every placement is judged by which it was not fitted to.

    What the store has of the same problem on this machine from earlier times is fitted to as well.
    """
    good = [row for row in study.rows if row.measured is not None]
    measured = [row.measured or 0.0 for row in good]
    study.before = agreement([row.predicted or 0.0 for row in good], measured)
    if study.args.rounds > 1:
        study.repeated = halves(_rounds(good))
        study.typical_repeated = halves(_rounds(good, typical=True), settled)
    say("calibrating")
    older = _older(study, store)
    known = [*study.samples, *older]
    held_out = cross_validated(known, seed=study.args.seed)[: len(good)]
    for row, seconds in zip(good, held_out, strict=True):
        row.calibrated = seconds
    study.after = agreement(held_out, measured)
    study.typical = agreement(held_out, [row.typical or 0.0 for row in good])
    study.calibration = fit(known)
    best = min(study.samples, key=lambda sample: sample.measured)
    study.overlap = mean_overlap(Forward(best.problem, best.placement))


def _rounds(rows: list[Row], *, typical: bool = False) -> list[list[float]]:
    """Seconds of all placements in each round. [rounds, placements]"""
    times = (row.medians if typical else row.rounds for row in rows)
    return [list(seconds) for seconds in zip(*times, strict=True)]


def _older(study: Study, store: MeasurementStore | None) -> list[Sample]:
    if store is None or not study.args.stored:
        return []
    selection = Selection(fingerprint=study.problem.fingerprint, mode=mode_of(study))
    clock = None if study.args.clock == "auto" else study.args.clock
    known = stored_samples(store, selection, clock, machine())
    return [sample for sample in known if sample.run not in study.runs]
