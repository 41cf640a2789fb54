"""``interleaved``: pipeline stages of several chunks each (Narayanan et al., 2021, Megatron).

Formulation: units in coordinate order are cut into k * r chunks of equal work. Chunk c is on device
c mod k, in round c div k. All r from 2 to 4 and k from 2 to D are tried. The best combination is
improved by moving cuts, as ``contiguous`` does.

Each placement is simulated with the usual sequences and with one more: the list schedule that runs
forward ops by (round, micro-batch, position) and backward ops by (round from last to first,
micro-batch, position).

Deviation: large graphs try only a few combinations. Complexity: O(D * rounds) simulations, then as
``contiguous``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
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
from gnnplace.placers.search.space import SearchSpace, is_expired
from gnnplace.problem import BACKWARD, Problem

ROUNDS = (2, 3, 4)
LARGE_STEP = 4  # a cut is moved by this part of a chunk,
SMALL_STEP = 16  # and by this part


class InterleavedChunks(NamedTuple):
    """One placement of interleaved chunks.

    Attributes:
        devices: Devices of a round, in order. [k]
        cuts: Index of the first unit of each chunk but the first. [k * rounds - 1]
        rounds: Number of rounds.
        score: Predicted seconds, with the penalty for memory.
        device: Device of each op. [n]
        order: The order of all ops. [n]
    """

    devices: IntArray
    cuts: IntArray
    rounds: int
    score: float
    device: IntArray
    order: IntArray


class Interleaved(Placer):
    """A placer of pipeline stages in several rounds.

    Args:
        moves: Whether cuts are moved. If not, chunks of equal work are all that is tried.
    """

    name = "interleaved"

    def __init__(self, moves: bool = True) -> None:
        self.moves = moves

    def supports(self, problem: Problem) -> str | None:
        """Refuse problems of one device, where chunks cannot alternate."""
        if problem.num_devices > 1:
            return None
        return "chunks need at least two devices"

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        ranking = device_ranking(space)
        speeds = space.speed
        placements: list[InterleavedChunks] = []
        for k, rounds in _list_sizes(len(ranking))[: limit_constructed_chunks(space)]:
            if placements and is_expired(deadline):
                break
            devices = np.sort(ranking[:k])
            cuts = cut_by_shares(space, np.tile(speeds[devices], rounds))
            score, device, order = _evaluate(space, devices, cuts)
            placement = InterleavedChunks(
                devices=devices,
                cuts=cuts,
                rounds=rounds,
                score=score,
                device=device,
                order=order,
            )
            placements.append(placement)

        # Of equal ones, fewer devices and fewer rounds are better.
        best = min(
            placements,
            key=lambda tried: (tried.score, len(tried.devices), tried.rounds),
        )
        if self.moves:
            device, order = _improve(space, best, deadline)
        else:
            device, order = best.device, best.order
        note = f"{len(best.devices)} devices, {best.rounds} rounds"
        return Found(device, order, note)


def _list_sizes(num_devices: int) -> list[tuple[int, int]]:
    """Return the numbers of devices and rounds to try.

    The fewest rounds come first; for each number of rounds, all devices and powers of two before
    other numbers. Large graphs can afford only the first few. With the most devices first, each in
    all rounds, steps were 1.28 times as long on 41 problems of training families with 7,000 to
    20,000 ops, on 8 to 32 devices.
    """

    def precedence(k: int) -> tuple[bool, int]:
        is_power_of_two = k & (k - 1) == 0
        return not is_power_of_two and k != num_devices, -k

    counts = sorted(device_counts(num_devices), key=precedence)
    sizes = [(k, rounds) for rounds in ROUNDS for k in counts if k > 1]
    return [*sizes, (1, 1)]


def _evaluate(
    space: SearchSpace, devices: IntArray, cuts: IntArray, cutoff: float = np.inf
) -> tuple[float, IntArray, IntArray]:
    """Simulate chunks that are dealt to ``devices`` in turn. Return score, devices and order.

    With a score above ``cutoff`` the simulation stops early.
    """
    chunk = find_unit_chunks(space, cuts)
    device = space.spread(space.allow(devices[chunk % len(devices)]))
    rounds = (chunk // len(devices))[space.problem.unit_of]
    score, order = space.sequence(device, [round_priority(space, rounds)], cutoff)
    return score, device, order


def round_priority(space: SearchSpace, rounds: IntArray) -> FloatArray:
    """Return a priority that falls with (phase, round, micro-batch, position) of each op. [n]

    Backward ops take the rounds from the last to the first.

    Args:
        space: The search space of the problem.
        rounds: Round of each op. [n]
    """
    problem = space.problem
    turn = np.where(problem.phase == BACKWARD, -rounds, rounds)
    # The last key of a lexsort counts first.
    keys = (problem.graph.position, problem.microbatch, turn, problem.phase)
    priority = np.empty(problem.num_ops)
    priority[np.lexsort(keys)] = -np.arange(problem.num_ops, dtype=np.float64)
    return priority


def _improve(
    space: SearchSpace, placement: InterleavedChunks, deadline: float
) -> tuple[IntArray, IntArray]:
    """Move each cut both ways by a large and by a small step. Return the best devices and order."""
    cuts = placement.cuts
    score = placement.score
    device = placement.device
    order = placement.order
    chunk_size = max(1, space.problem.num_units // (len(cuts) + 1))
    steps = (max(1, chunk_size // LARGE_STEP), max(1, chunk_size // SMALL_STEP))
    moves = []
    for step in steps:
        for i in range(len(cuts)):
            moves += [(i, -step), (i, step)]
    for i, delta in moves[: max_tries(space)]:
        if is_expired(deadline):
            break
        moved_cuts = move_cut(cuts, i, delta, space.problem.num_units)
        if moved_cuts is None:
            continue
        candidate = _evaluate(space, placement.devices, moved_cuts, score)
        if candidate[0] < score:
            score, device, order = candidate
            cuts = moved_cuts
    return device, order
