"""Kernels of the frontier: lists of (time, memory) points for every cell of a table.

A list is sorted by ascending time, with strictly descending memory. ``origin`` of a point packs the
configuration of the node that was taken out and the positions in the lists of both children. The
lists of all cells are stored one after the other; list c is ``offset[c]:offset[c + 1]``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnplace.arrays import FloatArray, LongArray

POSITION_BITS = 24
Pair = tuple[float, float]  # time and memory
Arrays = tuple[FloatArray, FloatArray, LongArray]  # time, memory and origin of points


class Sums(NamedTuple):
    """Sums of the factors of a step. [cells, K] each"""

    time: FloatArray
    memory: FloatArray


class Children(NamedTuple):
    """Tables of the steps before, the second one's behind the first's.

    Attributes:
        cell: the cell of each child's table. [children, cells, K]
        time: the time of all points.
        memory: the memory of all points, in bytes.
        offset: Index where the list of each cell begins.
        inside: least weighted costs of the cells. [child cells, W]
    """

    cell: LongArray
    time: FloatArray
    memory: FloatArray
    offset: LongArray
    inside: FloatArray


class Reach(NamedTuple):
    """The ranges that new points may lie in.

    Attributes:
        outside: least weighted costs of all the rest. [cells, W]
        weights: the weights of time and memory; the first is (1, 0). [W, 2]
        regions: corners of the regions, weighted. [R, W]
    """

    outside: FloatArray
    weights: FloatArray
    regions: FloatArray


class Limits(NamedTuple):
    """The work that a step of the search may take, and the error that it may make.

    Attributes:
        slack: differences of time and memory that are only rounding.
        error: relative, of a whole strategy's time, that thinning a list may make.
        short: lists up to this length are not thinned.
        work: points to merge at most.
        points: points to return at most.
    """

    slack: Pair
    error: float
    short: int
    work: float
    points: float


class Eliminated(NamedTuple):
    """Lists of points of a step's table.

    Attributes:
        time: the time of all points.
        memory: the memory of all points, in bytes.
        origin: the configuration and the children's points that each was made of, as one number.
        offset: Index where the list of each cell begins. [cells + 1]
        work: points that were merged.
        thinned: whether any list was thinned.
        finished: whether the limits sufficed; the lists are of no use otherwise.
    """

    time: FloatArray
    memory: FloatArray
    origin: LongArray
    offset: LongArray
    work: float
    thinned: bool
    finished: bool


@njit(cache=True)
def _reaches(bound: FloatArray, regions: FloatArray, hint: int) -> int:
    """Return the index of a region in which every weighted bound [W] is below the corner's [R, W],
    or -1.
    """
    count = regions.shape[0]
    for k in range(count):
        r = (hint + k) % count
        inside = True
        for w in range(bound.shape[0]):
            if bound[w] > regions[r, w]:
                inside = False
                break
        if inside:
            return r
    return -1


@njit(cache=True)
def _push(
    time: FloatArray,
    memory: FloatArray,
    origin: LongArray,
    n: int,
    point: tuple[float, float, int],
    slack: Pair,
) -> int:
    """Append a point whose time is not below the last one's, unless it is dominated; return the
    length.
    """
    t, m, o = point
    if n > 0 and m >= memory[n - 1] - slack[1]:
        return n
    if n > 0 and t <= time[n - 1] + slack[0]:
        n -= 1  # As fast, and smaller.
    time[n] = t
    memory[n] = m
    origin[n] = o
    return n + 1


class AddedPoints(NamedTuple):
    """Points of a child's list that are merged into a cell's.

    Attributes:
        time: The time of the points of all lists.
        memory: The memory of the points of all lists.
        low: Index where the list begins.
        high: Where it ends.
        shift: Time and memory that are added to each point.
        code: Origin of the first point; that of each further one is one more.
    """

    time: FloatArray
    memory: FloatArray
    low: int
    high: int
    shift: Pair
    code: np.int64


@njit(cache=True)
def _merge(
    current: Arrays, n: int, added: AddedPoints, spare: Arrays, slack: Pair
) -> int:
    """Merge points into ``current[:n]``; the result is in ``spare``. Returns its length."""
    time, memory, origin = current
    more_time, more_memory, low, high, shift, code = added
    out_time, out_memory, out_origin = spare
    i = 0
    j = low
    count = 0
    while i < n or j < high:
        take = j >= high
        if not take and i < n:
            t = more_time[j] + shift[0]
            take = time[i] < t or (
                time[i] == t and memory[i] <= more_memory[j] + shift[1]
            )
        if take:
            point = (time[i], memory[i], origin[i])
            i += 1
        else:
            point = (
                more_time[j] + shift[0],
                more_memory[j] + shift[1],
                code + (j - low),
            )
            j += 1
        count = _push(out_time, out_memory, out_origin, count, point, slack)
    return count


@njit(cache=True)
def _thin(lists: Arrays, n: int, error: float, rest: float) -> int:
    """Keep, of points close in time, the one with the least memory; return how many stay.

    Close is ``error`` times the least time of a strategy with the point: its own and ``rest``.
    """
    time, memory, origin = lists
    count = 0
    i = 0
    while i < n:
        last = i
        latest = time[i] + error * max(0.0, time[i] + rest)
        while last + 1 < n and time[last + 1] <= latest:
            last += 1
        time[count], memory[count], origin[count] = (
            time[last],
            memory[last],
            origin[last],
        )
        count += 1
        i = last + 1
    return count


@njit(cache=True)
def _grow(array: NDArray[Any], need: int) -> NDArray[Any]:
    """Return the array with room for ``need`` entries."""
    bigger = np.empty(max(need, 2 * len(array)), array.dtype)
    bigger[: len(array)] = array
    return bigger


@njit(cache=True)
def _with_room(current: Arrays, spare: Arrays, need: int) -> tuple[Arrays, Arrays]:
    """Return both lists with room for ``need`` points; those of the first stay."""
    if len(current[0]) < need:
        room = 2 * need
        current = (
            _grow(current[0], room),
            _grow(current[1], room),
            _grow(current[2], room),
        )
    if len(spare[0]) < len(current[0]):
        size = len(current[0])
        spare = (np.empty(size), np.empty(size), np.empty(size, np.int64))
    return current, spare


@njit(cache=True)
def _weigh(
    bound: FloatArray, weights: FloatArray, time: float, memory: float, rest: FloatArray
) -> None:
    """Write what each weighing [W] of a point comes to, with the least of all that is beside it."""
    for w in range(len(bound)):
        bound[w] = weights[w, 0] * time + weights[w, 1] * memory + rest[w]


@njit(cache=True)
def _find_list_range(
    children: Children, child: int, cell: int, k: int
) -> tuple[int, int]:
    """Return where a child's list begins and ends; one point stands for a child that is missing."""
    if child >= children.cell.shape[0]:
        return 0, 1
    row = children.cell[child, cell, k]
    return children.offset[row], children.offset[row + 1]


