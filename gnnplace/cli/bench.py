"""``gnnplace bench``: runs benchmark suites and sums up what runs found."""

from __future__ import annotations

from typing import TypeVar

from jsonargparse import Namespace

import gnnplace
from gnnplace.bench import SummaryOptions
from gnnplace.bench.runner import Override, Where
from gnnplace.cli.console import console, names_in, say
from gnnplace.cli.numbers import BUDGET, COUNT, SEED, Range, check_number
from gnnplace.errors import InputError

Number = TypeVar("Number", int, float)


def run(args: Namespace) -> int:
    """Runs a benchmark suite, or sums up what runs found."""
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
    if args.files or args.output is None:
        raise InputError("bench: give one suite and -o FOLDER, or: gnnplace bench summary FILE...")
    override = Override(
        tuple(names_in(args.placers)),
        numbers(args.budgets, float, "--budgets", BUDGET),
        numbers(args.steps, int, "--steps", COUNT),
        numbers(args.seeds, int, "--seeds", SEED),
        part_of(args.part),
        args.accept_other_loss,
    )
    where = Where(args.processes, args.dask, args.keep)
    return gnnplace.run_suite(args.suite, args.output, console(), say, override, where)


def numbers(text: str, kind: type[Number], what: str, allowed: Range) -> tuple[Number, ...]:
    """Comma-separated numbers.

    Raises:
        InputError: one of them is none, or out of its range.
    """
    try:
        found = tuple(kind(part) for part in text.split(",") if part)
    except ValueError:
        raise InputError(f"{what} {text!r}: give numbers with commas between them") from None
    for value in found:
        check_number(what, value, allowed)
    return found


def part_of(text: str) -> tuple[int, int] | None:
    """``K/N`` as two numbers; None for nothing."""
    if not text:
        return None
    found = numbers(text.replace("/", ","), int, "--part", COUNT)
    if len(found) != 2:
        raise InputError(f"--part {text!r}: give K/N, such as 1/2")
    return found[0], found[1]
