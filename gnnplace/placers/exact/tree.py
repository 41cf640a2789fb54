"""Branch and bound over devices on top of the constraint model of ``exact``.

Formulation: a node fixes the devices of the first units, in the order of ``use_order``. Its model
has these devices fixed, must beat the best placement so far, and gets a short time limit; the bound
that the solver proves is the node's bound. A node that is neither solved nor refuted is split by
the device of the next unit (of equal devices that are not in use yet only one is tried). A node
with nothing left to split is tried again with twice the time. The node of least bound is next (best
first; Land and Doig, 1960), so that the least bound of all nodes, open and closed, holds for every
placement.

If the simulator does not reach the optimum of a node's model, the node is solved again with
channels that serve first come, first served, and then split.

Models with micro-batches have few units and many ops. With all devices fixed only a scheduling
problem is left, which the solver refutes in milliseconds; the whole model takes minutes.
Complexity: exponential; one model of O(n D + T D^2) a node.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np

from gnnplace.placers.exact.input import (
    equal_devices,
    labels_by_use,
    make_scale,
    use_order,
)
from gnnplace.placers.exact.model import ScheduleModel
from gnnplace.placers.exact.solver import PROVEN, Incumbent, solve_schedule

NODE_SECONDS = 0.25
Prefix = tuple[int, ...]
MakeSolver = Callable[[float, int], Any]


@dataclass(order=True)
class Node:
    """Devices of the first units, what is proven of them, and how long to try them.

    Attributes:
        bound: seconds that no placement with these devices is below.
        number: the number of the node, for ties.
        prefix: devices of the first units in the order of ``use_order``.
        seconds: Seconds to solve it in.
        queues: whether the model's channels serve first come, first served.
    """

    bound: float
    number: int
    prefix: Prefix = field(compare=False)
    seconds: float = field(compare=False)
    queues: bool = field(compare=False, default=False)


class Tree:
    """The nodes still open, and the least bound of those closed.

    Args:
        best: the best placement; improved, and its bound raised, on the way.
        make_solver: a solver from seconds and a level of linearization.
    """

    def __init__(self, best: Incumbent, make_solver: MakeSolver) -> None:
        self.best = best
        self.make_solver = make_solver
        self.order = use_order(best.space).tolist()
        self.classes = equal_devices(best.space.problem)
        self.allowed = best.space.problem.unit_allowed
        self.closed = np.inf
        self.count = 0
        self.open: list[Node] = []
        self._push(best.bound, (), NODE_SECONDS)

    @property
    def bound(self) -> float:
        """Return the seconds that no placement is below."""
        if self.open:
            return min(self.closed, self.open[0].bound)
        return self.closed

    @property
    def done(self) -> bool:
        """Return whether no node is left to look at."""
        return not self.open

    def explore(self, until: float) -> None:
        """Visit nodes until ``time.perf_counter()`` says ``until``, or nothing is open."""
        while self.open and not self.best.proven and time.perf_counter() < until:
            node = heappop(self.open)
            if node.bound >= self.best.score * (1 - PROVEN / 2):
                self.closed = min(self.closed, node.bound)
            else:
                self._visit(node, until)
            self.best.bound = max(self.best.bound, self.bound)

    def _push(
        self, bound: float, prefix: Prefix, seconds: float, queues: bool = False
    ) -> None:
        self.count += 1
        heappush(
            self.open,
            Node(
                bound=bound,
                number=self.count,
                prefix=prefix,
                seconds=seconds,
                queues=queues,
            ),
        )

    def _visit(self, node: Node, until: float) -> None:
        best = self.best
        space = self.best.space
        goal = best.score * (1 - PROVEN / 2)
        scale = make_scale(space.problem, goal)
        options = self._options(node.prefix)
        model = ScheduleModel(space, scale, options, symmetry=True, queues=node.queues)
        simulation = space.simulator.run(best.device, best.order)
        model.hint(simulation, labels_by_use(space, best.device))
        seconds = min(node.seconds, until - time.perf_counter())
        solver = self.make_solver(max(seconds, 0.001), self.count % 3)
        status = solve_schedule(solver, model, best)
        if status == "INFEASIBLE":
            self.closed = min(
                self.closed, max(node.bound, scale.bound(model.limit + 1))
            )
            return
        bound = max(node.bound, scale.bound(solver.best_objective_bound))
        if status == "OPTIMAL" and node.queues and len(node.prefix) == len(self.order):
            self.closed = min(self.closed, bound)
        else:
            self._split(node, bound, status == "OPTIMAL")

    def _split(self, node: Node, bound: float, solved: bool) -> None:
        if solved and not node.queues:
            self._push(bound, node.prefix, node.seconds, True)
        elif len(node.prefix) == len(self.order):
            self._push(bound, node.prefix, 2 * node.seconds, node.queues)
        else:
            for device in self._choices(node.prefix):
                self._push(bound, (*node.prefix, device), node.seconds, node.queues)

    def _options(self, prefix: Prefix) -> list[list[int]]:
        options = [np.flatnonzero(row).tolist() for row in self.allowed]
        for unit, device in zip(self.order, prefix, strict=False):
            options[unit] = [device]
        return options

    def _choices(self, prefix: Prefix) -> list[int]:
        """Return the devices for the next unit; of equal devices not in use yet the first."""
        result = []
        for members in self.classes:
            fresh = [d for d in members if d not in prefix][:1]
            used = [d for d in members if d in prefix]
            result += [
                d for d in used + fresh if self.allowed[self.order[len(prefix)], d]
            ]
        return result
