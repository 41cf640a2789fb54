"""The console of commands: tables and JSON on stdout, checks of output paths.

Progress on stderr, for all commands.

On a terminal a bar appears after one second. It shows the current task, how much of it is done if a
line says so ("40 of 119"), and its seconds; finished tasks stay above it with their seconds.
Otherwise every line is printed, and of lines that count only one now and then. With ``--quiet``
nothing is printed.

The bar is drawn by a thread. Since commands fork workers, nothing is drawn during a fork, and the
new process has no bar.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnplace.errors import ChangedWarning, InputError
from gnnplace.files import find_descriptor, is_written_in_place

if TYPE_CHECKING:
    from jsonargparse import Namespace
    from rich.console import Console
    from rich.progress import Progress

    from gnnplace.measurements import MeasurementStore
    from gnnplace.problem import Problem
    from gnnplace.report import Answer

STDOUT = 1  # The file descriptor
WIDE = 160  # columns, where the output is neither a terminal nor told ``COLUMNS``


def console(output: str | None = None) -> Console:
    """Return the console for tables; wide when it is neither a terminal nor told ``COLUMNS``.

    Args:
        output: The file that a command wrote; where it is stdout itself, what is said of it goes to
            stderr.
    """
    from rich.console import Console

    taken = output is not None and find_descriptor(output) == STDOUT
    stream = sys.stderr if taken else sys.stdout
    pause()
    if stream.isatty() or "COLUMNS" in os.environ:
        wide = None
    else:
        wide = WIDE
    return Console(width=wide, highlight=False, markup=False, emoji=False, stderr=taken)


@contextmanager
def changes_said() -> Iterator[None]:
    """Print, inside the block, each way in which a captured step differs from the model, once."""
    messages: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", ChangedWarning)
        original = warnings.showwarning

        def show(
            message: Warning | str, category: type[Warning], *rest: Any, **more: Any
        ) -> None:
            if not issubclass(category, ChangedWarning):
                original(message, category, *rest, **more)
            elif str(message) not in messages:
                messages.add(str(message))
                say(f"note: {message}")

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def print_json(data: object) -> None:
    """Print one JSON object on a line of its own."""
    pause()
    sys.stdout.write(json.dumps(data, allow_nan=False) + "\n")


def show_answer(args: Namespace, answer: Answer) -> None:
    """Print an answer from its description: as JSON where ``--json`` asks for it."""
    if args.json:
        from gnnplace.report import as_json

        print_json(as_json(answer))
    else:
        print_sections(answer)


def print_sections(answer: Answer, output: str | None = None) -> None:
    """Print the lines and tables of an answer.

    Args:
        answer: The answer.
        output: The file that the command wrote, as for ``console``.
    """
    from gnnplace.report import as_terminal

    parts = list(as_terminal(answer))
    lines: list[str] = []
    for part in parts:
        if isinstance(part, str):
            lines.append(part)
    # Lines alone need no console, whose library takes a while to import.
    if output is None and len(lines) == len(parts):
        print_lines(*lines)
        return
    out = console(output)
    for part in parts:
        out.print(part, soft_wrap=isinstance(part, str))


def print_lines(*lines: str) -> None:
    """Print lines unwrapped, however long they are."""
    pause()
    for line in lines:
        sys.stdout.write(line + "\n")


def check_output(*paths: str | None) -> None:
    """Refuse outputs that cannot be written, before the work and not after it.

    Raises:
        InputError: The folder of one does not exist, or the path is a folder.
    """
    for path in paths:
        if path is None or (is_written_in_place(path) and not Path(path).is_dir()):
            continue
        if Path(path).is_dir():
            raise InputError(f"output {path!r}: is a folder; name a file")
        folder = Path(os.path.realpath(path)).parent
        if not folder.is_dir():
            raise InputError(
                f"output {path!r}: the folder {str(folder)!r} does not exist"
            )
        if not os.access(folder, os.W_OK | os.X_OK):
            raise InputError(
                f"output {path!r}: the folder {str(folder)!r} cannot be written to"
            )


def output_folder(path: str) -> Path:
    """Make a folder for what a command writes.

    Raises:
        InputError: The folder cannot be made.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"output {path!r}: cannot be made: {error.strerror}") from None
    return folder


def parse_names(text: str) -> list[str]:
    """Return the names of a comma-separated list.

    Raises:
        InputError: The text has commas alone.
    """
    names = [name for name in text.split(",") if name]
    if text and not names:
        raise InputError(f"{text!r}: no name stands between the commas")
    return names


def open_store(url: str | None) -> MeasurementStore | None:
    """Open the store of measurements that a command writes to; None if nothing is kept.

    Raises:
        InputError: The store given with ``--store`` cannot be opened. If the default store cannot
            be opened, a warning is printed instead.
    """
    from gnnplace import measurements

    try:
        return measurements.open_store(url)
    except InputError as error:
        if url:
            raise
        say(f"measurements are not kept: {error}")
        return None


def say_kept(fault: str) -> None:
    """Print a note if the store did not take everything of a run."""
    if fault:
        say(f"measurements are not all kept: {fault}")