@njit(cache=True)
def _gather_points(
    sums: Sums,
    children: Children,
    reach: Reach,
    cell: int,
    buffers: tuple[Arrays, Arrays],
    limits: Limits,
    progress: tuple[float, int],
) -> tuple[Arrays, Arrays, int, float, int]:
    """Return the points of one cell: the lists of its configurations, merged one after the other.

    Args:
        sums: Sums of the factors of the step.
        children: Tables of the steps before.
        reach: The ranges that new points may lie in.
        cell: Number of the cell.
        buffers: Room for the list, and for the list that it is merged from.
        limits: What the step may take and lose.
        progress: Points merged until now, and the region that the last point was in.

    Returns:
        The list, the other arrays, its length, and the progress.
    """
    current, spare = buffers
    work, hint = progress
    weights = reach.weights
    outside = reach.outside
    regions = reach.regions
    count_w = weights.shape[0]
    several = children.cell.shape[0] > 1
    bound = np.empty(count_w)
    outer_bound = np.empty(count_w)
    n = 0
    zero = (np.zeros(1), np.zeros(1))
    for k in range(sums.time.shape[1]):
        time = sums.time[cell, k]
        memory = sums.memory[cell, k]
        # Can any point of this configuration be in a region?
        _weigh(bound, weights, time, memory, outside[cell])
        for c in range(children.cell.shape[0]):
            for w in range(count_w):
                bound[w] += children.inside[children.cell[c, cell, k], w]
        region = _reaches(bound, regions, hint)
        if region < 0:
            continue
        hint = region
        code = np.int64(k) << (2 * POSITION_BITS)
        low, high = _find_list_range(children, 0, cell, k)
        first, last = _find_list_range(children, 1, cell, k)
        if several:
            for w in range(count_w):
                outer_bound[w] = (
                    children.inside[children.cell[0, cell, k], w] + outside[cell, w]
                )
        # The first child's list, shifted by each point of the second's that can be in a region.
        for j in range(first, last):
            shift = (time, memory)
            origin = code
            if several:
                shift = (time + children.time[j], memory + children.memory[j])
                origin = code + (np.int64(j - first) << POSITION_BITS)
                _weigh(bound, weights, shift[0], shift[1], outer_bound)
                region = _reaches(bound, regions, hint)
                if region < 0:
                    continue
                hint = region
            current, spare = _with_room(current, spare, n + high - low)
            if children.cell.shape[0] > 0:
                lists = (children.time, children.memory)
            else:
                lists = zero
            added = AddedPoints(lists[0], lists[1], low, high, shift, origin)
            count = _merge(current, n, added, spare, limits.slack)
            work += n + high - low
            current, spare, n = spare, current, count
        if work > limits.work:
            break
    return current, spare, n, work, hint


