"""``gnnplace fidelity MODEL --cluster C``: predicted against measured, on placements that differ.

Measures about 30 placements, compares, fits a calibration, and shows both before and after. Every
run goes into the store of measurements; one that fails is a row.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse import Namespace
from rich.table import Table

from gnnplace import api
from gnnplace.cluster import write_cluster
from gnnplace.commands import console, open_store, options_of, say, say_kept
from gnnplace.demo import output_folder
from gnnplace.errors import ExecutionError, GnnplaceError, InputError
from gnnplace.files import write_json, write_text
from gnnplace.measurements import MeasurementStore, Selection, StepRecord
from gnnplace.measurements import page as html
from gnnplace.measurements.agreement import Agreement, agreement, ceiling, halves, settled
from gnnplace.measurements.calibration import (
    Calibration,
    Forward,
    calibrated,
    calibrated_cluster,
    cross_validated,
    fit,
    mean_overlap,
    write_calibration,
)
from gnnplace.measurements.candidates import Candidate, candidates
from gnnplace.measurements.environment import machine
from gnnplace.measurements.residuals import link_residuals, op_residuals
from gnnplace.measurements.samples import CLOCKS, Sample, clocked, stored_samples
from gnnplace.placement import Placement
from gnnplace.problem import Problem, problem_to_data
from gnnplace.report import seconds_text
from gnnplace.tracing import Program

SHOWN_OPS = 12
HEAD = ("placement", "predicted", "calibrated", "measured", "error", "calibrated error")


@dataclass
class Row:
    """One placement.

    Attributes:
        name: Who made it.
        predicted: Seconds, as profiled.
        measured: Seconds, settled over the rounds; None if it failed.
        rounds: Seconds of every round.
        calibrated: Seconds, by parameters fitted to other placements.
        error: Why it failed.
    """

    name: str
    predicted: float | None = None
    measured: float | None = None
    calibrated: float | None = None
    error: str = ""
    rounds: list[float] = field(default_factory=list)

    def cells(self) -> tuple[str, ...]:
        """For a table."""
        if self.measured is None:
            shown = "-" if self.predicted is None else seconds_text(self.predicted)
            return (self.name, shown, "-", "-", self.error, "-")
        return (
            self.name,
            *("-" if s is None else seconds_text(s) for s in (self.predicted, self.calibrated)),
            seconds_text(self.measured),
            *(
                "-" if s is None else f"{s / self.measured - 1:+.1%}"
                for s in (self.predicted, self.calibrated)
            ),
        )


@dataclass
class Study:
    """What was measured and what came out."""

    args: Namespace
    problem: Problem
    rows: list[Row] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    steps: dict[str, list[StepRecord]] = field(default_factory=dict)
    runs: set[str] = field(default_factory=set)
    repeated: Agreement | None = None
    calibration: Calibration = field(default_factory=Calibration)
    overlap: float = 0.0
    note: str = ""
    before: Agreement | None = None
    after: Agreement | None = None


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
    _print(study)
    _write(study, folder)
    return 0 if study.before is not None else 1


def _candidates(study: Study) -> list[Candidate]:
    args = study.args
    names = [name for name in args.placers.split(",") if name]

    def place(name: str) -> Placement:
        return api.place(study.problem, placer=name, budget=args.budget, seed=args.seed).placement

    api.warm(names)
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
    """One step time of each placement that was measured in every round."""
    good = [
        (row, candidate.placement)
        for row, candidate in zip(study.rows, found, strict=True)
        if candidate.placement is not None and row.rounds and not row.error
    ]
    if not good:
        return
    times = settled([list(times) for times in zip(*(row.rounds for row, _ in good), strict=True)])
    for (row, placement), seconds in zip(good, times, strict=True):
        row.measured = seconds
        study.samples.append(Sample(study.problem, placement, seconds, row.name, row.name))


def _take(study: Study, row: Row, run: api.Executed) -> None:
    """Notes what a run measured; the steps of a placement's rounds are kept under its name."""
    from gnnplace.execution.recording import step_record

    execution, clock = run.execution, study.args.clock
    steps = [step_record(k, timing) for k, timing in enumerate(execution.steps)]
    study.steps.setdefault(row.name, []).extend(steps)
    study.runs.add(run.run or "")
    seconds = execution.step_time if clock == "auto" else clocked(steps, clock)
    row.rounds.append(float(seconds or 0.0))


def _compare(study: Study, store: MeasurementStore | None) -> None:
    """Before and after a calibration that every placement is judged by which it was not fitted to.

    What the store has of the same problem on this machine from earlier times is fitted to as well.
    """
    good = [row for row in study.rows if row.measured is not None]
    measured = [row.measured or 0.0 for row in good]
    study.before = agreement([row.predicted or 0.0 for row in good], measured)
    if study.args.rounds > 1:
        study.repeated = halves([_round(good, k) for k in range(study.args.rounds)])
    say("calibrating")
    older = _older(study, store)
    known = [*study.samples, *older]
    held_out = cross_validated(known, seed=study.args.seed)[: len(good)]
    for row, seconds in zip(good, held_out, strict=True):
        row.calibrated = seconds
    study.after = agreement(held_out, measured)
    study.calibration = fit(known)
    best = min(study.samples, key=lambda sample: sample.measured)
    study.overlap = mean_overlap(Forward(best.problem, best.placement))


def _round(rows: list[Row], number: int) -> list[float]:
    return [row.rounds[number] for row in rows]


