"""``contiguous``: chunks of equal work of whole units, on the best number of devices.

Formulation: units, in the order of their coordinates, are cut into k chunks whose work is
proportional to the speeds of the k fastest devices, for k from 1 to D. The best few k are then
improved by moving one cut at a time by 1, 2, 4, ... units while the score falls. The devices'
sequences come from ``SearchSpace.sequence``. This is the pipeline split of GPipe (Huang et al.,
2019) with balanced work as in PipeDream (Narayanan et al., 2019), scored by simulation instead of
their closed forms. On large graphs only the few largest k are tried.
Complexity: O(D + k log U * passes) simulations.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import IntArray
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.search.chunks import (
    cut_by_shares,
    device_counts,
    device_ranking,
    find_unit_chunks,
    limit_constructed_chunks,
    max_tries,
    move_cut,
)
from gnnplace.placers.search.space import NO_BUDGET, SearchSpace, is_expired, read_clock

KEPT = 3
PASSES = 4
# Score, chunks, devices, cuts, device of each op, order.
Start = tuple[float, int, IntArray, IntArray, IntArray, IntArray]


class Contiguous(Placer):
    """Pipeline stages.

    Args:
        moves: whether cuts are moved; otherwise chunks of equal work are all.
    """

    name = "contiguous"

    def __init__(self, moves: bool = True) -> None:
        self.moves = moves

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        ranking = device_ranking(space)
        speeds = space.speed
        starts: list[Start] = []
        for k in device_counts(len(ranking))[::-1][: limit_constructed_chunks(space)]:
            if starts and is_expired(deadline):
                break
            devices = np.sort(ranking[:k])
            cuts = cut_by_shares(space, speeds[devices])
            score, device, order = evaluate_cuts(space, devices, cuts)
            starts.append((score, k, devices, cuts, device, order))
        starts.sort(key=lambda entry: entry[:2])
        until = deadline if self.moves else read_clock()
        improved = [
            improve_cuts(
                space=space,
                devices=entry[2],
                cuts=entry[3],
                start=entry,
                deadline=until,
            )
            for entry in starts[:KEPT]
        ]
        score, k, device, order = min(improved, key=lambda entry: entry[:2])
        return Found(device, order, f"{k} chunks")


def evaluate_cuts(
    space: SearchSpace, devices: IntArray, cuts: IntArray, cutoff: float = np.inf
) -> tuple[float, IntArray, IntArray]:
    """Score, device of each op and order, of chunks on ``devices``; inf above ``cutoff``."""
    unit_device = space.allow(devices[find_unit_chunks(space, cuts) % len(devices)])
    device = space.spread(unit_device)
    score, order = space.sequence(device, cutoff=cutoff)
    return score, device, order


def improve_cuts(
    space: SearchSpace,
    devices: IntArray,
    cuts: IntArray,
    start: Start,
    deadline: float = NO_BUDGET,
) -> tuple[float, int, IntArray, IntArray]:
    """Move one cut at a time while the score falls; return score, chunks, device of ops and order.

    Tries no move after the deadline.
    """
    score = start[0]
    cuts = cuts.copy()
    device = start[4]
    order = start[5]
    widest = max(1, space.problem.num_units // (2 * len(devices)))
    powers = [2**exponent for exponent in range(20)]
    steps = [step for step in powers if step <= widest][::-1]
    tries = max_tries(space)
    for _ in range(PASSES):
        score_before = score
        for i, delta in [
            (i, sign * s) for s in steps for i in range(len(cuts)) for sign in (-1, 1)
        ]:
            candidate = move_cut(cuts, i, delta, space.problem.num_units)
            if candidate is None or tries == 0 or is_expired(deadline):
                continue
            tries -= 1
            tried = evaluate_cuts(space, devices, candidate, score)
            if tried[0] < score:
                (score, device, order), cuts = tried, candidate
        if score >= score_before * (1 - 1e-4):
            break
    return score, len(cuts) + 1, device, order
