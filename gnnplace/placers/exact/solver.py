"""The constraint solver as ``exact`` calls it, and the best placement so far that it feeds.

CP-SAT (ortools) runs with a time limit, a seed, and can be interrupted. By default it handles
Ctrl-C itself while it solves, and afterwards leaves the signal at the system's default: the next
Ctrl-C kills the process, even a notebook's kernel. Here its handler is off
(``catch_sigint_signal``) and it solves in a second thread, so that Ctrl-C reaches the caller at
once as a ``KeyboardInterrupt``; the solver is then stopped, and the caller waits until it has.
"""

from __future__ import annotations

from _thread import allocate_lock, start_new_thread
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.placers.exact.model import ScheduleModel
from gnnplace.placers.search.space import SearchSpace

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, CpSolver, CpSolverSolutionCallback

# Without a time limit: seconds, roughly, of the solver's own clock.
DETERMINISTIC_TIME = 0.2
POLL = 0.02  # Seconds between two tries to stop a solver.
BEGINS = 30.0  # Seconds in which its thread begins, unless there is no memory for one.
PROVEN = 1e-6  # Step time over bound, minus one, that counts as optimal.


def make_solver(rng: np.random.Generator, seconds: float, workers: int = 1) -> CpSolver:
    """Return a solver.

    Args:
        rng: the source of the solver's seed.
        seconds: at most; 0 or less: a fixed amount of the solver's own time.
        workers: the number of threads that search.
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


def solve(
    solver: CpSolver,
    model: CpModel,
    watcher: CpSolverSolutionCallback | None = None,
) -> str:
    """Solve a model; return the name of the status, such as ``OPTIMAL``.

    Args:
        solver: a solver, as ``make_solver`` makes it.
        model: the ``CpModel`` of ortools to solve.
        watcher: a callback of ortools that is called with every solution, in another thread.
    """
    ended = _Ended()
    begun = allocate_lock()
    over = allocate_lock()
    begun.acquire()
    over.acquire()

    def work() -> None:
        begun.release()
        try:
            ended.status = solver.solve(model, watcher)
        except BaseException as error:  # raised again where the answer is waited for
            ended.error = error
        finally:
            ended.over = True
            over.release()

    # `threading.Thread.start` waits for ever where memory ends while its thread begins.
    start_new_thread(work, ())
    if not begun.acquire(timeout=BEGINS):
        raise MemoryError("the solver's thread did not begin")
    try:
        over.acquire()
    except BaseException:  # also one that strikes once the lock is taken already
        while not ended.over:  # one that has not begun yet cannot be stopped
            solver.stop_search()
            over.acquire(timeout=POLL)
        raise
    if ended.error is not None:
        raise ended.error
    return str(solver.status_name(ended.status))


class _Ended:
    """The outcome of a solve."""

    status: Any = None
    error: BaseException | None = None
    over: bool = False


@dataclass
class Incumbent:
    """The best placement so far.

    Attributes:
        space: the problem's search space.
        device: device of each op. [n]
        order: order of all ops. [n]
        score: seconds, with a penalty for memory; inf if there is none yet.
        bound: seconds that no placement is below.
        offered: placements that were offered, as bytes.
    """

    space: SearchSpace
    device: IntArray
    order: IntArray
    score: float = np.inf
    bound: float = 0.0
    offered: set[bytes] = field(default_factory=set)

    @property
    def feasible(self) -> bool:
        """Return whether the placement runs and fits."""
        return bool(np.isfinite(self.score)) and self.space.fits(
            self.device, self.order
        )

    @property
    def proven(self) -> bool:
        """Return whether no placement is better, within ``PROVEN``."""
        return self.feasible and self.score <= self.bound * (1 + PROVEN)

    def take(
        self, device: IntArray, order: IntArray, score: float | None = None
    ) -> bool:
        """Keep a placement that is better; return whether it is."""
        if score is None:
            score = self.space.score(device, order)
        if score >= self.score:
            return False
        self.device = device.copy()
        self.order = order.copy()
        self.score = score
        return True

    def offer(self, device: IntArray, start: FloatArray) -> bool:
        """Keep a schedule's devices in the best order found for them, if that is better.

        Args:
            device: device of each op. [n]
            start: when the schedule starts each op, in any unit. [n]
        """
        order = np.lexsort((self.space.problem.graph.position, start)).astype(np.int32)
        better = self.take(device, order)
        if device.tobytes() not in self.offered:
            self.offered.add(device.tobytes())
            score, order = self.space.sequence(
                device, extra=[-np.asarray(start, np.float64)]
            )
            better = self.take(device, order, score) or better
        return better


def solve_schedule(solver: CpSolver, model: ScheduleModel, best: Incumbent) -> str:
    """Solve a schedule's model and offer each of its solutions to ``best``.

    Channels that serve first come, first served order their sends by the finishes of the producers.
    With its default propagation one worker of CP-SAT can then learn that a start is one unit later,
    again and again through millions of units, and find no schedule at all.

    Returns:
        The name of the status, such as ``OPTIMAL``.
    """
    if model.queues:
        solver.parameters.use_strong_propagation_in_disjunctive = True
    return solve(solver, model.model, watcher(model, best))


def watcher(model: ScheduleModel, best: Incumbent) -> CpSolverSolutionCallback:
    """Return a solver's callback that offers every solution to ``best``."""
    from ortools.sat.python import cp_model

    unit_of = best.space.problem.unit_of

    class Watcher(cp_model.CpSolverSolutionCallback):
        """Hands solutions over."""

        def on_solution_callback(self) -> None:
            """Offer the solution; called by the solver."""
            unit_device = [
                max(row, key=lambda d: self.value(row[d])) for row in model.x
            ]
            device = np.array(unit_device, dtype=np.int32)[unit_of]
            start = np.array(
                [self.value(start) for start in model.start], dtype=np.float64
            )
            best.offer(device, start)
            if best.proven:
                self.stop_search()

    return Watcher()
