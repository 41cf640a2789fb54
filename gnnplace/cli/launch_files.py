"""Reading of launch files for commands: the launcher, and values that a file leaves open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.options import parse_set_values
from gnnplace.errors import InputError

if TYPE_CHECKING:
    from gnnplace.launch import LaunchPlan


def check_launch_output(path: str | None, launcher: str | None) -> None:
    """Check that a launcher's file has a name by which it can be read.

    Args:
        path: What is written; None: nothing.
        launcher: The launcher whose file it is, or None for a file of no launcher.

    Raises:
        InputError: A module of torchtitan would be named as its TOML is, which is read alone.
    """
    if launcher == "torchtitan" and path is not None and path.endswith(".toml"):
        raise InputError(
            f"output {path!r}: torchtitan's file is a Python module, its TOML of 2024 to 2026 is "
            "read and not written; end it with .py"
        )


def read_launch_file(
    args: Namespace, path: str, launcher: str | None = None
) -> tuple[LaunchPlan, str]:
    """Return the plan of a launch file with what the options say, and its launcher.

    Args:
        args: Arguments with `--set`, `--gpus`, `--microbatch-size` and `--precision`.
        path: The file.
        launcher: The launcher that the file belongs to. None: its content tells.

    Raises:
        FormatError: The file cannot be read as a launch file.
        InputError: An option contradicts the file.
    """
    from gnnplace.launch import with_missing

    name = launcher or gnnplace.find_launcher_of_file(path)
    plan = gnnplace.read_launch_file(path, name, parse_set_values(args))
    filled = with_missing(
        plan,
        microbatch_size=args.microbatch_size,
        precision=args.precision,
        gpus=args.gpus,
    )
    return filled, name
