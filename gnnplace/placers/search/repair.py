"""Memory repair: moves units off devices that exceed their memory until everything fits.

Our own step, for algorithms that ignore memory. Each round takes the device with the largest excess
and tries to move one of its units, or a block of units at an end of its chunk, to each of the three
devices with the most free memory. The move with the least score (step time plus a penalty on excess
bytes) is kept. When no move helps, repair starts again from a balanced packing.
Complexity: a bounded number of simulations, fewer for larger graphs.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.placers.search.space import NO_BUDGET, SearchSpace, is_expired

Move = tuple[IntArray, int]  # Units, and the device they go to.
MOST_OPS_SIMULATED = 1_000_000  # Simulations times ops that a repair may take.


def repair(
    space: SearchSpace,
    device: IntArray,
    order: IntArray,
    deadline: float = NO_BUDGET,
    most_ops: int = MOST_OPS_SIMULATED,
) -> tuple[IntArray, IntArray]:
    """Return devices and an order that fit, found from the given ones; unchanged if they fit
    already.

    What comes back may still not fit: the caller simulates and says so. No move is tried after
    the deadline, nor when ``most_ops`` have been simulated, twice.
    """
    if space.fits(device, order):
        return device, order
    order = space.sequence(device)[1]
    best = _move_units(
        space=space,
        device=device,
        order=order,
        deadline=deadline,
        most_ops=most_ops,
    )
    if space.simulator.excess(*best)[1] > 0 and not is_expired(deadline):
        packed = space.spread(pack(space))
        best = min(
            (
                best,
                _move_units(
                    space=space,
                    device=packed,
                    order=space.sequence(packed)[1],
                    deadline=deadline,
                    most_ops=most_ops,
                ),
            ),
            key=lambda pair: space.score(*pair),
        )
    return best[0], best[1]


def unit_bytes(space: SearchSpace) -> FloatArray:
    """Return the state of each unit plus all bytes that it produces. [U]"""
    problem = space.problem
    graph = problem.graph
    unit = problem.unit_of[graph.producer]
    alive = np.bincount(unit, graph.size, problem.num_units)
    return problem.unit_state + alive


def pack(space: SearchSpace) -> IntArray:
    """Put units in the order of their coordinates on devices, cut where each device's share of
    bytes is full. [U]

    Bytes are state and everything a unit produces; shares follow the devices' memory.
    """
    problem = space.problem
    size = unit_bytes(space)
    memory = np.minimum(problem.cluster.memory, size.sum())
    limits = np.cumsum(memory) / memory.sum() * size.sum()
    middle = np.cumsum(size[space.unit_order]) - size[space.unit_order] / 2
    unit_device = np.empty(problem.num_units, dtype=np.int32)
    unit_device[space.unit_order] = np.minimum(
        np.searchsorted(limits, middle, side="right"), problem.num_devices - 1
    )
    return space.allow(unit_device)


def _move_units(
    space: SearchSpace,
    device: IntArray,
    order: IntArray,
    deadline: float,
    most_ops: int,
) -> tuple[IntArray, IntArray]:
    unit_device = space.find_unit_devices(device)
    score = space.score(device, order)
    tries = int(np.clip(most_ops // space.problem.num_ops, 30, 3_000))
    while tries > 0 and not is_expired(deadline):
        over = space.simulator.run(space.spread(unit_device), order).peak_memory
        over = over - space.problem.cluster.memory
        if over.max() > 0:
            moves = _candidates(space, unit_device, over)
        else:
            moves = []
        tries -= len(moves) + 1
        tried = []
        for k, (unit, target) in enumerate(moves):
            changed = unit_device.copy()
            changed[unit] = target
            tried.append((space.score(space.spread(changed), order), k))
        if not tried or min(tried)[0] >= score:
            break
        score, best = min(tried)
        unit_device[moves[best][0]] = moves[best][1]
    device = space.spread(unit_device)
    return device, space.sequence(device)[1]


def _candidates(
    space: SearchSpace, unit_device: IntArray, over: FloatArray
) -> list[Move]:
    """Return moves off the fullest device: single units by bytes, and blocks at its chunk's two
    ends.
    """
    full = int(over.argmax())
    excess = over[full]
    full_units = space.unit_order[unit_device[space.unit_order] == full]
    size = unit_bytes(space)[full_units]

    # Single units: the largest, and the smallest that are enough.
    enough = np.flatnonzero(size >= excess)
    largest = np.argsort(-size)[:3]
    just_enough = enough[np.argsort(size[enough])][:3]
    parts = [full_units[k : k + 1] for k in dict.fromkeys([*largest, *just_enough])]

    # Blocks from either end of the device's units, of a quarter of the excess and of all of it.
    for share in (0.25, 1.0):
        wanted = share * excess
        front = int(np.searchsorted(size.cumsum(), wanted)) + 1
        back = int(np.searchsorted(size[::-1].cumsum(), wanted)) + 1
        parts += [full_units[:front], full_units[-back:]]

    targets = [int(target) for target in np.argsort(over)[:3] if target != full]
    allowed = space.problem.unit_allowed
    moves: list[Move] = []
    for part in parts:
        for target in targets:
            units = part[allowed[part, target]]
            if len(units):
                moves.append((units, target))
    return moves