def say_idle(problem: Problem) -> None:
    """Print a note if a problem has devices that no op can run on."""
    if problem.idle:
        say(problem.idle)


def correction(path: str | None) -> Callable[[Problem], Problem]:
    """Return a function that applies a calibration file to a problem; without a file, the identity.

    Raises:
        FormatError: The file is malformed; the message names it, the key path and the fault.
    """
    if path is None:
        return lambda problem: problem
    from gnnplace.measurements import apply_calibration, read_calibration

    calibration, overlap = read_calibration(path)
    return lambda problem: apply_calibration(problem, calibration, overlap)


AFTER = 2.0  # seconds of a command before there is a bar
EVERY = 0.2  # seconds between two drawings
COUNT = re.compile(r"\b(\d[\d,]*) of (\d[\d,]*)\b")


class Bar:
    """The line at the bottom of a terminal.

    Args:
        console: Where it is drawn.
        doing: What the command does, until it says more.
    """

    def __init__(self, console: Console, doing: str) -> None:
        self.console = console
        self.line = doing
        self.begin = self.since = time.monotonic()
        self.said = False  # whether the command has said what it does
        self.lock = threading.RLock()
        self.drawn: Progress | None = None
        self.paused = False
        self._over = threading.Event()
        threading.Thread(target=self._tick, daemon=True).start()

    def say(self, line: str) -> None:
        """Show what begins now; what was done until now stays above, with its seconds."""
        with self.lock:
            self.paused = False
            if self.said and _without_count(line) != _without_count(self.line):
                self._keep()
            if not self.said or _without_count(line) != _without_count(self.line):
                self.since = time.monotonic()
            self.line = line
            self.said = True
            self.draw()

    def pause(self) -> None:
        """Remove the bar so that something else can be printed; the next line brings it back."""
        with self.lock:
            self._clear()
            if self.said:
                self._keep()
            self.said = False
            self.paused = True

    def close(self) -> None:
        """Remove the bar for good."""
        self._over.set()
        self.pause()

    def draw(self) -> None:
        """Draw the bar as it is now, if the command has run long enough."""
        with self.lock:
            if self.paused or time.monotonic() - self.begin < AFTER:
                return
            if self.drawn is None:
                self.drawn = _made(self.console)
                self.drawn.add_task("")
                self.drawn.start()
            match = COUNT.search(self.line)
            if match:
                counts = match.groups()
            else:
                counts = ("0", None)
            completed, total = (
                None if text is None else int(text.replace(",", "")) for text in counts
            )
            task = self.drawn.tasks[0]
            task.start_time = self.drawn.get_time() - (time.monotonic() - self.since)
            self.drawn.update(
                task.id, description=self.line, completed=completed, total=total
            )
            self.drawn.refresh()

    def _keep(self) -> None:
        seconds = time.monotonic() - self.since
        text = f"  {self.line}" + (f" ({seconds:.0f} s)" if seconds >= 1 else "")
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _clear(self) -> None:
        if self.drawn is not None:
            self.drawn.stop()
            self.drawn = None

    def _tick(self) -> None:
        while not self._over.wait(EVERY):
            with suppress(OSError, ValueError):  # nobody listens any more
                self.draw()


class _State:
    """The state of progress: whether it is shown, and the bar if there is one."""

    shown = True
    bar: Bar | None = None
    # The last line with a count, without its count, and the time when it was printed.
    counted = ("", 0.0)


def show_progress(shown: bool) -> None:
    """Set whether ``say`` prints; with ``--quiet`` it does not."""
    _State.shown = shown


@contextmanager
def working(doing: str) -> Iterator[None]:
    """Show on a terminal, inside the block, that the command works."""
    if _State.shown and sys.stderr.isatty():
        from rich.console import Console

        _State.bar = Bar(Console(stderr=True), doing)
    try:
        yield
    finally:
        if _State.bar is not None:
            with suppress(OSError, ValueError):
                _State.bar.close()
            _State.bar = None


def say(line: str) -> None:
    """Print progress on stderr, so that stdout stays clean."""
    if not _State.shown:
        return
    with suppress(OSError):  # nobody listens, or a full disk: the work goes on
        if _State.bar is not None:
            _State.bar.say(line)
            return
        if not _is_counted_again(line):
            sys.stderr.write(f"  {line}\n")
            sys.stderr.flush()


def _is_counted_again(line: str) -> bool:
    """Return whether a line only counts on from one that was printed a moment ago.

    A log does not need all of these.
    """
    plain = _without_count(line)
    time_printed = time.monotonic()
    previous, since = _State.counted
    if plain == line or (plain == previous and time_printed - since < AFTER):
        return plain != line
    _State.counted = (plain, time_printed)
    return False


def pause() -> None:
    """Take the bar away before something else is printed."""
    if _State.bar is not None:
        with suppress(OSError):
            _State.bar.pause()


def _made(console: Console) -> Progress:
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )


def _without_count(line: str) -> str:
    return COUNT.sub("", line)


def _before_fork() -> None:
    if _State.bar is not None:
        _State.bar.lock.acquire()


def _after_fork() -> None:
    if _State.bar is not None:
        _State.bar.lock.release()


def _in_child() -> None:
    _State.bar = None


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child
)
