"""``Explanation``: what bounds a step, where each device's seconds go, and what else would cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnplace.errors import InfeasibleError
from gnnplace.placers import Result
from gnnplace.placers.search.space import SearchSpace
from gnnplace.policy.placing import place
from gnnplace.problem import Problem
from gnnplace.problem.constraints import Constraints, constrained
from gnnplace.problem.constraints.constraints import Given, as_constraints
from gnnplace.problem.placement import Placement
from gnnplace.report.explanation.alternatives import Alternative, alternatives, ops_named
from gnnplace.report.explanation.causes import Causes
from gnnplace.report.explanation.critical_path import COMPUTING, KINDS, Piece, critical_path
from gnnplace.report.explanation.idle import DeviceTime, device_times
from gnnplace.report.explanation.loosening import Loosened, loosened
from gnnplace.report.explanation.modules import module_rows
from gnnplace.simulation import LowerBounds, Simulation, lower_bounds


@dataclass(frozen=True, eq=False)
class Explanation:
    """What bounds a placement's step.

    Attributes:
        problem: what was placed.
        simulation: its step.
        pieces: the critical path, first to last.
        devices: where each device's seconds go. [D]
        bounds: lower bounds of the problem.
        asked: what was asked about, such as "module head"; empty if nothing was.
        where: names of the devices that it is on.
        others: that on each device. [D]
        prices: what each constraint costs, if that was asked.
        searched: seconds of the same search with all constraints.
    """

    problem: Problem
    simulation: Simulation
    pieces: tuple[Piece, ...]
    devices: tuple[DeviceTime, ...]
    bounds: LowerBounds
    asked: str = ""
    where: tuple[str, ...] = ()
    others: tuple[Alternative, ...] = ()
    prices: tuple[Loosened, ...] | None = None
    searched: float = float("nan")

    @property
    def shares(self) -> dict[str, float]:
        """Share of the step that the critical path spends on each of ``KINDS``."""
        total = max(self.simulation.step_time, 1e-300)
        return {k: sum(p.seconds for p in self.pieces if p.kind == k) / total for k in KINDS}

    def by_module(self) -> list[tuple[str, dict[str, float]]]:
        """Seconds of the critical path by module of the op that computes or sends, most first."""
        labels, row = module_rows(self.problem)
        found: dict[str, dict[str, float]] = {}
        for piece in self.pieces:
            if piece.seconds > 0:
                seconds = found.setdefault(labels[row[piece.op]], dict.fromkeys(KINDS, 0.0))
                seconds[piece.kind] += piece.seconds
        return sorted(found.items(), key=lambda entry: -sum(entry[1].values()))

    @property
    def num_ops_on_path(self) -> int:
        """Ops that compute on the critical path."""
        return sum(piece.kind == COMPUTING for piece in self.pieces)


def explain(
    problem: Problem,
    placement: Placement,
    *,
    op: str | None = None,
    module: str | None = None,
    constraints: Given | None = None,
    loosen: bool = False,
    placer: str = "best",
    budget: float = 1.0,
    seed: int = 0,
) -> Explanation:
    """Says what bounds the step of a placement.

    Args:
        problem: what was placed, with or without the constraints.
        placement: devices and sequences.
        op: an op whose other devices are simulated.
        module: a module, or a pattern, likewise.
        constraints: what was asked for when it was placed.
        loosen: search once without each constraint, to say what it costs.
        placer: that searches then.
        budget: seconds of each of these searches.
        seed: of these searches.

    Raises:
        InputError: nothing has that name; shows names that are like it.
        InfeasibleError: the placement cannot run.
        DeadlockError: its sequences contradict the graph.
    """
    known = as_constraints(constraints)
    base, problem = problem, constrained(problem, known)
    space = SearchSpace(problem)
    order = space.simulator.order_of(placement)
    simulation = space.simulator.run(placement.device, order)
    if not np.isfinite(simulation.step_time):
        raise InfeasibleError(f"explain: the placement cannot run: {simulation.faults[0]}")
    causes = Causes(problem, simulation)
    asked, where, others = "", (), ()  # type: tuple[str, tuple[str, ...], tuple[Alternative, ...]]
    if op is not None or module is not None:
        ops = ops_named(space, op=op, module=module)
        asked = f"op {op}" if op is not None else f"module {module}"
        names = [problem.cluster.devices[d].name for d in np.unique(simulation.device[ops])]
        where, others = tuple(names), tuple(alternatives(space, simulation.device, order, ops))
    prices, searched = None, simulation.step_time
    if loosen:

        def search(changed: Problem, most: int | None) -> Result:
            few = Constraints(max_devices=most)
            return place(changed, placer=placer, budget=budget, seed=seed, constraints=few)

        searched, each = loosened(base, known, simulation.step_time, search)
        prices = tuple(each)
    return Explanation(
        problem,
        simulation,
        critical_path(causes),
        tuple(device_times(causes)),
        lower_bounds(problem),
        asked,
        where,
        others,
        prices,
        searched,
    )
