"""Orders of ops for list schedulers: by upward rank, and a scheduler's own or a better one."""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.placers.search.clock import NO_BUDGET, expired
from gnnplace.placers.search.found import Found
from gnnplace.placers.search.space import SearchSpace
from gnnplace.simulation.list_scheduling import mean_upward_rank

LARGE = 200_000  # ops whose list schedules take a noticeable share of a second


def rank_order(space: SearchSpace) -> IntArray:
    """Ops by descending upward rank; topological position breaks ties. [n]"""
    rank = mean_upward_rank(space.problem)
    return np.lexsort((space.problem.graph.position, -rank)).astype(np.int32)


def with_own_order(
    space: SearchSpace, device: IntArray, start: FloatArray, deadline: float = NO_BUDGET
) -> Found:
    """The devices with the better of the scheduler's own order and list-scheduled ones.

    Of a large problem its own alone after the deadline.
    """
    own = np.lexsort((space.problem.graph.position, start)).astype(np.int32)
    if space.problem.num_ops > LARGE and expired(deadline):
        return Found(device, own)
    score, order = space.sequence(device)
    return Found(device, own if space.score(device, own) < score else order)
