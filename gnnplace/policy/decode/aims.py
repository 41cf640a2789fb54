"""Aims: what a decode is asked for, and all that a problem can be decoded under.

An **aim** is a traversal order, a number of devices, a number of rounds (runs of consecutive work a
device) and what the decoder leans to. ``AimNet`` says which ones to try first.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnnplace.policy.decode import ready_queue
from gnnplace.policy.decode.walk import COORDINATE
from gnnplace.problem import Problem

# The decoder picks the next op itself: see ``ready_queue``.
RULES = {"in-time": ready_queue.IN_TIME, "earliest-start": ready_queue.EARLY}
IN_TIME, EARLY = RULES
ORDERS = ("upward-rank", "downward-rank", "reverse-upward-rank", IN_TIME, EARLY, COORDINATE)
LEANS = ("", ", whatever the load", ", early starts")
ANY_LOAD = 1  # index in ``LEANS``
LEAN_ORDERS = ("upward-rank", IN_TIME)
ROUNDS = (1, 2, 3)
MOST_EVERY = 8  # with micro-batches, every number of devices up to this


@dataclass(frozen=True)
class Aim:
    """What a decode aims at.

    Attributes:
        order: the order of the walk.
        limit: the number of devices to use.
        rounds: runs of consecutive work a device.
        lean: index in ``LEANS``: what the decoder leans to.
    """

    order: str
    limit: int
    rounds: int = 1
    lean: int = 0

    def __str__(self) -> str:
        rounds = f", {self.rounds} rounds" if self.rounds > 1 else ""
        return f"{self.order}, {self.limit} devices{rounds}{LEANS[self.lean]}"


def device_limits(num_devices: int) -> list[int]:
    """Numbers of devices to aim at: powers of two, and all. Ascending."""
    return sorted(
        {2**e for e in range(num_devices.bit_length()) if 2**e <= num_devices} | {num_devices}
    )


def possible_aims(problem: Problem, orders: tuple[str, ...], *, tight: bool) -> list[Aim]:
    """All aims of a problem under these orders: most devices first, but one device is second.

    Where there are micro-batches chunks come before other walks of as many devices. Rounds need
    chunks, and rounds above two micro-batches. Where memory is ``tight`` and there are
    no micro-batches, chunks also come with the fewest transfers that fit, whatever the load.
    """
    limits = device_limits(problem.num_devices)[1:]
    several = problem.microbatches > 1
    free = _free_orders(problem, orders)
    result = [Aim(order, limit) for limit in limits for order in free]
    leaning = [order for order in free if order in LEAN_ORDERS][: 1 if several else 2]
    result += [
        Aim(order, limits[-1], lean=lean)
        for order in (leaning if limits else [])
        for lean in range(1, len(LEANS))
    ]
    if COORDINATE in orders:
        result += _chunk_aims(problem, limits)
        if tight and not several:
            result += [Aim(COORDINATE, limit, lean=ANY_LOAD) for limit in limits]
    result.sort(key=lambda aim: (-aim.limit, (aim.order == COORDINATE) != several))
    return [*result[:1], Aim(orders[0], 1), *result[1:]]


def _free_orders(problem: Problem, orders: tuple[str, ...]) -> list[str]:
    """Orders of walks without chunks; few devices afford one more."""
    many = problem.microbatches > 1 or problem.num_devices > 2 * MOST_EVERY
    return [o for o in orders if o != COORDINATE and not (many and o == "downward-rank")]


def _chunk_aims(problem: Problem, limits: list[int]) -> list[Aim]:
    every = sorted({*range(2, min(problem.num_devices, MOST_EVERY) + 1), *limits})
    rounds = ROUNDS if problem.microbatches > 1 else ROUNDS[:1]
    return [
        Aim(COORDINATE, limit, r)
        for limit in every
        for r in (rounds if limit in limits else rounds[:2])
    ]
