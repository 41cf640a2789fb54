"""``exact``: places by constraint programming, with a proven bound (CP-SAT of ortools).

After DLPlacer (Pal et al., 2019), with a constraint programme instead of their integer programme.
The model, its constraints and its relaxations are described in ``exact.model``. The search:

1. The best construction of the portfolio is improved by annealing, several times if there is time.
   The solver starts from it and must beat it (``_incumbent``).
2. Small problems are solved as a whole (`_solve_all`). The devices and starts of every solution
   become sequences, which the simulator times (``Incumbent.offer``). The solver's bound holds for
   every placement. If channels that serve first come, first served cannot reach the least step time
   of the model, a gap remains and is reported.
3. Then branch and bound over the units' devices, best bound first (``exact.tree``).
4. Alternating with step 3, large neighbourhood search (Shaw, 1998): all but a few units stay on
   their devices, their ops keep their order, and the small model that is left is solved
   (``_solve_part``), alternating with short annealing. Larger problems get only steps 1 and 4, and
   the general lower bound.

The step time is always the simulator's. "Optimal" is said only if the bound meets it within one
part in a million. With budget 0 the solver gets a fixed amount of its deterministic time.
Complexity: exponential; model size O(n D + T D^2).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from gnnplace.arrays import BoolArray, IntArray
from gnnplace.errors import InfeasibleError
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.constructions import best_construction
from gnnplace.placers.exact.input import (
    bundles,
    labels_by_use,
    make_scale,
    serial_time,
    swaps,
)
from gnnplace.placers.exact.model import ScheduleModel
from gnnplace.placers.exact.solver import Incumbent, make_solver, solve_schedule
from gnnplace.placers.exact.tree import Tree
from gnnplace.placers.search.annealing import anneal
from gnnplace.placers.search.space import SearchSpace
from gnnplace.problem import Problem
from gnnplace.simulation import lower_bound

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpSolver

MOST_OPS = 5_000
WHOLE_SIZE, WHOLE_OPS = 4_000, 80  # Intervals and ops of a model that is solved whole.
WHOLE_SIZE_WITHOUT_BUDGET = 400
# Of the budget: where the model is solved whole, in parts, and where even parts are large.
ANNEALING_SHARE = 0.05, 0.7, 0.95
RUN_SECONDS, RUN_OPS = 12.0, 300  # Seconds of one annealing, longer above as many ops
PART_OPS = 500  # Ops above which parts take too long.
# The share of the budget for the whole model; the rest is for the tree and for parts.
WHOLE_SHARE = 0.3
TURN_SHARE = 0.15  # The share of that remainder for each turn
PART_SECONDS = 2.0
FEWEST_UNITS = 3
MOST_UNITS = 60


class Exact(Placer):
    """Constraint programming with a proven bound; optimal on small problems.

    Args:
        workers: threads of the solver.
    """

    name = "exact"

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers

    def supports(self, problem: Problem) -> str | None:
        if problem.num_ops > MOST_OPS:
            return f"{problem.num_ops} ops are more than {MOST_OPS}; coarsen the graph"
        return None

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        begin = time.perf_counter()
        timed = deadline > begin
        if timed:
            max_size = WHOLE_SIZE
        else:
            max_size = WHOLE_SIZE_WITHOUT_BUDGET
        solves_whole = (
            space.problem.num_ops <= WHOLE_OPS and model_size(space.problem) <= max_size
        )
        if solves_whole:
            size = 0
        elif space.problem.num_ops <= PART_OPS:
            size = 1
        else:
            size = 2
        best = self._incumbent(space, rng, deadline, ANNEALING_SHARE[size])
        if solves_whole and not best.proven:
            self._solve_all(best, rng, begin + WHOLE_SHARE * (deadline - begin))
        if timed and best.feasible and not best.proven:
            self._search_on(best, solves_whole, rng, deadline)
        return search_namings(best)

    def _search_on(
        self, best: Incumbent, whole: bool, rng: np.random.Generator, deadline: float
    ) -> None:
        """Improve and, where the model is small enough, prove, in turn."""
        tree = Tree(best, lambda seconds, level: self._solver(rng, seconds, level))
        turn = TURN_SHARE * (deadline - time.perf_counter())
        while not best.proven and time.perf_counter() < deadline - 0.02:
            if whole and not tree.done:
                tree.explore(min(deadline, time.perf_counter() + turn))
            self._improve(best, rng, min(deadline, time.perf_counter() + turn))

    def _incumbent(
        self,
        space: SearchSpace,
        rng: np.random.Generator,
        deadline: float,
        share: float,
    ) -> Incumbent:
        nothing = np.zeros(space.problem.num_ops, dtype=np.int32)
        best = Incumbent(space, nothing, nothing, bound=lower_bound(space.problem))
        start = best_construction(space, rng)
        best.take(start.device, start.order)
        begin = time.perf_counter()
        seconds = share * (deadline - begin)
        runs = annealing_runs(space.problem.num_ops, seconds)
        for part in range(1, runs + 1):
            if seconds > 0 and not best.proven:
                improved = anneal(space, start, rng, begin + seconds * part / runs)
                best.take(improved.device, improved.order)
        return best

    def _solve_all(
        self, best: Incumbent, rng: np.random.Generator, deadline: float
    ) -> None:
        space = best.space
        problem = best.space.problem
        scale = make_scale(
            problem, best.score if best.feasible else serial_time(problem)
        )
        options = [np.flatnonzero(row).tolist() for row in problem.unit_allowed]
        model = ScheduleModel(space, scale, options, symmetry=True)
        if best.feasible:
            simulation = space.simulator.run(best.device, best.order)
            model.hint(simulation, labels_by_use(space, best.device))
        seconds = deadline - time.perf_counter()
        for level in (0, 1) if seconds > 0 else (1,):
            solver = self._solver(rng, seconds / 2, level)
            status = solve_schedule(solver, model, best)
            if status == "INFEASIBLE" and not best.feasible:
                raise InfeasibleError("placer 'exact': no placement fits, proven")
            if status != "INFEASIBLE":
                best.bound = max(best.bound, scale.bound(solver.best_objective_bound))
            if best.proven or status in ("OPTIMAL", "INFEASIBLE"):
                return

    def _solver(
        self, rng: np.random.Generator, seconds: float, level: int = 1
    ) -> CpSolver:
        """Return a solver with so many seconds (0 or less: of its own clock) and linear
        relaxation.
        """
        solver = make_solver(rng, seconds, self.workers)
        solver.parameters.linearization_level = level
        return solver

    def _improve(
        self, best: Incumbent, rng: np.random.Generator, deadline: float
    ) -> None:
        """Search large neighbourhoods and anneal shortly, in turn, until the deadline."""
        count = 8.0
        num_units = best.space.problem.num_units
        while not best.proven and time.perf_counter() < deadline - 0.02:
            until = min(deadline, time.perf_counter() + PART_SECONDS)
            units = choose_part(best.space, rng, int(count))
            solved = self._solve_part(best, units, rng, until)
            count = float(
                np.clip(count * (1.2 if solved else 0.8), FEWEST_UNITS, MOST_UNITS)
            )
            count = min(count, num_units)
            start = Found(best.device, best.order)
            until = min(deadline, time.perf_counter() + PART_SECONDS / 4)
            if time.perf_counter() < until:
                improved = anneal(best.space, start, rng, until)
                best.take(improved.device, improved.order)

    def _solve_part(
        self,
        best: Incumbent,
        units: IntArray,
        rng: np.random.Generator,
        deadline: float,
    ) -> bool:
        """Place and order the ops of ``units`` anew; return whether the part was solved to
        the end.
        """
        space = best.space
        problem = best.space.problem
        free = np.zeros(problem.num_units, dtype=bool)
        free[units] = True
        options = [
            np.flatnonzero(problem.unit_allowed[u]).tolist() if free[u] else [int(d)]
            for u, d in enumerate(space.find_unit_devices(best.device))
        ]
        scale = make_scale(problem, best.score)
        model = ScheduleModel(
            space, scale, options, list_kept_order(best, ~free[problem.unit_of])
        )
        same = np.arange(problem.num_devices, dtype=np.int32)
        model.hint(space.simulator.run(best.device, best.order), same)
        solver = self._solver(rng, max(0.001, deadline - time.perf_counter()))
        return solve_schedule(solver, model, best) in ("OPTIMAL", "INFEASIBLE")


def annealing_runs(num_ops: int, seconds: float) -> int:
    """Return into how many runs to cut so much annealing: beyond a while another start
    gains more.
    """
    return max(1, int(seconds / (RUN_SECONDS * max(1.0, num_ops / RUN_OPS))))


def model_size(problem: Problem) -> int:
    """Return about how many intervals the model of all ops has."""
    devices = problem.num_devices
    return problem.num_ops * devices + len(bundles(problem)) * devices * (devices - 1)


def search_namings(best: Incumbent) -> Found:
    """Return the best of all namings of equal devices, and what is proven of it."""
    if best.feasible:
        for label in swaps(best.space.problem):
            best.take(label[best.device], best.order)
    if best.bound > 0:
        gap = best.score / best.bound - 1
    else:
        gap = 0.0
    if best.proven:
        note = "optimal"
    else:
        note = f"gap {gap:.2%}"
    return Found(
        device=best.device,
        order=best.order,
        note=note,
        bound=best.bound,
    )


def list_kept_order(best: Incumbent, kept: BoolArray) -> list[tuple[int, int]]:
    """Return the pairs of ops that follow each other on a device, of the ops that are ``kept``."""
    last: dict[int, int] = {}
    pairs = []
    for op in best.order.tolist():
        if kept[op]:
            d = int(best.device[op])
            if d in last:
                pairs.append((last[d], op))
            last[d] = op
    return pairs


def choose_part(space: SearchSpace, rng: np.random.Generator, count: int) -> IntArray:
    """Return the units that belong together: next to each other in coordinates, or in the graph."""
    num_units = space.problem.num_units
    count = min(count, num_units)
    if rng.random() < 0.5:
        first = int(rng.integers(num_units - count + 1))
        return space.unit_order[first : first + count]
    offset, neighbour = space.unit_edges
    part = [int(rng.integers(num_units))]
    for unit in part:
        around = rng.permutation(neighbour[offset[unit] : offset[unit + 1]])
        added = [int(u) for u in around if u not in part]
        part += added[: max(0, count - len(part))]
    return np.array(part, dtype=np.int32)
