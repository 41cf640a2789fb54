"""Idle gaps of devices: finds the earliest gap that is long enough for a job, without a full scan.

Formulation: the busy slots of a device are kept in order of time, in chunks of at most ``CHUNK``; a
full chunk is split in two. The widest gap is known for every chunk, for every ``BLOCK`` chunks and
for the whole device, so that a search skips chunks without a gap that is wide enough, and many
searches end after one comparison. The answer equals that of a scan of all slots, rounding included:
the widest gaps are stored a few units in the last place too wide, and gaps that are not skipped are
compared exactly. A new slot updates its chunk's widest gap only if it fills that gap.

Our own data structure; a scan of all slots made HEFT quadratic. Complexity of a search: O(log n +
CHUNK + BLOCK + n / (CHUNK BLOCK)) for n slots of the device, mostly O(log n). Of a new slot:
O(CHUNK + BLOCK), and O(n / CHUNK) if a chunk is split.
"""

from __future__ import annotations

from typing import NamedTuple

from gnnplace.arrays import FloatArray, IntArray, IntLike, LongArray
from gnnplace.graph import (
    empty_table,
    inner,
    zero_floats,
    zero_int_table,
    zero_ints,
    zero_longs,
    zero_table,
)

CHUNK = 64
BLOCK = 64
ROUNDING = 1e-15


class Gaps(NamedTuple):
    """Slots of D devices in C chunks, with room for all that will come; changed in place.

    Attributes:
        begins: seconds at which each slot begins. [C, CHUNK]
        ends: seconds at which it ends. [C, CHUNK]
        num_slots: slots in each chunk. [C]
        chunk: chunks of each device in order of time. [D, C]
        widest: seconds of the widest gap before a slot of each of these chunks. [D, C]
        wider: the same of each ``BLOCK`` chunks. [D, C / BLOCK]
        widest_of_all: the same of all its chunks. [D]
        until: seconds at which the last slot of each of these chunks ends, 0 without one. [D, C]
        places: chunks of each device. [D]
        used: chunks of all devices. [1]
    """

    begins: FloatArray
    ends: FloatArray
    num_slots: IntArray
    chunk: IntArray
    widest: FloatArray
    wider: FloatArray
    widest_of_all: FloatArray
    until: FloatArray
    places: LongArray
    used: LongArray