def _older(study: Study, store: MeasurementStore | None) -> list[Sample]:
    if store is None or not study.args.stored:
        return []
    selection = Selection(fingerprint=study.problem.fingerprint, mode=_mode(study))
    clock = None if study.args.clock == "auto" else study.args.clock
    known = stored_samples(store, selection, clock, machine())
    return [sample for sample in known if sample.run not in study.runs]


def _mode(study: Study) -> str:
    if study.args.mode != "auto":
        return str(study.args.mode)
    modes = {api.execution_mode(s.placement, s.problem) for s in study.samples}
    return modes.pop() if len(modes) == 1 else "emulated"


def _title(study: Study) -> str:
    args = study.args
    return f"{args.model} on {args.cluster}, {study.problem.microbatches} micro-batches"


def _print(study: Study) -> None:
    if study.args.json:
        sys.stdout.write(json.dumps(_data(study)) + "\n")
        return
    out, shown = console(), Table(*HEAD, title=_title(study))
    for row in study.rows:
        shown.add_row(*row.cells())
    out.print(shown)
    for line in _lines(study):
        out.print(line, soft_wrap=True)


def _lines(study: Study) -> list[str]:
    failures = sum(row.measured is None for row in study.rows)
    return [
        *([_repeat_line(study.repeated)] if study.repeated is not None else []),
        f"as profiled: {study.before or study.note}",
        f"calibrated, cross-validated: {study.after or study.note}",
        f"calibration: {study.calibration if study.after else 'none'}",
        *([f"{failures} placements failed; they are rows above"] if failures else []),
        f"ops most off: {', '.join(_op_texts(study)[:5])}",
        f"written to {study.args.output}: fidelity.html, fidelity.json, calibration.json, "
        "problem.json and cluster.yaml (calibrated, for place)",
    ]


def _repeat_line(found: Agreement) -> str:
    return (
        f"two halves of the rounds agree with Spearman {found.spearman:.3f} and differ by "
        f"{found.mape:.1%}: no prediction can agree with these measurements much better than "
        f"Spearman {ceiling(found.spearman):.3f}"
    )


def _op_texts(study: Study) -> list[str]:
    return [
        f"{r.op} {seconds_text(r.predicted)} -> {seconds_text(r.measured)}"
        for r in op_residuals(study.samples, study.steps)[:SHOWN_OPS]
    ]


def _data(study: Study) -> dict[str, Any]:
    return {
        "model": study.args.model,
        "cluster": study.args.cluster,
        "microbatches": study.problem.microbatches,
        "fingerprint": study.problem.fingerprint,
        "machine": machine(),
        "rows": [asdict(row) for row in study.rows],
        "repeated": _finite(study.repeated),
        "ceiling": _ceiling(study.repeated),
        "before": _finite(study.before),
        "after": _finite(study.after),
        "calibration": asdict(study.calibration),
        "ops": [asdict(r) for r in op_residuals(study.samples, study.steps)],
        "links": [asdict(r) for r in link_residuals(_with_messages(study), study.steps)],
    }


def _ceiling(found: Agreement | None) -> float | None:
    known = found is not None and np.isfinite(found.spearman)
    return ceiling(found.spearman) if found is not None and known else None


def _finite(found: Agreement | None) -> dict[str, Any]:
    values = asdict(found) if found is not None else {}
    return {key: value if np.isfinite(value) else None for key, value in values.items()}


def _with_messages(study: Study) -> Sequence[Sample]:
    """Runs whose messages were measured and not simulated."""
    return study.samples if _mode(study) == "measured" else ()


def _write(study: Study, folder: Path) -> None:
    c, problem = study.calibration, study.problem
    write_json(folder / "fidelity.json", _data(study))
    write_text(folder / "fidelity.html", _page(study))
    write_calibration(folder / "calibration.json", c, study.overlap)
    better = calibrated(problem, c, study.overlap)
    write_json(folder / "problem.json", problem_to_data(better) | {"x-calibration": asdict(c)})
    write_cluster(folder / "cluster.yaml", calibrated_cluster(problem.cluster, c))


def _page(study: Study) -> str:
    points = []
    for row in study.rows:
        if row.measured is not None and row.predicted is not None:
            points.append(html.Point(row.name, row.predicted, row.measured))
            after = row.calibrated or row.predicted
            points.append(html.Point(row.name, after, row.measured, "calibrated"))
    ops = op_residuals(study.samples, study.steps)[:SHOWN_OPS]
    links = link_residuals(_with_messages(study), study.steps)
    parts = [
        *map(html.paragraph, _lines(study)[:4]),
        html.paragraph("Grey: as profiled. Blue: calibrated on other placements."),
        html.scatter(points, _title(study)),
        html.heading("Placements"),
        html.table(HEAD, [row.cells() for row in study.rows]),
        html.heading("Ops that are most off"),
        html.table(
            ("op", "module", "predicted", "measured"),
            [(r.op, r.module or "-", *map(seconds_text, (r.predicted, r.measured))) for r in ops],
        ),
        html.heading("Messages, the sender's time"),
        html.table(
            ("link", "messages", "predicted", "measured"),
            [
                (
                    f"{r.source} to {r.target}",
                    str(r.messages),
                    *map(seconds_text, (r.predicted, r.measured)),
                )
                for r in links
            ],
        ),
    ]
    return html.page(f"Fidelity: {_title(study)}", parts)
