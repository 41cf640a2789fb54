from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

from gnnplace.placers.exact.solver import make_solver, solve


def hard_model(size: int = 60) -> Any:
    """Jobs on unequal machines: nothing that is proven within seconds."""
    from ortools.sat.python import cp_model

    rng, model = np.random.default_rng(0), cp_model.CpModel()
    x = [[model.new_bool_var("") for _ in range(7)] for _ in range(size)]
    span = model.new_int_var(0, 10**6, "")
    for row in x:
        model.add_exactly_one(row)
    for machine in range(7):
        weights = rng.integers(1000, 9999, size).tolist()
        model.add(
            sum(w * row[machine] for w, row in zip(weights, x, strict=True)) <= span
        )
    model.minimize(span)
    return model


def caught_by_python() -> bool:
    """Whether the kernel still hands SIGINT to this process's own handler."""
    with open("/proc/self/status", encoding="ascii") as file:
        caught = next(line for line in file if line.startswith("SigCgt")).split()[1]
    return bool(int(caught, 16) >> (signal.SIGINT - 1) & 1)


def test_the_signal_is_as_it_was_after_a_solve():
    # Whatever another test left.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert caught_by_python()
    solver = make_solver(np.random.default_rng(0), 0.0)
    assert solve(solver, hard_model(5)) == "OPTIMAL"
    assert caught_by_python()


@pytest.mark.alone
def test_an_interrupt_ends_the_solve_at_once():
    solver = make_solver(np.random.default_rng(0), 60.0)
    before, begin = threading.active_count(), time.perf_counter()
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            solve(solver, hard_model())
    finally:
        timer.cancel()
    assert time.perf_counter() - begin < 10
    assert threading.active_count() <= before + 1  # the timer may not be gone yet
    assert caught_by_python()


@pytest.mark.timeout(30)
def test_an_interrupt_just_after_the_solve_ends_it_too():
    """The signal is told to another thread: the main thread sees it with the lock in its hands."""

    class Ends:
        def solve(self, model: Any, watcher: Any) -> int:
            time.sleep(0.1)  # until the main thread waits
            _thread.interrupt_main()
            return 0

        def stop_search(self) -> None:
            pass

    with pytest.raises(KeyboardInterrupt):
        solve(Ends(), None)


def test_what_a_watcher_raises_is_raised_here():
    from ortools.sat.python import cp_model

    class Broken(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            raise ZeroDivisionError("in the watcher")

    solver = make_solver(np.random.default_rng(0), 5.0)
    with pytest.raises(ZeroDivisionError):
        solve(solver, hard_model(8), Broken())