@njit(cache=True)
def _within(
    lists: Arrays, n: int, reach: Reach, cell: int, hint: int
) -> tuple[int, int]:
    """Keep the points that are in a region; return how many, and the region of the last."""
    bound = np.empty(reach.weights.shape[0])
    count = 0
    for i in range(n):
        _weigh(bound, reach.weights, lists[0][i], lists[1][i], reach.outside[cell])
        region = _reaches(bound, reach.regions, hint)
        if region >= 0:
            hint = region
            for array in (lists[0], lists[1]):
                array[count] = array[i]
            lists[2][count] = lists[2][i]
            count += 1
    return count, hint


@njit(cache=True)
def eliminate(
    sums: Sums, children: Children, reach: Reach, limits: Limits
) -> Eliminated:
    """Return the points of a step's table."""
    cells = sums.time.shape[0]
    offset = np.zeros(cells + 1, np.int64)
    out = (np.empty(1024), np.empty(1024), np.empty(1024, np.int64))
    current = (np.empty(64), np.empty(64), np.empty(64, np.int64))
    spare = (np.empty(64), np.empty(64), np.empty(64, np.int64))
    work = 0.0
    hint = 0
    thinned = False
    for cell in range(cells):
        # 1. The points of all configurations of the node that is taken out, merged.
        current, spare, n, work, hint = _gather_points(
            sums, children, reach, cell, (current, spare), limits, (work, hint)
        )
        if work > limits.work:
            return Eliminated(out[0], out[1], out[2], offset, work, thinned, False)
        # 2. Those that no region can use are dropped, and long lists are thinned.
        n, hint = _within(current, n, reach, cell, hint)
        if n > limits.short and limits.error > 0:
            n = _thin(current, n, limits.error, reach.outside[cell, 0])
            thinned = True
        # 3. The list goes behind those of the earlier cells.
        begin = offset[cell]
        end = offset[cell] + n
        offset[cell + 1] = end
        if end > limits.points:
            return Eliminated(out[0], out[1], out[2], offset, work, thinned, False)
        if len(out[0]) < end:
            out = (
                _grow(out[0], end),
                _grow(out[1], end),
                _grow(out[2], end),
            )
        out[0][begin:end] = current[0][:n]
        out[1][begin:end] = current[1][:n]
        out[2][begin:end] = current[2][:n]
    end = offset[cells]
    time = out[0][:end].copy()
    memory = out[1][:end].copy()
    origin = out[2][:end].copy()
    return Eliminated(time, memory, origin, offset, work, thinned, True)
