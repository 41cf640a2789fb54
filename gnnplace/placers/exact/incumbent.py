"""``Incumbent``: the best placement so far of ``exact``, and the callback that feeds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.placers.exact.model import ScheduleModel
from gnnplace.placers.search.space import SearchSpace

PROVEN = 1e-6  # Step time over bound, minus one, that counts as optimal.


@dataclass
class Incumbent:
    """The best placement so far.

    Attributes:
        space: the problem's search space.
        device: device of each op. [n]
        order: order of all ops. [n]
        score: seconds, with a penalty for memory; inf if there is none yet.
        bound: seconds that no placement is below.
    """

    space: SearchSpace
    device: IntArray
    order: IntArray
    score: float = np.inf
    bound: float = 0.0
    seen: set[bytes] = field(default_factory=set)

    @property
    def feasible(self) -> bool:
        """Whether the placement runs and fits."""
        if not np.isfinite(self.score):
            return False
        fits = not self.space.memory_matters
        return fits or self.space.simulator.excess(self.device, self.order)[1] == 0

    @property
    def proven(self) -> bool:
        """Whether nothing can be better, within ``PROVEN``."""
        return self.feasible and self.score <= self.bound * (1 + PROVEN)

    def take(self, device: IntArray, order: IntArray, score: float | None = None) -> bool:
        """Keeps a placement that is better; says whether it is."""
        score = self.space.score(device, order) if score is None else score
        if score >= self.score:
            return False
        self.device, self.order, self.score = device.copy(), order.copy(), score
        return True

    def offer(self, device: IntArray, start: FloatArray) -> bool:
        """Keeps a schedule's devices in the best order found for them, if that is better.

        Args:
            device: device of each op. [n]
            start: when the schedule starts each op, in any unit. [n]
        """
        order = np.lexsort((self.space.problem.graph.position, start)).astype(np.int32)
        better = self.take(device, order)
        if device.tobytes() not in self.seen:
            self.seen.add(device.tobytes())
            score, order = self.space.sequence(device, extra=[-np.asarray(start, np.float64)])
            better = self.take(device, order, score) or better
        return better


def watcher(model: ScheduleModel, best: Incumbent) -> Any:
    """A solver's callback that offers every solution to ``best``."""
    from ortools.sat.python import cp_model

    unit_of = best.space.problem.unit_of

    class Watcher(cp_model.CpSolverSolutionCallback):
        """Hands solutions over."""

        def on_solution_callback(self) -> None:
            """Called by the solver."""
            chosen = [max(row, key=lambda d: self.value(row[d])) for row in model.x]
            device = np.array(chosen, dtype=np.int32)[unit_of]
            start = np.array([self.value(start) for start in model.start], dtype=np.float64)
            best.offer(device, start)
            if best.proven:
                self.stop_search()

    return Watcher()
