"""``gnnplace bench``: runs benchmark suites and sums up what runs found."""

from __future__ import annotations

from typing import TypeVar

from jsonargparse import Namespace

from gnnplace.bench import Override, Where, run_suite, summarise
from gnnplace.cli.commands import console, say
from gnnplace.errors import InputError

N = TypeVar("N", int, float)


def bench(args: Namespace) -> int:
    """Runs a benchmark suite, or sums up what runs found."""
    if args.suite == "summary":
        return summarise(
            args.files,
            console(),
            best_known=args.best_known,
            record=args.record,
            rival=args.rival,
            only=args.only,
            folder=args.output,
        )
    if args.files or args.output is None:
        raise InputError("bench: give one suite and -o FOLDER, or: gnnplace bench summary FILE...")
    override = Override(
        tuple(name for name in args.placers.split(",") if name),
        numbers(args.budgets, float, "--budgets"),
        numbers(args.seeds, int, "--seeds"),
        part_of(args.part),
    )
    where = Where(args.processes, args.dask, args.keep)
    return run_suite(args.suite, args.output, console(), say, override, where)


def numbers(text: str, kind: type[N], what: str) -> tuple[N, ...]:
    """Comma-separated numbers.

    Raises:
        InputError: one of them is none.
    """
    try:
        return tuple(kind(part) for part in text.split(",") if part)
    except ValueError:
        raise InputError(f"{what} {text!r}: give numbers with commas between them") from None


def part_of(text: str) -> tuple[int, int] | None:
    """``K/N`` as two numbers; None for nothing."""
    if not text:
        return None
    found = numbers(text.replace("/", ","), int, "--part")
    if len(found) != 2:
        raise InputError(f"--part {text!r}: give K/N, such as 1/2")
    return found[0], found[1]
