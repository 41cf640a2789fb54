"""``Found``: what a search hands back; and orders of ops by upward rank, or a scheduler's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.placers.search.clock import NO_BUDGET, expired
from gnnplace.simulation.list_scheduling import mean_upward_rank

if TYPE_CHECKING:
    from gnnplace.placers.search.space import SearchSpace

LARGE = 200_000  # ops whose list schedules take a noticeable share of a second


@dataclass(frozen=True)
class Found:
    """A placement as a search hands it back; it may not fit in memory yet.

    Attributes:
        device: device of each op. [n]
        order: all ops; a device runs its ops in this order. [n]
        note: a remark in a few words.
        bound: seconds that the search proved no placement to be below, if it proves anything.
    """

    device: IntArray
    order: IntArray
    note: str = ""
    bound: float = 0.0


def better(space: SearchSpace, one: Found, other: Found) -> Found:
    """The one of less score; the first among equals."""
    return min(one, other, key=lambda found: space.score(found.device, found.order))


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
