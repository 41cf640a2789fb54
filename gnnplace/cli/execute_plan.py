"""``gnnplace execute`` of a joint plan: on workers here, or one process of torchrun's."""

from __future__ import annotations

import os
from pathlib import Path

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import print_json, print_lines
from gnnplace.cli.progress import say
from gnnplace.errors import GnnplaceError
from gnnplace.files import read_json, write_text
from gnnplace.plans.plans import read_plan
from gnnplace.report.plan_page import plan_page
from gnnplace.report.plans import run_lines

FORMAT = "gnnplace-plan"


def is_plan(path: str) -> bool:
    """Whether a file is that of a joint plan."""
    if not Path(path).is_file():
        return False
    try:
        data = read_json(path)
    except GnnplaceError:
        return False  # what reads placements says what is wrong
    return isinstance(data, dict) and data.get("format") == FORMAT


def run_plan(args: Namespace) -> int:
    """Runs a plan, compares it with one device, and measures it."""
    plan = read_plan(args.placement)
    if os.environ.get("RANK", "0") == "0":
        say(f"executing: {len(plan.file.stages)} stages, {plan.microbatches} micro-batches")
    found = gnnplace.run_plan(
        plan, args.model, train=args.train, steps=args.steps, timeout=args.timeout
    )
    if found is None:
        return 0
    if args.html is not None:
        write_text(args.html, plan_page(found.plan, run_lines(found)))
    if args.json:
        print_json(found.answer())
    else:
        print_lines(*run_lines(found))
    return 0 if found.passed else 1
