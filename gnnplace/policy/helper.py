"""A second process that compiles kernels beside this one, where there is a core for it.

Numba compiles on one core. Kernels of the learned placer and of the others have little in common,
so that two processes are done in some two thirds of the time; what one of them leaves in the cache
on disk the other one loads.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gnnplace.processes import ends_with_this

MODULE = "gnnplace.policy.warming"


@contextmanager
def beside(names: list[str]) -> Iterator[None]:
    """Has kernels of other placers compiled while the block runs; waits for them at its end.

    On a single core nothing is started. A process that fails is of no consequence: whoever needs a
    kernel that is not there compiles it.

    Args:
        names: the names of these placers.
    """
    if len(os.sched_getaffinity(0)) < 2:
        yield
        return
    command = [sys.executable, "-m", MODULE, *names]
    silent = subprocess.DEVNULL
    # A session of its own: Ctrl-C is for the process that waits, which ends this one.
    with subprocess.Popen(
        command,
        stdin=silent,
        stdout=silent,
        stderr=silent,
        start_new_session=True,
        preexec_fn=ends_with_this(),
    ) as process:
        try:
            yield
            process.wait()
        finally:
            process.terminate()
