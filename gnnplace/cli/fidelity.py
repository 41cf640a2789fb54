"""``gnnplace fidelity``: predicted against measured step times, on placements that differ."""

from __future__ import annotations

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import (
    console,
    open_store,
    output_folder,
    parse_names,
    say,
    show_answer,
)
from gnnplace.cli.numbers import from_args
from gnnplace.cli.options import (
    capture_options,
)
from gnnplace.foreign import check_installed


def run(args: Namespace) -> int:
    """Measure placements, compare them with predictions, calibrate, print and write."""
    from gnnplace.report import describe, write_study
    from gnnplace.run.measuring import FidelityOptions

    check_installed("torch", "matplotlib")  # its page has pictures
    options = from_args(FidelityOptions, args, placers=parse_names(args.placers))
    folder = output_folder(args.output)
    store = open_store(args.store)
    study = gnnplace.check_fidelity(
        args.model,
        args.cluster,
        capture=capture_options(args),
        options=options,
        store=store,
        progress=say,
    )
    show_answer(args, describe(study))
    if not args.json:
        console().print(
            f"written to {args.output}: fidelity.html, fidelity.json, calibration.json, "
            "problem.json and cluster.yaml (calibrated, for place)",
            soft_wrap=True,
        )
    write_study(study, folder)
    if study.before is not None:
        return 0
    return 1
