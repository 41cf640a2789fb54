"""``gnnplace bench``: runs benchmark suites and sums up what runs found."""

from __future__ import annotations

from typing import TypeVar

from jsonargparse import ArgumentParser, Namespace

import gnnplace
from gnnplace.bench.runner import Override, Where
from gnnplace.cli.console import console, names_in, say
from gnnplace.cli.numbers import BUDGET, COUNT, SEED, Range, add_options, check_number
from gnnplace.cli.options import add_output, add_shared
from gnnplace.errors import InputError

SUMMARY = "Runs a suite, resumable, one JSON line a cell; or sums such lines up."
Number = TypeVar("Number", int, float)


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("suite", help="A suite file; or the word summary, with files of lines.")
    parser.add_argument("files", nargs="*", help="For summary: files of lines to sum up.")
    add_output(parser, "The folder of results, or of tables and plots.", required=False)
    instead = "separated by commas, instead of the suite's own."
    add_options(
        parser,
        ("--placers", str, "", f"Placers, {instead}"),
        ("--budgets", str, "", f"Budgets in seconds, {instead}"),
        ("--seeds", str, "", f"Seeds, {instead}"),
        ("--part", str, "", "K/N runs the K-th of N parts of the problems alone."),
        (
            "--processes",
            (int, Range(0, most=1024)),
            0,
            "The number of worker processes; 0 for none.",
        ),
        ("--dask", str, "", "The address of a Dask scheduler whose workers run the cells."),
    )
    add_shared(parser, "accept-other-loss")
    add_options(
        parser,
        ("--keep", bool, False, "Keep problems and placements beside the rows."),
        ("--best-known", "For summary: a file of best known step times."),
        ("--record", bool, False, "For summary: write that file anew with the rows."),
        ("--rival", str, "annealing", "For summary: who wins and losses are counted against."),
        ("--only", str, "", "For summary: only problems whose key contains this text."),
        ("--dirty", bool, False, "For summary: rows of code that no commit has count, too."),
    )


def run(args: Namespace) -> int:
    """Runs a benchmark suite, or sums up what runs found."""
    if args.suite == "summary":
        return gnnplace.summarise(
            args.files,
            console(),
            best_known=args.best_known,
            record=args.record,
            rival=args.rival,
            only=args.only,
            folder=args.output,
            dirty=args.dirty,
        )
    if args.files or args.output is None:
        raise InputError("bench: give one suite and -o FOLDER, or: gnnplace bench summary FILE...")
    override = Override(
        tuple(names_in(args.placers)),
        numbers(args.budgets, float, "--budgets", BUDGET),
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
