"""``gnnplace measurements list|export|prune|calibrate``: what the store of measured steps has."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np
from jsonargparse import Namespace
from rich.console import Console
from rich.table import Table

from gnnplace.cli.commands import check_output, console, say
from gnnplace.errors import InputError
from gnnplace.fidelity.calibration import (
    Calibration,
    Forward,
    cross_validated,
    fit,
    mean_overlap,
    write_calibration,
)
from gnnplace.files import write_text
from gnnplace.measurements import MeasurementStore, Selection, StoredRun, default_store
from gnnplace.measurements.environment import machine
from gnnplace.measurements.samples import (
    CLOCKS,
    Sample,
    least_disturbed,
    stored_samples,
    thinned,
)
from gnnplace.report import seconds_text

ACTIONS = ("list", "export", "prune", "calibrate")
MOST = 120
"""Placements that a calibration is fitted to: more would only take longer."""
COLUMNS = ("run", "began", "model", "M", "placer", "mode", "steps", "step", "predicted", "outcome")


def measurements(args: Namespace) -> int:
    """Lists, exports or prunes."""
    if args.action not in ACTIONS:
        raise InputError(
            f"measurements: action {args.action!r} is unknown; actions: {', '.join(ACTIONS)}"
        )
    selection, store = selection_of(args), MeasurementStore(args.store or default_store())
    if args.action == "prune":
        return _prune(store, selection, args)
    if args.action == "calibrate":
        return _calibrate(store, selection, args)
    runs = store.runs(selection, args.limit)
    if args.action == "export":
        return _export(store, runs, args.output)
    _list(store, runs, args.json, console())
    return 0


def selection_of(args: Namespace) -> Selection:
    """The runs that the arguments narrow down to.

    Raises:
        InputError: a date that is none, or a limit below one.
    """
    if args.limit is not None and args.limit < 1:
        raise InputError(f"--limit {args.limit}: must be a positive number")
    if args.keep < 0:
        raise InputError(f"--keep {args.keep}: must not be negative")
    return Selection(
        model=args.model,
        fingerprint=args.fingerprint,
        mode=args.mode,
        run=args.run,
        before=_instant(args.before),
        failed=args.failed,
    )


def _instant(text: str | None) -> str | None:
    """A date or an instant as it stands in the store; without a zone it is UTC."""
    if text is None:
        return None
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"--before {text!r}: not a date; give 2026-11-21 or 2026-11-21T12:00"
        ) from None
    zoned = given if given.tzinfo else given.replace(tzinfo=UTC)
    return zoned.astimezone(UTC).isoformat(timespec="microseconds")


def _list(store: MeasurementStore, runs: list[StoredRun], as_json: bool, out: Console) -> None:
    if as_json:
        for run in runs:
            sys.stdout.write(json.dumps(asdict(run) | {"step_time": run.step_time}) + "\n")
        return
    table = Table(*COLUMNS, title=f"{len(runs)} runs in {store.url}, the newest first")
    for run in runs:
        table.add_row(*_cells(run))
    out.print(table)


def _cells(run: StoredRun) -> tuple[str, ...]:
    outcome = run.outcome
    verified = {True: ", verified", False: ", WRONG", None: ""}[outcome.verified]
    return (
        run.id[:12],
        run.began[:19],
        run.model,
        str(run.microbatches),
        run.placer or "-",
        run.mode,
        str(run.steps),
        "-" if run.step_time is None else seconds_text(run.step_time),
        "-" if run.predicted is None else seconds_text(run.predicted),
        outcome.error or f"{outcome.status}{verified}",
    )


def _export(store: MeasurementStore, runs: list[StoredRun], output: str | None) -> int:
    """One JSON line a run, oldest first, with its problem, its placement and all its steps."""
    if output is None:
        for line in _lines(store, runs):
            sys.stdout.write(line)
        return 0
    check_output(output)
    write_text(output, "".join(_lines(store, runs)))
    console().print(f"{len(runs)} runs written to {output}")
    return 0


def _lines(store: MeasurementStore, runs: list[StoredRun]) -> Iterator[str]:
    for run in reversed(runs):
        data: dict[str, Any] = asdict(run) | {
            "problem": store.problem(run.problem),
            "placement": store.placement(run.id),
            "steps": [asdict(step) for step in store.steps(run.id)],
        }
        yield json.dumps(data) + "\n"


def _prune(store: MeasurementStore, selection: Selection, args: Namespace) -> int:
    if selection == Selection() and not args.keep:
        raise InputError(
            "measurements prune: say what to forget: --before DATE, --model NAME, --failed, "
            "--run ID, --fingerprint F, --mode MODE, or --keep N of the newest"
        )
    count = store.prune(selection, keep=args.keep)
    console().print(f"{count} runs forgotten, {len(store.runs())} left in {store.url}")
    return 0


def _calibrate(store: MeasurementStore, selection: Selection, args: Namespace) -> int:
    """Fits one calibration to all runs on this machine, shown before and after on what is held out.

    With several problems, each is predicted by what was fitted to the others.
    """
    if args.clock not in ("auto", *CLOCKS):
        raise InputError(f"--clock {args.clock!r}: must be auto, {' or '.join(CLOCKS)}")
    output = args.output or "calibration.json"
    check_output(output)
    samples = _samples_here(store, selection, args)
    problems = dict.fromkeys(sample.problem.fingerprint for sample in samples)
    several = len(problems) > 1
    say(f"fitting to {len(samples)} placements of {len(problems)} problems")
    after = cross_validated(samples, max(5, len(problems)), args.seed, by_problem=several)
    calibration = fit(samples)
    out = console()
    out.print(_calibration_table(samples, after))
    out.print(f"calibration: {calibration}", soft_wrap=True)
    split = [Forward(s.problem, s.placement) for s in samples]
    write_calibration(output, calibration, max(mean_overlap(model) for model in split))
    out.print(f"written to {output}: for profile and place --calibration")
    return 0


def _samples_here(store: MeasurementStore, selection: Selection, args: Namespace) -> list[Sample]:
    """The least disturbed run of every placement, of this machine alone."""
    clock = None if args.clock == "auto" else args.clock
    found = stored_samples(store, selection, clock, machine())
    if not found:
        raise InputError(
            f"measurements calibrate: store {store.url!r} has no such runs of this machine; "
            "make some with gnnplace fidelity"
        )
    return thinned(least_disturbed(found), MOST, args.seed)


def _calibration_table(samples: list[Sample], after: list[float]) -> Table:
    """Error and bias of every problem before and after."""
    table = Table("problem", "M", "placements", "MAPE", "bias", "MAPE after", "bias after")
    before = [Forward(s.problem, s.placement).seconds(Calibration()) for s in samples]
    groups: dict[str, list[int]] = {}
    for i, sample in enumerate(samples):
        groups.setdefault(sample.problem.fingerprint, []).append(i)
    for rows in [*groups.values(), list(range(len(samples)))]:
        measured = np.array([samples[i].measured for i in rows])
        cells = [samples[rows[0]].problem.name, str(samples[rows[0]].problem.microbatches)]
        cells = ["all", "-"] if len(rows) == len(samples) and len(groups) > 1 else cells
        for predicted in (before, after):
            error = (np.array([predicted[i] for i in rows]) - measured) / measured
            cells += [f"{np.abs(error).mean():.1%}", f"{error.mean():+.1%}"]
        table.add_row(*cells[:2], str(len(rows)), *cells[2:])
    return table
