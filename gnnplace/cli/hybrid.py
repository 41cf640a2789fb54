"""``gnnplace hybrid``: how to use N devices, data-parallel groups of model-parallel devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

import gnnplace
from gnnplace.cli.console import check_output, console, print_json, print_lines, say
from gnnplace.cli.numbers import (
    COUNT,
    DEVICES,
    NOT_NEGATIVE,
    POSITIVE,
    SECONDS,
    STEPS,
    add_options,
    from_args,
)
from gnnplace.cli.options import (
    add_capture_options,
    add_html,
    add_output,
    add_search_options,
    add_shared,
    capture_options,
    cluster_help,
    model_help,
)
from gnnplace.errors import InputError
from gnnplace.files import write_text

if TYPE_CHECKING:
    from gnnplace.plans.hybrid.study import Search

SUMMARY = "Shows how to use N devices: data-parallel groups of model-parallel devices."


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("what", help=model_help("A problem file, or a model"))
    add_options(parser, ("--cluster", cluster_help("As for place; a problem file has its own")))
    add_shared(parser, "links")
    add_options(
        parser,
        (
            "--devices",
            (int, DEVICES),
            None,
            "The number of devices, N; more than the cluster has are copies of it.",
        ),
        ("--most", (int, DEVICES), 8, "The most devices that a group may have."),
        ("--placer", str, "best", "The placer of a group's step; plan: it is a plan of layers."),
    )
    _training_arguments(parser)
    add_options(
        parser,
        ("--execute", bool, False, "Run one hybrid step of MODEL for real."),
        ("--replicas", (int, DEVICES), 2, "With --execute: the data-parallel groups."),
        ("--group-devices", (int, DEVICES), 1, "With --execute: the devices of a group."),
        ("--steps", (int, STEPS), 10, "With --execute: the number of steps to time."),
        ("--timeout", (float, SECONDS), 120.0, "With --execute: seconds without progress."),
    )
    add_shared(parser, "json")
    add_output(parser, "A plot of time against devices, .svg or .html.", required=False)
    add_html(parser, "the recommendation, the plot and every split")
    add_search_options(parser)
    add_capture_options(parser, many=True)
    add_shared(parser, "fresh")


def _training_arguments(parser: ArgumentParser) -> None:
    add_options(
        parser,
        ("--batch", (int, COUNT), None, "The examples of a step, for a problem file."),
        ("--examples", (int, COUNT), None, "The examples of an epoch."),
        ("--epochs-table", "A CSV or YAML file of epochs by global batch."),
        ("--least-epochs", (float, POSITIVE), None, "The epochs needed at small batches."),
        (
            "--critical-batch",
            (float, POSITIVE),
            None,
            "The global batch that takes twice the least epochs.",
        ),
        (
            "--network-latency",
            (float, NOT_NEGATIVE),
            10e-6,
            "The seconds of a message between copies of the cluster.",
        ),
        (
            "--network-bandwidth",
            (float, POSITIVE),
            10e9,
            "The bytes per second between copies of the cluster.",
        ),
        ("--no-overlap", bool, False, "Reduce gradients after the backward pass."),
    )


def run(args: Namespace) -> int:
    """Prints every split of N devices, the cross-over and the recommendation."""
    if args.execute and args.html is not None:
        raise InputError("--html: shows the splits of a study; --execute runs one of them")
    return _execute(args) if args.execute else _study(args)


def _study(args: Namespace) -> int:
    from gnnplace.plans.hybrid.study import HybridOptions
    from gnnplace.report.hybrid import (
        hybrid_page,
        hybrid_plot,
        hybrid_table,
        study_data,
        study_lines,
    )
    from gnnplace.report.pictures import check_drawable, write_picture

    check_output(args.output, args.html)
    if args.output is not None:
        check_drawable(args.output)
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
    if args.json:
        print_json(study_data(study))
        return 0
    out = console()
    title = f"{args.what} on up to {study.devices} devices"
    out.print(hybrid_table(study.rows, title, study.advice))
    for line in study_lines(study):
        out.print(line, soft_wrap=True)
    return 0


def _execute(args: Namespace) -> int:
    """Runs groups x devices as a plan, and DDP beside it; 1 if numbers are wrong."""
    from gnnplace.plans.hybrid.run import Running
    from gnnplace.report.plans import run_lines

    if args.cluster is None:
        raise InputError("hybrid --execute: --cluster is needed, such as cpu:4")
    counts = microbatch_counts(args.microbatches or "1")
    if len(counts) > 1:
        raise InputError(f"--microbatches {args.microbatches!r}: --execute runs one number of them")
    running = Running(
        groups=args.replicas,
        devices=args.group_devices,
        microbatches=counts[0],
        steps=args.steps,
        timeout=args.timeout,
    )
    done = gnnplace.execute_hybrid(
        args.what,
        args.cluster,
        running=running,
        accept_other_loss=capture_options(args, microbatches=1).accept_other_loss,
        progress=say,
    )
    if args.json:
        print_json(done.answer())
    else:
        print_lines(done.plan.shape, *run_lines(done))
    return 0 if done.passed else 1


def _search(args: Namespace) -> Search:
    from gnnplace.plans.hybrid.study import Search

    capture = capture_options(args, microbatches=1)
    counts = microbatch_counts(args.microbatches or "1,4")
    return Search(args.placer, args.budget, args.seed, counts, capture)


def microbatch_counts(text: str) -> list[int]:
    """Numbers of micro-batches from a comma-separated list.

    Raises:
        InputError: not positive numbers.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise InputError(f"--microbatches {text!r}: must be positive numbers, comma-separated")
    return sorted({int(part) for part in parts})
