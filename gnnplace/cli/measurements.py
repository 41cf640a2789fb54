"""``gnnplace measurements list|export|prune|calibrate``: what the store of measured steps has."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import check_output, console, print_json, print_sections, say
from gnnplace.cli.numbers import from_args
from gnnplace.errors import InputError
from gnnplace.files import write_text
from gnnplace.measurements import (
    MeasurementStore,
    Selection,
    StoredRun,
    open_store,
    write_calibration,
)
from gnnplace.report import as_json, describe

ACTIONS = ("list", "export", "prune", "calibrate")


def run(args: Namespace) -> int:
    """List, export, prune or calibrate from stored runs."""
    if args.action not in ACTIONS:
        raise InputError(
            f"measurements: action {args.action!r} is unknown; actions: {', '.join(ACTIONS)}"
        )
    selection = from_args(Selection, args, before=_instant(args.before))
    store = open_store(args.store)
    if store is None:
        raise InputError(
            "measurements: the store is none, where nothing is kept; give --store PATH, or unset "
            "GNNPLACE_STORE"
        )
    if args.action == "prune":
        return _prune(store, selection, args)
    if args.action == "calibrate":
        return _calibrate(store, selection, args)
    runs = store.runs(selection, args.limit)
    if args.action == "export":
        return _export(store, runs, args.output)
    answer = describe(store, runs=runs)
    if not args.json:
        print_sections(answer)
        return 0
    for row in as_json(answer):
        print_json(row)
    return 0


def _instant(text: str | None) -> str | None:
    """Return a date or an instant as the store has it, in UTC; without a zone it is UTC."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"--before {text!r}: not a date; give 2026-11-21 or 2026-11-21T12:00"
        ) from None
    if time.tzinfo:
        zoned = time
    else:
        zoned = time.replace(tzinfo=UTC)
    return zoned.astimezone(UTC).isoformat(timespec="microseconds")


def _export(store: MeasurementStore, runs: list[StoredRun], output: str | None) -> int:
    """Write one JSON line a run, oldest first, with its problem, placement and all its steps."""
    if output is None:
        for line in _lines(store, runs):
            sys.stdout.write(line)
        return 0
    check_output(output)
    write_text(output, "".join(_lines(store, runs)))
    console(output).print(f"{len(runs)} runs written to {output}")
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
    """Fit one calibration to all runs on this machine and show its error on held-out runs."""
    output = args.output or "calibration.json"
    check_output(output)
    calibrated = gnnplace.calibrate(
        store, selection, clock=args.clock, seed=args.seed, progress=say
    )
    print_sections(describe(calibrated), output)
    write_calibration(output, calibrated.calibration, calibrated.overlap)
    console(output).print(f"written to {output}: for profile and place --calibration")
    return 0
