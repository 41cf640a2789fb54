"""``gnnplace measurements list|export|prune``: looks into the store of measured steps."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from jsonargparse import Namespace
from rich.console import Console
from rich.table import Table

from gnnplace.commands import check_output, console
from gnnplace.errors import InputError
from gnnplace.files import write_text
from gnnplace.measurements import MeasurementStore, Selection, StoredRun, default_store
from gnnplace.report import seconds_text

ACTIONS = ("list", "export", "prune")
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
