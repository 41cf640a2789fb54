"""``coarse-annealing``: the portfolio and annealing on a coarse problem, refined on the fine one.

After the constructions, annealing alternates between a coarse problem, whose ops are groups of ops
(``coarse_problem``), and the problem itself. Simulating groups takes a fraction of the time, and
one move there moves a whole part of the graph. A placement of the groups is projected: each op goes
to its group's device, in its group's place of the order or in the order of list scheduling,
whichever is faster. Annealing of single ops continues from the best placement of both levels.

There are ``GROUPS`` groups times the square root of the number of micro-batches, because
micro-batches share the groups: with a fixed number, one of eight micro-batches would have too few
groups to place. If grouping is impossible, or the graph is too large to group, this placer is
``annealing``. If the budget leaves no time to group, the best construction is the answer. The
scheme is multilevel refinement (Karypis and Kumar, 1998; Walshaw, 2004).
Complexity: coarsening, then as ``annealing``.
"""

from __future__ import annotations

import numpy as np

from gnnplace.placers.base import Found, Placer
from gnnplace.placers.constructions import anneal_construction, best_construction
from gnnplace.placers.search.annealing import Annealer, anneal
from gnnplace.placers.search.coarse_problem import CoarseProblem, coarse_problem
from gnnplace.placers.search.repair import repair
from gnnplace.placers.search.space import NO_BUDGET, SearchSpace, is_expired, read_clock

GROUPS = 200
MOST_OPS = 20_000  # If a micro-batch has more ops, nothing is grouped
# Seconds of grouping for each op of a micro-batch, at 2,000 to 64,000 ops.
SECONDS_AN_OP = 5e-5


class CoarseAnnealing(Placer):
    """Annealing on groups and on ops by turns."""

    name = "coarse-annealing"

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        fine = best_construction(space, rng, deadline)
        if is_expired(deadline) or not has_time(space, deadline):
            return fine
        coarse = None
        if space.problem.num_ops <= MOST_OPS * space.problem.microbatches:
            coarse = coarse_problem(
                space.problem, int(GROUPS * space.problem.microbatches**0.5)
            )
        if coarse is None:
            annealed = anneal(space, fine, rng, deadline)
            return Found(
                annealed.device, annealed.order, f"{fine.note}, then {annealed.note}"
            )
        if deadline <= NO_BUDGET:
            return _once(space, coarse, fine, rng)
        return _anneal_by_turns(space, coarse, fine, rng, deadline)


def _once(
    space: SearchSpace, coarse: CoarseProblem, fine: Found, rng: np.random.Generator
) -> Found:
    """Return the placement for budget 0: one annealing of the groups, then one of the ops."""
    on_groups = anneal_construction(SearchSpace(coarse.problem), rng)
    start = project_placement(space, coarse, on_groups, NO_BUDGET)
    note = f"{coarse.problem.num_ops} groups: {on_groups.note}"
    if space.score(fine.device, fine.order) < space.score(start.device, start.order):
        start = fine
        note = fine.note
    refined = anneal(space, start, rng, NO_BUDGET)
    return Found(refined.device, refined.order, f"{note}; then {refined.note}")


def _anneal_by_turns(
    space: SearchSpace,
    coarse: CoarseProblem,
    fine: Found,
    rng: np.random.Generator,
    deadline: float,
) -> Found:
    """Run cycles of annealing on groups and on ops by turns until the deadline."""
    groups = SearchSpace(coarse.problem)
    above = Annealer(groups, best_construction(groups, rng, deadline), rng)
    below = Annealer(space, fine, rng)
    shown = np.inf
    while not is_expired(deadline):
        if above.score < shown:
            shown = above.score
            start = project_placement(space, coarse, above.found(), deadline)
            below.offer(start, space.score(start.device, start.order))
        below.cycle(deadline)
        if np.isfinite(above.score):
            above.cycle(deadline)
    note = f"{coarse.problem.num_ops} groups: {above.moves} moves; then {below.moves} moves"
    return below.answer(note)


def has_time(space: SearchSpace, deadline: float) -> bool:
    """Return whether grouping, if there is any, is done before the deadline; always without one."""
    if deadline <= NO_BUDGET:
        return True
    ops = space.problem.num_ops / space.problem.microbatches
    return ops > MOST_OPS or read_clock() + SECONDS_AN_OP * ops < deadline


def project_placement(
    space: SearchSpace, coarse: CoarseProblem, found: Found, deadline: float
) -> Found:
    """Return a placement of the groups as one of the ops, repaired, in the best order known
    for it.
    """
    device = found.device[coarse.group]
    grouped_order = coarse.fine_order(space.problem, found.order)
    priority = np.empty(len(grouped_order))
    priority[grouped_order] = -np.arange(len(grouped_order), dtype=np.float64)
    score, order = space.sequence(device, [priority])
    if space.score(device, grouped_order) < score:
        order = grouped_order
    return Found(*repair(space, device, order, deadline))
