"""``gnnplace hybrid``: how to use N devices, data-parallel groups of model-parallel devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import check_output, print_answer, say
from gnnplace.cli.numbers import (
    from_args,
)
from gnnplace.cli.options import (
    capture_options,
)
from gnnplace.errors import InputError
from gnnplace.files import write_text

if TYPE_CHECKING:
    from gnnplace.plans import HybridSearch as Search


def run(args: Namespace) -> int:
    """Print every split of N devices, the cross-over and the recommendation."""
    if args.execute and args.html is not None:
        raise InputError(
            "--html: shows the splits of a study; --execute runs one of them"
        )
    if args.execute:
        return _execute(args)
    return _study(args)


def _study(args: Namespace) -> int:
    from gnnplace.plans import HybridOptions
    from gnnplace.report import (
        check_drawable,
        hybrid_page,
        hybrid_plot,
        hybrid_study_data,
        hybrid_study_lines,
        hybrid_table,
        write_picture,
    )

    check_output(args.output, args.html)
    if args.output is not None:
        check_drawable(args.output)
    if args.html is not None:
        check_drawable(args.html)
    options = from_args(HybridOptions, args, overlap=not args.no_overlap)
    study = gnnplace.study_hybrid(
        args.what, args.cluster, options=options, search=_search(args), progress=say
    )
    if args.output is not None:
        title = f"{args.what} on up to {study.devices} devices: time to converge"
        note = f"step {study.origin['step']}; epochs {study.origin['epochs']}"
        write_picture(args.output, hybrid_plot(study.rows, title=title, note=note))
    if args.html is not None:
        write_text(args.html, hybrid_page(study))
    title = f"{args.what} on up to {study.devices} devices"
    table = hybrid_table(study.rows, title, study.advice)
    print_answer(
        args,
        lambda: hybrid_study_data(study),
        lambda: [table, *hybrid_study_lines(study)],
    )
    return 0


def _execute(args: Namespace) -> int:
    """Run groups x devices as a plan, and DDP beside it. Return 1 if numbers are wrong."""
    from gnnplace.plans import HybridRunning as Running
    from gnnplace.report import run_lines

    if args.cluster is None:
        raise InputError("hybrid --execute: --cluster is needed, such as cpu:4")
    counts = microbatch_counts(args.microbatches or "1")
    if len(counts) > 1:
        raise InputError(
            f"--microbatches {args.microbatches!r}: --execute runs one number of them"
        )
    running = Running(
        groups=args.replicas,
        devices=args.group_devices,
        microbatches=counts[0],
        steps=args.steps,
        timeout=args.timeout,
    )
    plan_run = gnnplace.execute_hybrid(
        args.what,
        args.cluster,
        running=running,
        accept_other_loss=capture_options(args, microbatches=1).accept_other_loss,
        progress=say,
    )
    print_answer(
        args, plan_run.answer, lambda: [plan_run.plan.shape, *run_lines(plan_run)]
    )
    return 0 if plan_run.passed else 1


def _search(args: Namespace) -> Search:
    from gnnplace.plans import HybridSearch as Search

    capture = capture_options(args, microbatches=1)
    counts = microbatch_counts(args.microbatches or "1,4")
    return Search(args.placer, args.budget, args.seed, counts, capture)


def microbatch_counts(text: str) -> list[int]:
    """Parse numbers of micro-batches from a comma-separated list.

    Raises:
        InputError: The numbers are not positive.
    """
    words = [word.strip() for word in text.split(",")]
    words = [word for word in words if word]
    are_positive = all(word.isdecimal() and int(word) > 0 for word in words)
    if not words or not are_positive:
        raise InputError(
            f"--microbatches {text!r}: must be positive numbers, comma-separated"
        )
    return sorted({int(word) for word in words})
