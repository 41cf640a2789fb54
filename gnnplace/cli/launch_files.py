"""What commands share that read a launch file: its launcher, and values that it leaves open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.options import values_of

if TYPE_CHECKING:
    from gnnplace.plans import LaunchPlan


def read_launch_file(
    args: Namespace, path: str, launcher: str | None = None
) -> tuple[LaunchPlan, str]:
    """Return the plan of a launch file with what the options say, and its launcher.

    Args:
        args: Of a command that has `--set`, `--gpus`, `--microbatch-size` and `--precision`.
        path: The file.
        launcher: Whose it is; None: its content tells.

    Raises:
        FormatError: The file cannot be read as one.
        InputError: An option contradicts the file.
    """
    from gnnplace.plans import with_missing

    name = launcher or gnnplace.launcher_of_file(path)
    plan = gnnplace.read_launch_file(path, name, values_of(args))
    filled = with_missing(
        plan,
        microbatch_size=args.microbatch_size,
        precision=args.precision,
        gpus=args.gpus,
    )
    return filled, name
