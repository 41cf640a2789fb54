"""Idle gaps of devices: the earliest that holds a job, in kernels, without looking at each.

Formulation: a device's busy slots stand in order of time, in chunks of at most ``CHUNK``; a full
chunk is split in two. Of every chunk, and of every ``BLOCK`` chunks, the widest gap before one of
its slots is known, so a search skips those that hold nothing wide enough. It answers as a scan of
all slots does, rounding included: gaps are kept wider by a few units in the last place, and what is
not skipped is compared exactly.

Our own; a scan of all slots made HEFT quadratic. Complexity of a search: O(log n + CHUNK + BLOCK +
n / (CHUNK BLOCK)) for n slots of the device, mostly O(CHUNK); of a new slot: O(CHUNK + BLOCK), and
O(n / CHUNK) where a chunk is split.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnplace.graph.allocation import (
    empty_table,
    zero_int_table,
    zero_ints,
    zero_longs,
    zero_table,
)
from gnnplace.graph.jit import inner

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int32]
LongArray = NDArray[np.int64]
CHUNK, BLOCK = 64, 64
ROUNDING = 1e-15


class Gaps(NamedTuple):
    """Slots of D devices in C chunks, with room for all that will come; changed in place.

    Attributes:
        begins: seconds at which each slot begins. [C, CHUNK]
        ends: seconds at which it ends. [C, CHUNK]
        held: slots in each chunk. [C]
        chunk: chunks of each device in order of time. [D, C]
        widest: seconds of the widest gap before a slot of each of these chunks. [D, C]
        wider: the same of each ``BLOCK`` chunks. [D, C / BLOCK]
        places: chunks of each device. [D]
        used: chunks of all devices. [1]
    """

    begins: FloatArray
    ends: FloatArray
    held: IntArray
    chunk: IntArray
    widest: FloatArray
    wider: FloatArray
    places: LongArray
    used: LongArray


@inner()
def empty_gaps(num_devices: int, slots: int) -> Gaps:
    """Devices that are idle, with room for so many slots in all."""
    count = 2 * slots // CHUNK + num_devices + 1
    gaps = Gaps(
        empty_table(count, CHUNK),
        empty_table(count, CHUNK),
        zero_ints(count),
        zero_int_table(num_devices, count),
        zero_table(num_devices, count),
        zero_table(num_devices, count // BLOCK + 1),
        zero_longs(num_devices),
        zero_longs(1),
    )
    for d in range(num_devices):
        gaps.chunk[d, 0] = d
        gaps.places[d] = 1
    gaps.used[0] = num_devices
    return gaps


@inner(_nrt=False)
def end_before(gaps: Gaps, d: int, place: int) -> float:
    """Seconds at which the slots before a chunk end; 0 where there are none."""
    if place == 0 or gaps.held[gaps.chunk[d, 0]] == 0:
        return 0.0
    before = gaps.chunk[d, place - 1]
    return gaps.ends[before, gaps.held[before] - 1]


@inner(_nrt=False)
def place_of(gaps: Gaps, d: int, ready: float) -> int:
    """Place of the first chunk of a device whose last slot ends after ``ready``, or the last."""
    low, high = 0, gaps.places[d] - 1
    while low < high:
        middle = (low + high) // 2
        if end_before(gaps, d, middle + 1) <= ready:
            low = middle + 1
        else:
            high = middle
    return low


@inner(_nrt=False)
def wide_place(gaps: Gaps, d: int, place: int, cost: float) -> int:
    """The first place from ``place`` on with a gap of ``cost`` seconds; the number of places if
    there is none.
    """
    count = gaps.places[d]
    while place < count:
        if place % BLOCK == 0 and gaps.wider[d, place // BLOCK] < cost:
            place += BLOCK
        elif gaps.widest[d, place] < cost:
            place += 1
        else:
            return place
    return count


@inner(_nrt=False)
def earliest_gap(gaps: Gaps, d: int, ready: float, cost: float) -> tuple[float, int, int]:
    """Start of the earliest gap of ``cost`` seconds from ``ready`` on, its chunk's place, its slot.

    Slot k of a chunk stands for the gap before its k-th slot, the number of slots for what follows.
    """
    place = place_of(gaps, d, ready)
    row = gaps.chunk[d, place]
    low, high = 0, gaps.held[row]
    while low < high:
        middle = (low + high) // 2
        if gaps.ends[row, middle] <= ready:
            low = middle + 1
        else:
            high = middle
    at = max(ready, gaps.ends[row, low - 1] if low > 0 else end_before(gaps, d, place))
    while True:
        row = gaps.chunk[d, place]
        for k in range(low, gaps.held[row]):
            if at + cost <= gaps.begins[row, k]:
                return at, place, k
            at = max(at, gaps.ends[row, k])
        following = wide_place(gaps, d, place + 1, cost)
        if following >= gaps.places[d]:
            last = gaps.places[d] - 1
            return max(at, end_before(gaps, d, last + 1)), last, gaps.held[gaps.chunk[d, last]]
        place, low = following, 0
        at = max(at, end_before(gaps, d, place))


@inner(_nrt=False)
def measure(gaps: Gaps, d: int, place: int) -> None:
    """Finds the widest gap of a chunk anew."""
    row, widest = gaps.chunk[d, place], 0.0
    before = end_before(gaps, d, place)
    for k in range(gaps.held[row]):
        begin = gaps.begins[row, k]
        widest = max(widest, begin - before + ROUNDING * begin)
        before = gaps.ends[row, k]
    gaps.widest[d, place] = widest


@inner(_nrt=False)
def measure_block(gaps: Gaps, d: int, block: int) -> None:
    """Finds the widest gap of ``BLOCK`` chunks anew."""
    widest = 0.0
    for place in range(block * BLOCK, min((block + 1) * BLOCK, gaps.places[d])):
        widest = max(widest, gaps.widest[d, place])
    gaps.wider[d, block] = widest


@inner(_nrt=False)
def split(gaps: Gaps, d: int, place: int) -> None:
    """Gives the upper half of a full chunk to a new one behind it."""
    row, new = gaps.chunk[d, place], gaps.used[0]
    half = gaps.held[row] // 2
    for k in range(half, gaps.held[row]):
        gaps.begins[new, k - half], gaps.ends[new, k - half] = (
            gaps.begins[row, k],
            gaps.ends[row, k],
        )
    gaps.held[new], gaps.held[row] = gaps.held[row] - half, half
    for other in range(gaps.places[d], place + 1, -1):
        gaps.chunk[d, other] = gaps.chunk[d, other - 1]
        gaps.widest[d, other] = gaps.widest[d, other - 1]
    gaps.chunk[d, place + 1] = new
    gaps.places[d] += 1
    gaps.used[0] += 1
    measure(gaps, d, place)
    measure(gaps, d, place + 1)
    for block in range(place // BLOCK, (gaps.places[d] - 1) // BLOCK + 1):
        measure_block(gaps, d, block)


@inner(_nrt=False)
def take(gaps: Gaps, d: int, place: int, slot: int, begin: float, end: float) -> None:
    """Puts a slot where ``earliest_gap`` says; what it said of this device before is void."""
    row = gaps.chunk[d, place]
    for k in range(gaps.held[row], slot, -1):
        gaps.begins[row, k], gaps.ends[row, k] = gaps.begins[row, k - 1], gaps.ends[row, k - 1]
    gaps.begins[row, slot], gaps.ends[row, slot] = begin, end
    gaps.held[row] += 1
    measure(gaps, d, place)
    if place + 1 < gaps.places[d]:
        measure(gaps, d, place + 1)
        measure_block(gaps, d, (place + 1) // BLOCK)
    measure_block(gaps, d, place // BLOCK)
    if gaps.held[row] == CHUNK:
        split(gaps, d, place)
