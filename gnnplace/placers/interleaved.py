"""``interleaved``: several chunks a device, dealt in rounds (Narayanan et al., 2021, Megatron).

Formulation: units in coordinate order are cut into k * r chunks; chunk c goes to device c mod k
in round c div k. Besides the usual sequences, one more is tried: the list schedule whose priority
runs forward ops by (round, micro-batch, position) and backward ops by (last round first,
micro-batch, position). There are 2 to 4 rounds and 2 to D devices; the best combination is improved
by moving cuts, as ``contiguous`` does. Complexity: O(D * rounds) simulations, then as
``contiguous``.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.search.chunks import (
    cut_by_shares,
    device_counts,
    device_ranking,
    find_unit_chunks,
    max_tries,
    most_constructed,
    move_cut,
)
from gnnplace.placers.search.space import SearchSpace, expired
from gnnplace.problem import BACKWARD, Problem

ROUNDS = (2, 3, 4)


class Interleaved(Placer):
    """Pipeline stages in several rounds.

    Args:
        moves: whether cuts are moved; otherwise chunks of equal work are all.
    """

    name = "interleaved"

    def __init__(self, moves: bool = True) -> None:
        self.moves = moves

    def supports(self, problem: Problem) -> str | None:
        """Refuse problems of one device: there are no two to deal chunks to."""
        if problem.num_devices > 1:
            return None
        return "chunks need at least two devices"

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        ranking = device_ranking(space)
        speeds = space.speed
        tried: list[tuple[float, int, int, IntArray, IntArray, IntArray, IntArray]] = []
        for k, rounds in _sizes(len(ranking))[: most_constructed(space)]:
            if tried and expired(deadline):
                break
            devices = np.sort(ranking[:k])
            cuts = cut_by_shares(space, np.tile(speeds[devices], rounds))
            score, device, order = _evaluate(space, devices, cuts)
            tried.append((score, k, rounds, devices, cuts, device, order))
        best = min(tried, key=lambda entry: entry[:3])
        score, k, rounds, devices, cuts, device, order = best
        if self.moves:
            device, order = _improve(
                space=space,
                devices=devices,
                cuts=cuts,
                score=score,
                device=device,
                order=order,
                deadline=deadline,
            )
        return Found(device, order, f"{k} devices, {rounds} rounds")


def _sizes(most: int) -> list[tuple[int, int]]:
    """Return the numbers of devices and rounds to try, the fewest rounds and powers of two first.

    Large graphs afford a few alone: most devices first, each in all rounds, was 1.28 times as long
    on 41 problems of training families with 7,000 to 20,000 ops, on 8 to 32 devices.
    """
    counts = sorted(
        device_counts(most), key=lambda k: (k & (k - 1) != 0 and k != most, -k)
    )
    several = [(k, rounds) for rounds in ROUNDS for k in counts if k > 1]
    return [*several, (1, 1)]


def _evaluate(
    space: SearchSpace, devices: IntArray, cuts: IntArray, cutoff: float = np.inf
) -> tuple[float, IntArray, IntArray]:
    chunk = find_unit_chunks(space, cuts)
    device = space.spread(space.allow(devices[chunk % len(devices)]))
    rounds = (chunk // len(devices))[space.problem.unit_of]
    score, order = space.sequence(device, [round_priority(space, rounds)], cutoff)
    return score, device, order


def round_priority(space: SearchSpace, rounds: IntArray) -> FloatArray:
    """Return the priority of ops by (phase, round in the phase's own direction, micro-batch,
    position). [n]
    """
    problem = space.problem
    turn = np.where(problem.phase == BACKWARD, -rounds, rounds)
    keys = (problem.graph.position, problem.microbatch, turn, problem.phase)
    priority = np.empty(problem.num_ops)
    priority[np.lexsort(keys)] = -np.arange(problem.num_ops, dtype=np.float64)
    return priority


def _improve(
    space: SearchSpace,
    devices: IntArray,
    cuts: IntArray,
    score: float,
    device: IntArray,
    order: IntArray,
    deadline: float,
) -> tuple[IntArray, IntArray]:
    """Move each cut once, by a quarter and a sixteenth of a chunk either way."""
    chunk = max(1, space.problem.num_units // (len(cuts) + 1))
    steps = (max(1, chunk // 4), max(1, chunk // 16))
    moves = [
        (i, sign * step) for step in steps for i in range(len(cuts)) for sign in (-1, 1)
    ]
    for i, delta in moves[: max_tries(space)]:
        if expired(deadline):
            break
        candidate = move_cut(cuts, i, delta, space.problem.num_units)
        if candidate is not None:
            tried = _evaluate(space, devices, candidate, score)
            if tried[0] < score:
                (score, device, order), cuts = tried, candidate
    return device, order