@inner()
def empty_gaps(num_devices: int, slots: int) -> Gaps:
    """Return devices that are idle, with room for so many slots in all."""
    count = 2 * slots // CHUNK + num_devices + 1
    gaps = Gaps(
        empty_table(count, CHUNK),
        empty_table(count, CHUNK),
        zero_ints(count),
        zero_int_table(num_devices, count),
        zero_table(num_devices, count),
        zero_table(num_devices, count // BLOCK + 1),
        zero_floats(num_devices),
        zero_table(num_devices, count),
        zero_longs(num_devices),
        zero_longs(1),
    )
    for d in range(num_devices):
        gaps.chunk[d, 0] = d
        gaps.places[d] = 1
    gaps.used[0] = num_devices
    return gaps


@inner(_nrt=False)
def end_before(gaps: Gaps, d: IntLike, place: int) -> float:
    """Return the seconds at which the slots before a chunk end; 0 where there are none."""
    if place > 0:
        return gaps.until[d, place - 1]
    return 0.0


@inner(_nrt=False)
def find_last_end(gaps: Gaps, d: IntLike) -> float:
    """Return the seconds at which the last slot of a device ends; 0 where there is none."""
    return gaps.until[d, gaps.places[d] - 1]


@inner(_nrt=False)
def find_earliest_start(gaps: Gaps, d: IntLike, ready: float, cost: float) -> float:
    """Return the seconds before which no gap begins that holds a job of at least ``cost``; no
    search.
    """
    if gaps.widest_of_all[d] >= cost:
        return ready
    return max(ready, find_last_end(gaps, d))


@inner(_nrt=False)
def count_ended(ends: FloatArray, count: int, ready: float) -> int:
    """Return how many of the first ``count`` of ``ends``, ascending, are at most ``ready``.

    It halves without asking which half is next, so the processor need not guess.
    """
    low = 0
    while count > 0:
        half = (count + 1) // 2
        low += half * (ends[low + half - 1] <= ready)
        count -= half
    return low


@inner(_nrt=False)
def find_chunk(gaps: Gaps, d: IntLike, ready: float) -> int:
    """Place of the first chunk of a device whose last slot ends after ``ready``, or the last."""
    return count_ended(gaps.until[d], gaps.places[d] - 1, ready)


@inner(_nrt=False)
def wide_place(gaps: Gaps, d: IntLike, place: int, cost: float) -> int:
    """Return the first place from ``place`` on with a gap of ``cost`` seconds; the number of places
    or more if there is none.
    """
    while place < gaps.places[d]:
        if gaps.wider[d, place // BLOCK] < cost:
            place = (place // BLOCK + 1) * BLOCK
        elif gaps.widest[d, place] < cost:
            place += 1
        else:
            break
    return place


@inner(_nrt=False)
def earliest_gap(
    gaps: Gaps, d: IntLike, ready: float, cost: float
) -> tuple[float, int, int]:
    """Start of the earliest gap of ``cost`` seconds from ``ready`` on, its chunk's place, its slot.

    Slot k of a chunk stands for the gap before its k-th slot, the number of slots for what follows.
    """
    last = gaps.places[d] - 1
    if gaps.widest_of_all[d] >= cost:
        first = find_chunk(gaps, d, ready)
        place = wide_place(gaps, d, first, cost)
        while place <= last:
            row = gaps.chunk[d, place]
            if place == first:
                low = count_ended(gaps.ends[row], gaps.num_slots[row], ready)
            else:
                low = 0
            at = max(
                ready,
                gaps.ends[row, low - 1] if low > 0 else end_before(gaps, d, place),
            )
            for k in range(low, gaps.num_slots[row]):
                if at + cost <= gaps.begins[row, k]:
                    return at, place, k
                at = max(at, gaps.ends[row, k])
            place = wide_place(gaps, d, place + 1, cost)
    return max(ready, find_last_end(gaps, d)), last, gaps.num_slots[gaps.chunk[d, last]]


@inner(_nrt=False)
def widen_gap(begin: float, before: float) -> float:
    """Return the seconds of the gap between the end ``before`` and ``begin``, and a little more."""
    return begin - before + ROUNDING * begin


@inner(_nrt=False)
def measure_widest_gap(gaps: Gaps, d: IntLike, place: int) -> float:
    """Return the widest gap of a chunk, measured anew."""
    row = gaps.chunk[d, place]
    widest = 0.0
    previous_end = end_before(gaps, d, place)
    for k in range(gaps.num_slots[row]):
        widest = max(widest, widen_gap(gaps.begins[row, k], previous_end))
        previous_end = gaps.ends[row, k]
    return widest


@inner(_nrt=False)
def measure_block(gaps: Gaps, d: IntLike, block: int) -> None:
    """Measure the widest gap of ``BLOCK`` chunks anew."""
    widest = 0.0
    for place in range(block * BLOCK, min((block + 1) * BLOCK, gaps.places[d])):
        widest = max(widest, gaps.widest[d, place])
    gaps.wider[d, block] = widest


@inner(_nrt=False)
def measure_all(gaps: Gaps, d: IntLike) -> None:
    """Measure the widest gap of a device anew."""
    widest = 0.0
    for block in range((gaps.places[d] - 1) // BLOCK + 1):
        widest = max(widest, gaps.wider[d, block])
    gaps.widest_of_all[d] = widest


@inner(_nrt=False)
def note(gaps: Gaps, d: IntLike, place: int, widest: float) -> None:
    """Note that a chunk's widest gap is now another; blocks follow where it was theirs."""
    block = place // BLOCK
    former = gaps.widest[d, place]
    gaps.widest[d, place] = widest
    wider = gaps.wider[d, block]
    if widest >= wider:
        gaps.wider[d, block] = widest
    elif former >= wider:
        measure_block(gaps, d, block)
    if gaps.wider[d, block] >= gaps.widest_of_all[d]:
        gaps.widest_of_all[d] = gaps.wider[d, block]
    elif wider >= gaps.widest_of_all[d]:
        measure_all(gaps, d)


@inner(_nrt=False)
def split(gaps: Gaps, d: IntLike, place: int) -> None:
    """Give the upper half of a full chunk to a new one behind it."""
    row = gaps.chunk[d, place]
    new = gaps.used[0]
    half = gaps.num_slots[row] // 2
    for k in range(half, gaps.num_slots[row]):
        gaps.begins[new, k - half], gaps.ends[new, k - half] = (
            gaps.begins[row, k],
            gaps.ends[row, k],
        )
    gaps.num_slots[new] = gaps.num_slots[row] - half
    gaps.num_slots[row] = half
    for later in range(gaps.places[d], place + 1, -1):
        gaps.chunk[d, later] = gaps.chunk[d, later - 1]
        gaps.widest[d, later] = gaps.widest[d, later - 1]
        gaps.until[d, later] = gaps.until[d, later - 1]
    gaps.chunk[d, place + 1] = new
    gaps.until[d, place + 1], gaps.until[d, place] = (
        gaps.until[d, place],
        gaps.ends[row, half - 1],
    )
    gaps.places[d] += 1
    gaps.used[0] += 1
    gaps.widest[d, place] = measure_widest_gap(gaps, d, place)
    gaps.widest[d, place + 1] = measure_widest_gap(gaps, d, place + 1)
    for block in range(place // BLOCK, (gaps.places[d] - 1) // BLOCK + 1):
        measure_block(gaps, d, block)
    measure_all(gaps, d)


@inner(_nrt=False)
def take(
    gaps: Gaps, d: IntLike, place: int, slot: int, begin: float, end: float
) -> None:
    """Put a slot where ``earliest_gap`` says; what it said of this device before is void."""
    row = gaps.chunk[d, place]
    widest = gaps.widest[d, place]
    if slot > 0:
        previous_end = gaps.ends[row, slot - 1]
    else:
        previous_end = end_before(gaps, d, place)
    last = slot == gaps.num_slots[row]
    if last:
        taken = 0.0
    else:
        taken = widen_gap(gaps.begins[row, slot], previous_end)
    for k in range(gaps.num_slots[row], slot, -1):
        gaps.begins[row, k], gaps.ends[row, k] = (
            gaps.begins[row, k - 1],
            gaps.ends[row, k - 1],
        )
    gaps.begins[row, slot] = begin
    gaps.ends[row, slot] = end
    gaps.num_slots[row] += 1
    if not last and taken >= widest:
        note(gaps, d, place, measure_widest_gap(gaps, d, place))
    elif widen_gap(begin, previous_end) > widest:
        note(gaps, d, place, widen_gap(begin, previous_end))
    if last:
        gaps.until[d, place] = end
        if place + 1 < gaps.places[d]:
            note(gaps, d, place + 1, measure_widest_gap(gaps, d, place + 1))
    if gaps.num_slots[row] == CHUNK:
        split(gaps, d, place)
