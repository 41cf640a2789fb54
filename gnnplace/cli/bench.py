"""``gnnplace bench``: runs benchmark suites and sums up what runs found."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from jsonargparse import Namespace

import gnnplace
from gnnplace.bench import (
    Override,
    SummaryOptions,
    Where,
    check_files,
    compute_coverage,
    make_declaration,
    pack_rows,
    suite_names,
    suite_path,
    write_submission,
)
from gnnplace.cli.console import console, parse_names, print_lines, say
from gnnplace.cli.numbers import BUDGET, COUNT, SEED, Range, check_number
from gnnplace.errors import InputError

PACK = "pack"
CHECK = "check"
RESULTS = "results"  # folder of rows where none is given
Number = TypeVar("Number", int, float)


def run(args: Namespace) -> int:
    """Run a benchmark suite, or sum up the results of runs."""
    if args.suite == "summary":
        return gnnplace.summarise(
            args.files,
            console(),
            SummaryOptions(
                best_known=args.best_known,
                record=args.record,
                rival=args.rival,
                only=args.only,
                folder=args.output,
                dirty=args.dirty,
            ),
        )
    if args.suite == PACK:
        return _pack(args)
    if args.suite == CHECK:
        return _check(args)
    if args.files:
        raise InputError(
            "bench: give one suite, or: gnnplace bench summary|pack|check FILE..."
        )
    override = Override(
        tuple(parse_names(args.placers)),
        numbers(args.budgets, float, "--budgets", BUDGET),
        numbers(args.steps, int, "--steps", COUNT),
        numbers(args.seeds, int, "--seeds", SEED),
        parse_part(args.part),
        args.accept_other_loss,
    )
    location = Where(args.processes, args.dask, args.keep)
    if args.output is None:
        folder = RESULTS
    else:
        folder = args.output
    return gnnplace.run_suite(
        _suite_file(args.suite), folder, console(), say, override, location
    )


def _suite_file(name: str) -> str:
    """Return the path of a suite: a file, or a suite that comes with the package by its name.

    Raises:
        InputError: There is no such file and no such suite.
    """
    if Path(name).suffix or Path(name).exists():
        return name
    path = suite_path(name)
    if path is None:
        raise InputError(
            f"suite {name!r}: no such file, and none of the package's: {', '.join(suite_names())}"
        )
    return str(path)


def _pack(args: Namespace) -> int:
    """Write the rows of a run with --keep as a submission."""
    if not args.by or args.output is None or len(args.files) != 1:
        raise InputError("bench pack: give one file of rows, --by WHO and -o FILE")
    declaration = make_declaration(
        by=args.by, code=args.code, card=args.card, untrained=args.untrained
    )
    rows = pack_rows(Path(args.files[0]), declaration)
    write_submission(Path(args.output), rows)
    print_lines(*map(str, compute_coverage(rows)), f"written to {args.output}")
    return 0


def _check(args: Namespace) -> int:
    """Simulate the rows of submissions anew, and say how much of their suites they cover."""
    if not args.files:
        raise InputError("bench check: give files of submitted rows")
    count, entries = check_files(args.files)
    print_lines(f"{count} rows are what they say", *map(str, entries))
    return 0


def numbers(
    text: str, kind: type[Number], option: str, allowed: Range
) -> tuple[Number, ...]:
    """Return the comma-separated numbers of a text.

    Raises:
        InputError: One of them is no number, or out of its range.
    """
    try:
        values = tuple(kind(part) for part in text.split(",") if part)
    except ValueError:
        raise InputError(
            f"{option} {text!r}: give numbers with commas between them"
        ) from None
    for value in values:
        check_number(option, value, allowed)
    return values


def parse_part(text: str) -> tuple[int, int] | None:
    """Return the two numbers of ``K/N``, or None for an empty text."""
    if not text:
        return None
    pair = numbers(text.replace("/", ","), int, "--part", COUNT)
    if len(pair) != 2:
        raise InputError(f"--part {text!r}: give K/N, such as 1/2")
    return pair[0], pair[1]
