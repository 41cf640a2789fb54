"""What commands print to and check: tables and JSON on stdout, output paths."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from gnnplace.cli.progress import pause, say
from gnnplace.errors import ChangedWarning, InputError
from gnnplace.files import descriptor_of, in_place

if TYPE_CHECKING:
    from gnnplace.measurements import MeasurementStore
    from gnnplace.problem import Problem

STDOUT = 1  # its descriptor
WIDE = 160  # columns, where the output is neither a terminal nor told ``COLUMNS``


def console(output: str | None = None) -> Console:
    """Where tables go; wide when it is neither a terminal nor told ``COLUMNS``.

    Args:
        output: the file that a command wrote; where it is stdout itself, what is said of it goes to
            stderr.
    """
    taken = output is not None and descriptor_of(output) == STDOUT
    stream = sys.stderr if taken else sys.stdout
    pause()
    wide = None if stream.isatty() or "COLUMNS" in os.environ else WIDE
    return Console(width=wide, highlight=False, stderr=taken)


@contextmanager
def changes_said() -> Iterator[None]:
    """Within it what a captured step does otherwise than the model is printed, once a line."""
    said: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", ChangedWarning)
        original = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if not issubclass(category, ChangedWarning):
                original(message, category, *rest, **more)
            elif str(message) not in said:
                said.add(str(message))
                say(f"note: {message}")

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def print_json(data: Any) -> None:
    """Prints one JSON object on a line of its own."""
    pause()
    sys.stdout.write(json.dumps(data, allow_nan=False) + "\n")


def print_lines(*lines: str) -> None:
    """Prints lines as they are, however long."""
    pause()
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def check_output(path: str | None) -> None:
    """Complains before the work, not after it, when an output cannot be written.

    Raises:
        InputError: the folder does not exist, or the path is a folder.
    """
    if path is None:
        return
    if Path(path).is_dir():
        raise InputError(f"output {path!r}: is a folder; name a file")
    if in_place(path):
        return
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise InputError(f"output {path!r}: the folder {str(folder)!r} does not exist")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"output {path!r}: the folder {str(folder)!r} cannot be written to")


def output_folder(path: str) -> Path:
    """Makes a folder for what a command writes.

    Raises:
        InputError: it cannot be made.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"output {path!r}: cannot be made: {error.strerror}") from None
    return folder


def names_in(text: str) -> list[str]:
    """The names of a comma-separated list."""
    return [name for name in text.split(",") if name]


def open_store(url: str | None) -> MeasurementStore | None:
    """The store of measurements that a command writes to, or None.

    Raises:
        InputError: the store given with ``--store`` cannot be opened. If the default store cannot
            be opened, a warning is printed instead.
    """
    from gnnplace.measurements import MeasurementStore, default_store

    if url == "none":
        return None
    if url is not None:
        return MeasurementStore(url)
    try:
        return MeasurementStore(default_store())
    except InputError as error:
        say(f"measurements are not kept: {error}")
        return None


def say_kept(fault: str) -> None:
    """Says so if the store did not take everything of a run."""
    if fault:
        say(f"measurements are not all kept: {fault}")


def say_idle(problem: Problem) -> None:
    """Says so if a problem has devices that no op can run on."""
    if problem.idle:
        say(problem.idle)


def correction(path: str | None) -> Callable[[Problem], Problem]:
    """What a calibration file makes of a problem; nothing without one.

    Raises:
        FormatError: naming the file, the key path and the fault.
    """
    if path is None:
        return lambda problem: problem
    from gnnplace.measurements.calibration import calibrated, read_calibration

    calibration, overlap = read_calibration(path)
    return lambda problem: calibrated(problem, calibration, overlap)
