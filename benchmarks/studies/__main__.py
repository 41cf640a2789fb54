"""``python -m benchmarks.studies``: experiments that can be run again, with their reports."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jsonargparse import ArgumentParser, Namespace

from benchmarks.studies.costs.report import headline as costs_headline
from benchmarks.studies.costs.study import study_costs
from benchmarks.studies.orders.improvement import study_improvement
from benchmarks.studies.orders.networks import study_network_orders
from benchmarks.studies.orders.study import study_orders
from benchmarks.studies.plans.study import headline as plans_headline
from benchmarks.studies.plans.study import study_plans
from benchmarks.studies.published.study import page, study_published
from benchmarks.studies.slow.study import headline as slow_headline
from benchmarks.studies.slow.study import study_slow
from gnnplace.cli.console import console, parse_names, print_lines, say
from gnnplace.cli.options import add_options
from gnnplace.errors import GnnplaceError, InputError

SUMMARY = (
    "Runs an experiment again: traversal orders, or predictions against published runs."
)
PARTS = "seen,held-out,networks,searched,own"


OPTIONS = (
    {"name": "what", "help": "The study: orders, costs, plans, published or slow."},
    {"name": "-o --output", "help": "The folder of rows and reports; orders needs one, and does "
     "not run again what is there."},
    {"name": "--orders", "default": "", "help": "Traversal orders, separated by commas; all by "
     "default."},
    {"name": "--data", "default": "", "help": "Of published: the folder that has a folder for each "
     "set of runs."},
    {"name": "--seeds", "kind": "count", "default": 3, "help": "The number of trainings an order."},
    {"name": "--generations", "kind": "count", "default": 90, "help": "The number of generations "
     "of each training."},
    {"name": "--network", "kind": "flag", "help": "Of orders: train the network of --placer gnn "
     "under each order, which decides alone."},
    {"name": "--steps", "kind": "count", "default": 1200, "help": "With --network: the number of "
     "steps of each training."},
    {"name": "--improve", "kind": "flag", "help": "Of orders: improvement walks over one graph at "
     "a time, as Wang et al. make them."},
    {"name": "--parts", "default": PARTS, "help": "The parts of the problems to evaluate on."},
    {"name": "--report", "kind": "flag", "help": "Of orders: run nothing and report what is there. "
     "Of costs and plans: write a report to the folder."},
)  # fmt: skip


def chosen(args: Namespace) -> int:
    """Runs a study, resumable, and writes its report."""
    if args.what == "costs":
        return _costs(args)
    if args.what == "plans":
        return _plans(args)
    if args.what == "published":
        return _published(args)
    if args.what == "slow":
        print_lines(*slow_headline(study_slow(progress=say)))
        return 0
    if args.what != "orders":
        raise InputError(
            f"study {args.what!r}: unknown; use orders, costs, plans, published or slow, as in: "
            "python -m benchmarks.studies orders -o FOLDER"
        )
    if args.output is None:
        raise InputError("study orders: needs a folder for its rows; give one with -o")
    if args.network:
        study_network_orders(
            args.output,
            orders=args.orders,
            seeds=args.seeds,
            steps=args.steps,
            run=not args.report,
            progress=say,
        )
        return 0
    if args.improve:
        study_improvement(
            args.output,
            orders=args.orders,
            seeds=args.seeds,
            run=not args.report,
            progress=say,
        )
        return 0
    study_orders(
        args.output,
        orders=args.orders,
        seeds=args.seeds,
        generations=args.generations,
        parts=parse_names(args.parts),
        run=not args.report,
        progress=say,
    )
    return 0


def _costs(args: Namespace) -> int:
    """Prints how far predictions are from published steps; writes the report if it is asked for."""
    if args.report and args.output is None:
        raise InputError("study costs: --report needs a folder; give one with -o")
    study = study_costs(args.output if args.report else None, progress=say)
    for line in costs_headline(study):
        console(None).print(line)
    if args.report:
        console(None).print(f"written to {args.output}/costs.md")
    return 0


def _plans(args: Namespace) -> int:
    """Prints how far given plans are from what published runs took."""
    if args.report and args.output is None:
        raise InputError("study plans: --report needs a folder; give one with -o")
    study = study_plans(args.output if args.report else None, progress=say)
    print_lines(*plans_headline(study))
    if args.report:
        print_lines(f"written to {args.output}/plans-published.md")
    return 0


def _published(args: Namespace) -> int:
    """Prints how far tables of plans are from thousands of published rows."""
    if not args.data:
        raise InputError(
            "study published: needs the folder of its sets; give one with --data"
        )
    found = study_published(args.data, args.output, progress=say)
    sys.stdout.write("\n".join(page(found)) + "\n")
    return 0


def run(arguments: Sequence[str]) -> int:
    """Runs a study; the exit code. Errors of ours are one line on stderr."""
    parser = ArgumentParser(prog="python -m benchmarks.studies", description=SUMMARY)
    add_options(parser, OPTIONS)
    try:
        return chosen(parser.parse_args(list(arguments)))
    except GnnplaceError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
