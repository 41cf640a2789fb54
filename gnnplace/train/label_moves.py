"""Labels: what a placement counts for, and moves that better it.

A label is the placement of least cost of a problem that is known for a number of devices. It costs
its seconds, and more where it uses another number: the number of devices that a placement really
uses is 1 / sum of squares of their shares of the work. Where that is below ``EVEN`` of the number
asked for, seconds are multiplied by one plus what is missing, and by one more for each device
beyond that number. Without it the best placement under a limit is often one device, which says
nothing of how work is divided: a network that learns from both learns neither. Whether dividing
pays is another decision (``policy.gnn.decoder``), which is judged by seconds alone.

The network's own draws find better labels more and more seldom, so a few moves are tried whenever
the problem is met (expert iteration: Anthony et al., 2017): a random level or none, a random
cluster of it, a random device; the units of the cluster that may be there go there. A move that
makes the cost less stays. Training alone has this; a decode has no search. Cost: a simulation a
move, ended early where it is worse.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import IntArray
from gnnplace.policy.gnn.rollouts import Episodes

EVEN = 0.75  # 3 : 1 on two devices is 0.8 of them
LEAST = 1e-6  # gain of a move that stays, of the step time


def unevenness(episodes: Episodes, unit_device: IntArray, limit: int) -> float:
    """What seconds are multiplied by. ``unit_device``: [U]"""
    work = np.bincount(unit_device, episodes.walk.unit_work)
    used = float(work.sum() ** 2 / max(float((work**2).sum()), 1e-300))
    beyond = int(np.count_nonzero(np.bincount(unit_device))) - limit
    return 1.0 + max(0.0, EVEN - used / limit) + max(0, beyond)


def bettered(
    episodes: Episodes,
    label: tuple[float, IntArray],
    limit: int,
    count: int,
    rng: np.random.Generator,
) -> tuple[float, IntArray]:
    """Cost and units' devices of the best placement after some moves; never a worse one.

    Args:
        episodes: the problem as the network walks it.
        label: cost of a placement (seconds times ``unevenness``), and each unit's device. [U]
        limit: the number of devices to use.
        count: the number of moves to try.
        rng: what they are drawn with.
    """
    for _ in range(count):
        moved = _moved(episodes, label[1], rng)
        if (moved == label[1]).all():
            continue
        uneven = unevenness(episodes, moved, limit)
        cost = uneven * episodes.seconds(moved, label[0] / uneven)
        if cost < label[0] * (1.0 - LEAST):
            label = float(cost), moved
    return label


def _moved(episodes: Episodes, unit_device: IntArray, rng: np.random.Generator) -> IntArray:
    """A placement with a cluster or a unit on another device."""
    levels, problem = episodes.clusters.of, episodes.space.problem
    level = int(rng.integers(len(levels) + 1))
    unit, device = int(rng.integers(problem.num_units)), int(rng.integers(problem.num_devices))
    alone = level == len(levels)
    mine = np.array([unit]) if alone else np.flatnonzero(levels[level] == levels[level, unit])
    moved = unit_device.copy()
    moved[mine[problem.unit_allowed[mine, device]]] = device
    return moved
