"""``m-sct``: small communication times (Hanen and Munier, 1995) with memory (Baechi, 2020).

Formulation: a linear programme says for every op which child should follow it on its device, its
favourite child: minimise w subject to

* ``start[j] >= start[i] + time[i] + transfer[i, j] * x[i, j]``   for every edge (i, j)
* ``w >= start[i] + time[i]``                                     for every op
* ``sum over children j of x[i, j] >= children(i) - 1``           one child may follow for free
* ``sum over parents i of x[i, j] >= parents(j) - 1``             one parent may be followed
* ``0 <= x <= 1``; the favourite child of i is the j with x[i, j] < 1/2.

Then earliest task first, where a device keeps itself for its last op's favourite child while that
child is ready; a device takes units up to its memory. Deviations as in ``heft``; mean op and
transfer times. Solved by GLOP (ortools). Complexity: a linear programme with as many rows as edges.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnplace.placers.base import Found, Placer
from gnnplace.placers.etf import MOST_OPS, etf_kernel
from gnnplace.placers.heft import with_own_order
from gnnplace.placers.repair import unit_bytes
from gnnplace.placers.search_space import SearchSpace
from gnnplace.problem import Problem
from gnnplace.simulation.compiled import least_times
from gnnplace.simulation.list_scheduling import mean_transfer_times, mean_upward_rank

IntArray = NDArray[np.int32]
MOST_EDGES = 6_000
LP_SECONDS = 10.0


class MSct(Placer):
    """Earliest task first with favourite children from a linear programme."""

    name = "m-sct"

    def supports(self, problem: Problem) -> str | None:
        """At most 6,000 edges, beyond which the linear programme takes too long."""
        edges = len(problem.graph.edges[0])
        if edges > MOST_EDGES or problem.num_ops > MOST_OPS:
            return f"{edges} edges are more than {MOST_EDGES}; use etf, or coarsen"
        return None

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        problem = space.problem
        device, start = etf_kernel(
            space.compiled,
            mean_upward_rank(problem),
            problem.unit_allowed,
            favourite_children(problem),
            problem.cluster.memory,
            unit_bytes(space),
        )
        return with_own_order(space, device, start)


def favourite_children(problem: Problem) -> IntArray:
    """The favourite child of each op, -1 for none. [n]

    Where the linear programme is not solved in time nobody has one.
    """
    from ortools.linear_solver import pywraplp

    source, target, size = problem.graph.edges
    time, transfer = least_times(problem), mean_transfer_times(problem, size)
    solver = pywraplp.Solver.CreateSolver("GLOP")
    solver.SetTimeLimit(int(1000 * LP_SECONDS))
    w = solver.NumVar(0, solver.infinity(), "w")
    start = [solver.NumVar(0, solver.infinity(), "") for _ in range(problem.num_ops)]
    x = [solver.NumVar(0, 1, "") for _ in range(len(source))]
    for k, (i, j) in enumerate(zip(source.tolist(), target.tolist(), strict=True)):
        solver.Add(start[j] >= start[i] + float(time[i]) + float(transfer[k]) * x[k])
    for i in range(problem.num_ops):
        solver.Add(w >= start[i] + float(time[i]))
    for ends in (source, target):
        for op in np.flatnonzero(np.bincount(ends, minlength=problem.num_ops) > 1):
            mine = np.flatnonzero(ends == op)
            solver.Add(sum(x[k] for k in mine) >= len(mine) - 1)
    solver.Minimize(w)
    favourite = np.full(problem.num_ops, -1, dtype=np.int32)
    if solver.Solve() == pywraplp.Solver.OPTIMAL:
        chosen = np.array([variable.solution_value() for variable in x]) < 0.5
        favourite[source[chosen]] = target[chosen]
    return favourite
