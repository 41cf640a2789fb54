"""The cuts of the chain and the meshes of its stages: two kernels on prefix sums.

A *table* has the costs of segments on one kind of mesh. It has prefix sums over segments of the
seconds of a micro-batch, the seconds of recomputation, the bytes that recomputation frees, the
bytes of activations, and the bytes of state; and the largest working memory of 1, 2, 4, ...
segments from each segment on, of which two give the largest of any run. A stage [i, j) with f
micro-batches in flight takes

    seconds(i, j) + recomputed(i, j) * min(1, lack / freed(i, j)),
    lack = max(state(i, j) + working(i, j) + f kept(i, j) - memory, 0) / f

and is impossible if lack exceeds freed: recomputing a share of the segments frees that share of the
bytes. (In the end `Pricer.fitted` picks whole segments for the chosen stages.)

* `cut_even_stages` minimises the largest stage on equal meshes, by bisection on its seconds: from
  the end, each stage takes as many segments as fit. O(S log L log(1 / precision)).
* `best_meshes` minimises the sum of stages + (M - 1) largest stage over sequences of any meshes. A
  dynamic programme over (stages to come, first segment, devices left) is solved for each of a few
  limits on the largest stage. O(S L^2 D O) for O meshes. It is Alpa's (Zheng et al., 2022, arXiv
  2201.12023, section 5.2), with memory by the number of stages that follow.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from gnnplace.arrays import FloatArray, LongArray

SECONDS, AGAIN, FREED, KEPT, STATE = range(5)
WIDTH = 5


class Tables(NamedTuple):
    """The prices of segments on kinds of meshes.

    Attributes:
        sums: Prefix sums, and largest bytes at work. [tables, WIDTH + levels, segments + 1]
        memory: Bytes of a device. [tables]
        end: Prefix sums of seconds at the end of the step. [segments + 1]
    """

    sums: FloatArray
    memory: FloatArray
    end: FloatArray


def largest_at_work(working: FloatArray) -> FloatArray:
    """Return the largest of 1, 2, 4, ... values from each position on. [levels, segments + 1]

    Args:
        working: Bytes at work of each segment. [segments]
    """
    rows = [np.append(working, 0.0)]
    while 1 << len(rows) <= len(working):
        ahead = np.roll(rows[-1], -(1 << (len(rows) - 1)))
        rows.append(np.maximum(rows[-1], ahead))
    return np.array(rows)


@numba.njit(cache=True)
def _find_bytes_at_work(sums: FloatArray, first: int, last: int) -> float:
    """Return the largest bytes at work of segments [first, last), of two runs that overlap."""
    level = 0
    while 2 << level <= last - first:
        level += 1
    row = sums[WIDTH + level]
    return max(row[first], row[last - (1 << level)])


@numba.njit(cache=True)
def stage_seconds(
    sums: FloatArray, memory: float, first: int, last: int, flying: int
) -> float:
    """Return a stage's seconds of a micro-batch with what it must recompute; inf if too large.

    Args:
        sums: Prefix sums of the stage's mesh. [WIDTH + levels, segments + 1]
        memory: Bytes of a device.
        first: The first segment of the stage.
        last: The one after its last.
        flying: Micro-batches in flight.
    """
    seconds = sums[SECONDS, last] - sums[SECONDS, first]
    kept_bytes = sums[KEPT, last] - sums[KEPT, first]
    state = sums[STATE, last] - sums[STATE, first]
    lack = state + _find_bytes_at_work(sums, first, last) + flying * kept_bytes - memory
    if lack <= 0.0:
        return seconds
    lack /= max(flying, 1)
    freed = sums[FREED, last] - sums[FREED, first]
    if lack > freed:
        return np.inf
    return seconds + (sums[AGAIN, last] - sums[AGAIN, first]) * lack / freed


@numba.njit(cache=True)
def cut_even_stages(
    sums: FloatArray, memory: float, flying: LongArray, least: float
) -> tuple[float, LongArray]:
    """Cut a chain into as many stages as `flying` has entries, all on equal meshes.

    Args:
        sums: Prefix sums of their mesh. [WIDTH + levels, segments + 1]
        memory: Bytes of a device.
        flying: Micro-batches in flight on each stage. [S]
        least: Relative precision of the largest stage.

    Returns:
        Seconds of the largest stage (inf if nothing fits) and the first segment of every stage. [S]
    """
    stages = len(flying)
    count = sums.shape[1] - 1
    cuts = np.zeros(stages, dtype=np.int64)
    best = np.zeros(stages, dtype=np.int64)
    total = sums[SECONDS, count] + sums[AGAIN, count]
    low = sums[SECONDS, count] / stages
    high = total * (1 + least)
    shortest = np.inf
    if not _fill_cuts(sums, memory, flying, high, cuts):
        return np.inf, best
    while True:
        best[:] = cuts
        shortest = 0.0
        for s in range(stages):
            if s + 1 < stages:
                end = cuts[s + 1]
            else:
                end = count
            taken = stage_seconds(sums, memory, cuts[s], end, flying[s])
            shortest = max(shortest, taken)
        high = min(high, shortest)
        while high - low > least * high:
            middle = 0.5 * (low + high)
            if _fill_cuts(sums, memory, flying, middle, cuts):
                break
            low = middle
        else:
            return shortest, best


@numba.njit(cache=True)
def _fill_cuts(
    sums: FloatArray, memory: float, flying: LongArray, most: float, cuts: LongArray
) -> bool:
    """Fill `cuts` from the end, each stage as long as fits in memory and in `most` seconds.

    Args:
        sums: Prefix sums of the stages' mesh. [WIDTH + levels, segments + 1]
        memory: Bytes of a device.
        flying: Micro-batches in flight on each stage. [S]
        most: Seconds that a stage may take at most.
        cuts: The first segment of every stage; overwritten. [S]

    Returns:
        Whether the stages take all segments.
    """
    stages = len(flying)
    end = sums.shape[1] - 1
    for s in range(stages - 1, -1, -1):
        if end <= s:
            return False
        low, high = s, end  # the first segment of the stage is in (low, high], or at s
        if stage_seconds(sums, memory, s, end, flying[s]) <= most:
            high = s
        else:
            while low + 1 < high:
                middle = (low + high) // 2
                if stage_seconds(sums, memory, middle, end, flying[s]) <= most:
                    high = middle
                else:
                    low = middle
        if high >= end:
            return False
        cuts[s] = high
        end = high
    return end == 0


@numba.njit(cache=True)
def best_meshes(
    sums: FloatArray,
    memory: FloatArray,
    table: LongArray,
    size: LongArray,
    microbatches: int,
    most: float,
    deepest: int,
) -> tuple[float, LongArray]:
    """Find the stages on any meshes that follow each other with the least sum of seconds.

    Args:
        sums: Prefix sums of each table. [tables, WIDTH + levels, segments + 1]
        memory: Bytes of a device of each. [tables]
        table: Table of each mesh that begins at each device; negative if there is none. [meshes,
            devices]
        size: Devices of each mesh. [meshes]
        microbatches: M, the number of micro-batches of a step.
        most: Seconds that a stage may take at most.
        deepest: The largest number of stages.

    Returns:
        The sum (inf if nothing fits), and first segment and mesh of every stage. [S, 2]
    """
    meshes, devices = table.shape
    count = sums.shape[2] - 1
    # Least seconds by number of stages, first segment and first device.
    value = np.full((deepest + 1, count + 1, devices + 1), np.inf)
    value[0, count, :] = 0.0
    cut = np.full((deepest + 1, count + 1, devices + 1, 2), -1, dtype=np.int64)
    for stages in range(1, deepest + 1):
        flying = min(stages, microbatches)
        for first in range(count):
            for begin in range(devices - 1, -1, -1):
                for mesh in range(meshes):
                    kind = table[mesh, begin]
                    if kind < 0:
                        continue
                    own_table = (sums[kind], memory[kind])
                    remaining = value[stages - 1, :, begin + size[mesh]]
                    total, last = _longest(own_table, remaining, first, flying, most)
                    if total < value[stages, first, begin]:
                        value[stages, first, begin] = total
                        cut[stages, first, begin, 0] = last
                        cut[stages, first, begin, 1] = mesh
    # Follow the cuts of the best number of stages, from the first segment on.
    best = np.inf
    depth = 0
    for stages in range(1, deepest + 1):
        if value[stages, 0, 0] < best:
            best = value[stages, 0, 0]
            depth = stages
    choices = np.zeros((depth, 2), dtype=np.int64)
    first = 0
    begin = 0
    for k in range(depth):
        last, mesh = cut[depth - k, first, begin]
        choices[k, 0] = first
        choices[k, 1] = mesh
        first = last
        begin = begin + size[mesh]
    return best, choices


@numba.njit(cache=True)
def _longest(
    own: tuple[FloatArray, float],
    rest: FloatArray,
    first: int,
    flying: int,
    most: float,
) -> tuple[float, int]:
    """Return the best end of a stage on one mesh.

    Args:
        own: Prefix sums of the mesh, and bytes of a device.
        rest: Least seconds of the stages that begin at each segment. [segments + 1]
        first: The first segment of the stage.
        flying: Micro-batches in flight.
        most: Seconds that the stage may take at most.

    Returns:
        Seconds of the stage with those after it (inf if it cannot be), and the segment after its
        last.
    """
    sums, memory = own
    best = np.inf
    at = -1
    for last in range(first + 1, len(rest)):
        # Most rests cannot be at all, or are longer than the best sum alone.
        if rest[last] >= best:
            continue
        seconds = stage_seconds(sums, memory, first, last, flying)
        if seconds > most:
            break
        if seconds + rest[last] < best:
            best = seconds + rest[last]
            at = last
    return best, at
