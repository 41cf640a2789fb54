"""``gnnplace study orders``: runs what is missing of the traversal-order study and reports."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import Namespace

from gnnplace.cli.commands import say
from gnnplace.errors import InputError
from gnnplace.files import write_text
from gnnplace.studies.orders.report import (
    SHIPPED_COUNTS,
    latest,
    parts_of,
    picture,
    recommendation,
    report,
    written,
)
from gnnplace.studies.orders.study import CHECK, Plan, Study, orders_of
from gnnplace.studies.orders.tree import write_tree


def study(args: Namespace) -> int:
    """Runs a study, resumable, and writes its report."""
    if args.what != "orders":
        raise InputError(f"study {args.what!r}: unknown; use: gnnplace study orders -o FOLDER")
    parts = tuple(name for name in args.parts.split(",") if name)
    plan = Plan(orders_of(args.orders), tuple(range(args.seeds)), args.generations, parts)
    work = Study(Path(args.output), say)
    if not args.report:
        work.run(plan)
    write_report(work, plan.generations, run=not args.report)
    return 0


def write_report(work: Study, generations: int, *, run: bool) -> None:
    """Writes tables, picture and recommendation; checks the recommendation if that may ``run``."""
    parts = parts_of(work.rows, generations)
    trees = {f"{count} orders": recommendation(parts[0], count) for count in SHIPPED_COUNTS}
    if run:
        work.check(trees)
    files = written(work.folder)
    write_text(files["md"], report(parts, latest(work.rows, CHECK)))
    write_text(files["svg"], picture(parts))
    about = f"fitted on {len(parts[0].problems)} problems of the families seen, package's weights"
    write_tree(files["json"], list(trees.values())[-1], about)
    for path in files.values():
        say(f"{path}: written")
