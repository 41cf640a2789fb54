"""Ordering the ops of decided devices: justified list schedules, the best by simulation.

Formulation: a few schedules are made and justified (``simulation.list_scheduling.justify``): the
schedule of the reversed graph gives every op's distance to the end, including queues, and list
scheduling by this distance gives the order. Complexity: some four list schedules.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.placers import SearchSpace
from gnnplace.simulation import justify, list_schedule


def order_by_justification(
    space: SearchSpace,
    device: IntArray,
    *,
    booked: IntArray | None = None,
    priorities: Iterable[FloatArray] = (),
) -> tuple[float, IntArray]:
    """Return the best order for given devices, and its score.

    One micro-batch: list scheduling by upward rank, or the decoder's own order, and the better one
    justified. Several: micro-batches in turn and list scheduling by priorities, each justified.

    Args:
        space: The problem with its simulator.
        device: Device of each op. [n]
        booked: All ops in the order in which a decoder booked them, for one micro-batch. [n]
        priorities: Priorities of ops beside turns, for several micro-batches. Each [n].

    Returns:
        Predicted seconds with penalties, and the order of all ops. [n]
    """
    compiled = space.compiled
    if space.problem.microbatches == 1:
        by_rank = list_schedule(compiled, device, space.priorities[0])
        plain = best_order(
            space, device, [by_rank] if booked is None else [by_rank, booked]
        )
        starts = [plain[1]]
    else:
        starts = [space.turn_order]
        for priority in priorities:
            starts.append(list_schedule(compiled, device, priority))
        plain = best_order(space, device, starts)
    best = plain
    for order in starts:
        justified = justify(compiled, space.reversed, device, order)
        best = best_order(space, device, [justified], best)
    return best


def best_order(
    space: SearchSpace,
    device: IntArray,
    orders: Iterable[IntArray],
    incumbent: tuple[float, IntArray] | None = None,
) -> tuple[float, IntArray]:
    """Return the best of an incumbent and of some orders, with its score."""
    scored = [] if incumbent is None else [incumbent]
    for order in orders:
        scored.append((space.score(device, order), order))
    return min(scored, key=itemgetter(0))
