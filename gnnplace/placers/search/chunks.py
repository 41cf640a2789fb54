"""Chunks: runs of units, in coordinate order, with given shares of the work; and their moves.

Placers that cut the graph into stages make chunks, in O(U) a cut. The search on chunks
(``chunk_search``) moves them; there a chunk is a run of segments that share a device. Its state is
a device for every segment of the line, a device for each segment apart from the line, and a
priority of ops. A move shifts a cut, slides a run of cuts, swaps two chunks or two devices, gives a
chunk or a run of segments to another device, moves a segment that is apart from the line, or only
perturbs the priority. The kind of the next move is drawn by a bandit with probability matching
(Thierens, 2005): the more often its latest moves improved their state, the likelier a kind. A share
``CURIOUS`` of the moves is drawn by fixed probabilities, so that no kind dies out.
Complexity: O(units) a move.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.graph import inner
from gnnplace.placers.search.space import SearchSpace

CONSTRUCTED_OPS = 60_000  # ops of all constructions of a kind
CUT, SLIDE, SWAP_CHUNKS, SWAP_DEVICES, GIVE_CHUNK, GIVE_RUN, ALONE, ORDER = range(8)
# The share of each kind of move at first.
PRIOR = (0.36, 0.18, 0.11, 0.05, 0.07, 0.07, 0.04, 0.12)
CURIOUS = 0.3  # share of moves whose kind is drawn by that, not by use
# The use of a kind at first, and how much a move changes its estimate.
HOPED, FORGOTTEN = (0.1, 0.02)


def cut_by_shares(space: SearchSpace, shares: FloatArray) -> IntArray:
    """Return where to cut the units in coordinate order so that chunks have the given shares of
    work.

    Args:
        space: the search space whose units are cut.
        shares: wanted shares of the work, any positive scale. [C]

    Returns:
        Index of the first unit of each chunk but the first, ascending. [C - 1]
    """
    middle = np.cumsum(space.mean_work[space.unit_order])
    middle = middle - space.mean_work[space.unit_order] / 2
    total = space.mean_work.sum()
    wanted = np.cumsum(shares)[:-1] / shares.sum() * total
    return np.searchsorted(middle, wanted).astype(np.int32)


def find_unit_chunks(space: SearchSpace, cuts: IntArray) -> IntArray:
    """Return the chunk of each unit. [U]"""
    chunk = np.empty(space.problem.num_units, dtype=np.int32)
    index = np.arange(space.problem.num_units)
    chunk[space.unit_order] = np.searchsorted(cuts, index, side="right")
    return chunk


def device_ranking(space: SearchSpace) -> IntArray:
    """Return the devices that can run something, the fastest first, as listed among equals.
    [<= D]
    """
    speed = space.speed
    ranking = np.argsort(-np.round(speed, 9), kind="stable")
    return ranking[speed[ranking] > 0].astype(np.int32)


def device_counts(most: int) -> list[int]:
    """Return the numbers of devices to try: all up to 8, then powers of two and the most."""
    powers_of_two = [k for k in range(9, most + 1) if k & (k - 1) == 0]
    return sorted({*range(1, min(most, 8) + 1), *powers_of_two, most})


def max_tries(space: SearchSpace) -> int:
    """Return how many cut moves to try: about half a second of simulations, whatever the size."""
    return int(np.clip(200_000 // space.problem.num_ops, 8, 200))


def limit_constructed_chunks(space: SearchSpace) -> int:
    """Return how many numbers of chunks to try at most, whatever the budget: few on large
    graphs.
    """
    return max(2, CONSTRUCTED_OPS // space.problem.num_ops)


def move_cut(cuts: IntArray, i: int, delta: int, num_units: int) -> IntArray | None:
    """Return the cuts with cut ``i`` moved by ``delta`` units; None if it would pass another or
    stay.
    """
    new_cuts = cuts.copy()
    new_cuts[i] = np.clip(cuts[i] + delta, 0, num_units)
    if (np.diff(new_cuts) >= 0).all() and new_cuts[i] != cuts[i]:
        return new_cuts
    return None


class Chunks(NamedTuple):
    """The state of the search. All arrays change in place.

    Attributes:
        line: units of the line, in order. [S]
        loose: units that stand alone.
        work: seconds of each unit on each device, inf where it may not be. [U, D]
        unit_device: device of each unit. [U]
        priority: Priority of each op. [n]
        score: predicted seconds with penalty. [1]
        best_unit_device: device of each unit in the best state of all members. [U]
        best_priority: its priority. [n]
        best_order: its order. [n]
        best_score: its seconds. [1]
        prior: share of each kind of move at first. [kinds]
        useful: share of its moves that were better than the state, the latest most. [kinds]
    """

    line: IntArray
    loose: IntArray
    work: FloatArray
    unit_device: IntArray
    priority: FloatArray
    score: FloatArray
    best_unit_device: IntArray
    best_priority: FloatArray
    best_order: IntArray
    best_score: FloatArray
    prior: FloatArray
    useful: FloatArray


@inner(_nrt=False)
def find_chunk_bounds(
    line: IntArray, unit_device: IntArray, place: int
) -> tuple[int, int]:
    """Return the first place of the chunk around ``place`` and the first behind it."""
    d = unit_device[line[place]]
    low = place
    high = place + 1
    while low > 0 and unit_device[line[low - 1]] == d:
        low -= 1
    while high < len(line) and unit_device[line[high]] == d:
        high += 1
    return low, high


@inner(_nrt=False)
def give(
    line: IntArray, unit_device: IntArray, low: int, high: int, target: int
) -> None:
    """Give the segments from ``low`` up to ``high`` to a device."""
    for place in range(max(0, low), min(high, len(line))):
        unit_device[line[place]] = target


@inner(_nrt=False)
def slide(line: IntArray, unit_device: IntArray, low: int, high: int) -> None:
    """Move the cuts between ``low`` and ``high`` by one place, up or down."""
    if np.random.random() < 0.5:
        for place in range(high - 1, low, -1):
            unit_device[line[place]] = unit_device[line[place - 1]]
    else:
        for place in range(low, high - 1):
            unit_device[line[place]] = unit_device[line[place + 1]]


@inner(_nrt=False)
def exchange(unit_device: IntArray, one: int, two: int) -> None:
    """Swap two devices."""
    for unit in range(len(unit_device)):
        if unit_device[unit] == one:
            unit_device[unit] = two
        elif unit_device[unit] == two:
            unit_device[unit] = one


@inner(_nrt=False)
def choose_kind(chunks: Chunks) -> int:
    """Return a kind of move: as often as it is of use, but each now and then."""
    total = 0.0
    for kind in range(len(chunks.prior)):
        total += chunks.prior[kind] * chunks.useful[kind]
    drawn = np.random.random()
    last = len(chunks.prior) - 1
    for kind in range(last):
        share = chunks.prior[kind] * chunks.useful[kind] / total
        drawn -= CURIOUS * chunks.prior[kind] + (1.0 - CURIOUS) * share
        if drawn < 0.0:
            return kind
    return last


@inner(_nrt=False)
def change(chunks: Chunks, unit_device: IntArray, kind: int) -> None:
    """Make one random move of that kind, one that is possible."""
    line = chunks.line
    num_devices = chunks.work.shape[1]
    size = len(line)
    if kind == ORDER:
        return
    if kind == ALONE:
        unit = chunks.loose[np.random.randint(len(chunks.loose))]
        unit_device[unit] = np.random.randint(num_devices)
        return
    place = np.random.randint(size)
    low, high = find_chunk_bounds(line, unit_device, place)
    if kind == CUT:
        count = 1 + int(np.random.exponential(1.0))
        if np.random.random() < 0.5 and low > 0:
            give(line, unit_device, low, low + count, unit_device[line[low - 1]])
        elif high < size:
            give(line, unit_device, high - count, high, unit_device[line[high]])
    elif kind == SLIDE:
        length = 2 + int(np.random.exponential(0.25 * size))
        slide(line, unit_device, place, min(size, place + length))
    elif kind == SWAP_CHUNKS:
        partner = np.random.randint(size)
        first, last = find_chunk_bounds(line, unit_device, partner)
        one = unit_device[line[place]]
        two = unit_device[line[partner]]
        give(line, unit_device, low, high, two)
        give(line, unit_device, first, last, one)
    elif kind == SWAP_DEVICES:
        one = unit_device[line[place]]
        two = np.random.randint(num_devices)
        exchange(unit_device, one, two)
    elif kind == GIVE_CHUNK:
        give(line, unit_device, low, high, np.random.randint(num_devices))
    else:
        count = 1 + int(np.random.exponential(3.0))
        give(line, unit_device, place, place + count, np.random.randint(num_devices))


@inner(_nrt=False)
def same(one: IntArray, other: IntArray) -> bool:
    """Return whether two arrays of one length are equal."""
    k = 0
    while k < len(one) and one[k] == other[k]:
        k += 1
    return k == len(one)


@inner(_nrt=False)
def find_busiest_seconds(
    work: FloatArray, unit_device: IntArray, load: FloatArray
) -> float:
    """Return the seconds of the device with most work; inf where a unit may not be. ``load``:
    scratch [D]
    """
    for d in range(len(load)):
        load[d] = 0.0
    largest = 0.0
    for unit in range(len(unit_device)):
        d = unit_device[unit]
        load[d] += work[unit, d]
        largest = max(largest, load[d])
    return largest
