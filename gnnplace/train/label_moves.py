"""Moves that better a label: a cluster of units, or one unit, goes to another device.

A label is the best placement of a problem that is known. The network's own draws find better ones
more and more seldom, so a few moves are tried whenever the problem is met (expert iteration:
Anthony et al., 2017): a random level or none, a random cluster of it, a random device; the units of
the cluster that may be there go there. A move that makes the simulated step shorter stays. Training
alone has this; a decode has no search. Cost: a simulation a move, ended early where it is worse.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnplace.policy.gnn.rollouts import Episodes
from gnnplace.train.even_use import unevenness

IntArray = NDArray[np.int32]
LEAST = 1e-6  # gain of a move that stays, of the step time


def bettered(
    episodes: Episodes,
    label: tuple[float, IntArray],
    limit: int,
    count: int,
    rng: np.random.Generator,
) -> tuple[float, IntArray]:
    """Cost and units' devices of the best placement after some moves; never a worse one.

    Args:
        episodes: the problem.
        label: cost of a placement (seconds times ``unevenness``), and each unit's device. [U]
        limit: number of devices to use.
        count: moves to try.
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
