"""Processes that end together and are not interrupted half-made, and their threads."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h: the signal that a process gets when the thread that made it ends."""


def end_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel end this process when its parent ends.

    Args:
        parent: the process that made this one.
        number: the signal that ends it.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it died before the kernel was told
        os._exit(1)


def ends_with_this() -> Callable[[], None]:
    """Return what a process that is not forked by hand calls first (``preexec_fn``)."""
    parent = os.getpid()
    return lambda: end_with(parent)


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back while a process is forked.

    The new one begins with the signal held; it says what shall become of it and calls
    ``let_interrupts``.
    """
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def let_interrupts() -> None:
    """Take Ctrl-C again, after ``hold_interrupts``."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def exit_text(code: int | None) -> str:
    """Return how a process ended that nobody asked to end, its signal by name."""
    if code is not None and code < 0:
        # Of real-time signals only two have names.
        named = {
            int(signal_number): signal_number.name for signal_number in signal.Signals
        }
        return f"was killed by {named.get(-code, f'signal {-code}')}"
    return f"ended early with exit code {code}"


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch compute on so many threads, and then on as many as before."""
    import torch

    previous_count = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous_count)
