"""Ctrl-C on the command line: one line and exit code 130, wherever it is pressed.

Python raises ``KeyboardInterrupt`` wherever the main thread happens to be. During the import of
compiled code it may become another error, and in a callback it is printed and lost. So this module
remembers the interrupt and raises it again if it was lost. In two places the interrupt is delayed
for a moment. Arguments and results of numba kernels are converted by Python code, generated and
numba's own, and the process crashes if that raises. And loggers put records into a ``queue.Queue``
for their writing thread: an interrupt inside ``put`` would leave a counter wrong, and whoever joins
the queue would wait forever.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

# Seconds until an interrupt that was lost, or had to wait, is raised again.
AGAIN = 0.02
MOST_WAITS = 100  # an interrupt that has waited so often is raised wherever it is
# The most frames between an interrupt and ``Queue.put``.
QUEUE, PUT, CALLERS = ("/queue.py", "put", 4)
GLUE = ("numba/core/serialize.py", "numba/core/typing/typeof.py")
_state = {"interrupted": False}
_waits = [0]
_hook = {"before": sys.unraisablehook}


def watch() -> None:
    """Remember Ctrl-C from here on.

    Does nothing in another thread than the main one, or where the signal is ignored.
    """
    _state["interrupted"] = False
    _waits[0] = 0
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        _hook["before"] = sys.unraisablehook
        sys.unraisablehook = _unraisable


def was_interrupted() -> bool:
    """Return whether there was a Ctrl-C since ``watch``."""
    return _state["interrupted"]


def unwatch() -> None:
    """Leave Ctrl-C to Python again, for whoever calls the command line from Python."""
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = _hook["before"]


def leave() -> None:
    """Let Ctrl-C end the process at once and silently, because it is about to end."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if was_interrupted():
            sys.unraisablehook = _ignore


def _ignore(lost: sys.UnraisableHookArgs) -> None:
    """Print nothing about an object that an interrupt left half-made and whose finalizer fails."""


def _interrupt(number: int, frame: FrameType | None) -> None:
    _state["interrupted"] = True
    if (
        frame is not None
        and _waits[0] < MOST_WAITS
        and (_in_glue(frame) or _in_put(frame))
    ):
        _waits[0] += 1
        _again()
        return
    raise KeyboardInterrupt


def _in_glue(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.endswith(GLUE) or (
        name.startswith("<") and not name.startswith("<frozen")
    )


def _in_put(frame: FrameType) -> bool:
    caller: FrameType | None = frame
    for _ in range(CALLERS):
        if caller is None:
            break
        if caller.f_code.co_name == PUT and caller.f_code.co_filename.endswith(QUEUE):
            return True
        caller = caller.f_back
    return False


def _again() -> None:
    threading.Timer(AGAIN, _send).start()


def _send() -> None:
    """Send SIGINT to the main thread.

    ``interrupt_main`` would not wake a main thread that waits.
    """
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _unraisable(lost: sys.UnraisableHookArgs) -> None:
    if lost.exc_type is KeyboardInterrupt:
        _again()  # a moment later: at once it would be raised in here, and be lost again
    elif not was_interrupted():
        _hook["before"](lost)
