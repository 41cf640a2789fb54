"""What commands print to and check: tables on stdout, progress on stderr, output paths."""

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

from gnnplace.errors import ChangedWarning, InputError

if TYPE_CHECKING:
    from gnnplace.measurements import MeasurementStore
    from gnnplace.problem import Problem

WIDE = 160  # columns, where the output is neither a terminal nor told ``COLUMNS``
_progress = {"shown": True}


def console() -> Console:
    """Where tables go; wide when it is neither a terminal nor told ``COLUMNS``."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE
    return Console(width=wide, highlight=False)


def show_progress(shown: bool) -> None:
    """Whether ``say`` prints: not with ``--quiet``."""
    _progress["shown"] = shown


def say(line: str) -> None:
    """Prints progress on stderr, so that stdout stays clean."""
    if _progress["shown"]:
        sys.stderr.write(f"  {line}\n")
        sys.stderr.flush()


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
    sys.stdout.write(json.dumps(data, allow_nan=False) + "\n")


def print_lines(*lines: str) -> None:
    """Prints lines as they are, however long."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def check_output(path: str | None) -> None:
    """Complains before the work, not after it, when an output cannot be written.

    Raises:
        InputError: the folder does not exist, or the path is a folder.
    """
    if path is None:
        return
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise InputError(f"output {path!r}: the folder {str(folder)!r} does not exist")
    if Path(path).is_dir():
        raise InputError(f"output {path!r}: is a folder; name a file")


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


def correction(path: str | None) -> Callable[[Problem], Problem]:
    """What a calibration file makes of a problem; nothing without one.

    Raises:
        FormatError: naming the file, the key path and the fault.
    """
    if path is None:
        return lambda problem: problem
    from gnnplace.fidelity.calibration import calibrated, read_calibration

    calibration, overlap = read_calibration(path)
    return lambda problem: calibrated(problem, calibration, overlap)
