"""``gnnplace fidelity``: predicted against measured step times, on placements that differ."""

from __future__ import annotations

from jsonargparse import ArgumentParser, Namespace

import gnnplace
from gnnplace.cli.console import console, names_in, open_store, output_folder, print_json, say
from gnnplace.cli.numbers import COUNT, add_options, from_args
from gnnplace.cli.options import (
    add_capture_options,
    add_run_options,
    add_search_options,
    add_shared,
    capture_options,
    model_help,
)

SUMMARY = "Measures placements that differ, and how well they were predicted."


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("model", help=model_help())
    parser.add_argument(
        "--cluster", required=True, help="Devices of this machine: cpu:N, cuda:N or auto."
    )
    add_options(
        parser,
        ("--placements", (int, COUNT), 30, "The number of placements to measure."),
        (
            "--placers",
            str,
            "",
            "Placers whose placements are among them, separated by commas; all by default.",
        ),
        ("--rounds", (int, COUNT), 6, "The number of times each placement is measured."),
        ("--clock", str, "auto", "The clock to compare by: auto, wall or virtual."),
        ("--stored", bool, False, "Calibrate on earlier runs in the store as well."),
    )
    add_shared(parser, "json")
    parser.add_argument(
        "-o", "--output", default="fidelity-output", help="The folder of figures, page and files."
    )
    add_search_options(parser)
    add_capture_options(parser)
    add_shared(parser, "fresh")
    add_run_options(parser)


def run(args: Namespace) -> int:
    """Measures, compares, calibrates, prints, writes."""
    from gnnplace.execution.fidelity import FidelityOptions
    from gnnplace.report.fidelity import study_data, study_lines, study_table, write_study

    options = from_args(FidelityOptions, args, placers=names_in(args.placers))
    folder, store = output_folder(args.output), open_store(args.store)
    study = gnnplace.check_fidelity(
        args.model,
        args.cluster,
        capture=capture_options(args),
        options=options,
        store=store,
        progress=say,
    )
    if args.json:
        print_json(study_data(study))
    else:
        out = console()
        out.print(study_table(study))
        for line in study_lines(study):
            out.print(line, soft_wrap=True)
        out.print(
            f"written to {args.output}: fidelity.html, fidelity.json, calibration.json, "
            "problem.json and cluster.yaml (calibrated, for place)",
            soft_wrap=True,
        )
    write_study(study, folder)
    return 0 if study.before is not None else 1
