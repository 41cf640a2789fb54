"""The constraint solver (ortools' CP-SAT) as every search calls it: timed, seeded, interruptible.

Left alone, CP-SAT takes Ctrl-C for itself while it solves and afterwards leaves the signal at the
system's default: the next Ctrl-C kills the process, a notebook's kernel too. Here it keeps its
hands off the signal (``catch_sigint_signal``) and solves in a thread beside, so that Ctrl-C reaches
the caller at once as a ``KeyboardInterrupt``; the solver is then told to stop and waited for.
"""

from __future__ import annotations

from _thread import allocate_lock, start_new_thread
from typing import Any

import numpy as np

DETERMINISTIC_TIME = 0.2  # Of the solver's own clock, about seconds: without a time limit.
POLL = 0.02  # Seconds between two tries to stop a solver.
BEGINS = 30.0  # Seconds in which its thread begins, unless there is no memory for one.


def make_solver(rng: np.random.Generator, seconds: float, workers: int = 1) -> Any:
    """A solver.

    Args:
        rng: seeds it.
        seconds: at most; 0 or less: a fixed amount of the solver's own time.
        workers: threads.
    """
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.catch_sigint_signal = False
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = int(rng.integers(2**30))
    if seconds > 0:
        solver.parameters.max_time_in_seconds = seconds
    else:
        solver.parameters.max_deterministic_time = DETERMINISTIC_TIME
    return solver


def solve(solver: Any, model: Any, watcher: Any = None) -> str:
    """Solves a model; the name of the status, such as ``OPTIMAL``.

    Args:
        solver: what ``make_solver`` returned.
        model: a ``CpModel``.
        watcher: a callback of ortools that is called with every solution, in another thread.
    """
    ended, begun, over = _Ended(), allocate_lock(), allocate_lock()
    begun.acquire()
    over.acquire()

    def work() -> None:
        begun.release()
        try:
            ended.status = solver.solve(model, watcher)
        except BaseException as error:  # raised again where the answer is waited for
            ended.error = error
        finally:
            over.release()

    # `threading.Thread.start` waits for ever where memory ends while its thread begins.
    start_new_thread(work, ())
    if not begun.acquire(timeout=BEGINS):
        raise MemoryError("the solver's thread did not begin")
    try:
        over.acquire()
    except BaseException:
        while not over.acquire(timeout=POLL):  # one that has not begun yet cannot be stopped
            solver.stop_search()
        raise
    if ended.error is not None:
        raise ended.error
    return str(solver.status_name(ended.status))


class _Ended:
    """What a solve came to."""

    status: Any = None
    error: BaseException | None = None
