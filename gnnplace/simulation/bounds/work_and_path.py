"""Work and a path together: few fast devices cannot run both a whole path, M times, and the rest.

With devices of different kinds, the bound by the longest path runs all ops of the path on the fast
devices, and the bound by work uses the fast devices as if no path needed them. Both claim the same
devices. For nonnegative weights ``w`` of devices and ``v`` of the path that sum to 1,

    step >= sum over parts of min over devices d of w[d] W[part, d] + v P[part, d],

with ``W`` the seconds of all copies of a part and ``P`` those that it adds to the path: a copy of
each group of the path, and all copies of one of them, which are one after the other. The step is at
least the load of each device and the length of the path, so it is at least their weighted mean, and
a part is on one device. This is the dual of the linear programme that distributes work over devices
such that neither a load nor the path is longer than the step. The weights come from multiplicative
updates, as those of ``work`` do, and every iterate is a bound. Devices of one column are identical.

The path is the longest by least times, found in O(n + edges log edges). Complexity: O(parts x
columns) an update; with one column the two bounds say all of it.

Work distributed over devices of several kinds: the dual of a linear programme.

For nonnegative weights ``w`` of devices that sum to 1, the step time is at least ``sum over units
of min over devices of w[d] * time[unit, d]``, since a unit is on one device. This is the dual of
the linear programme that splits units over devices. Identical devices share a weight and a column.
The weights come from multiplicative updates (Arora, Hazan and Kale, 2012), and every iterate is a
valid bound.

Complexity: O(units x columns) an update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.graph import (
    copy_to,
    empty_floats,
    full_floats,
    greatest,
    kernel,
    zero_floats,
)

if TYPE_CHECKING:
    from gnnplace.simulation.bounds.relaxation import Relaxation


def work_and_path(relaxation: Relaxation) -> float:
    """Return the bound in seconds; 0 where all devices are alike."""
    counts = relaxation.machines.counts
    if len(counts) < 2:
        return 0.0
    return price_iterates(relaxation.part_columns, sum_path_seconds(relaxation), counts)


def sum_path_seconds(relaxation: Relaxation) -> FloatArray:
    """Return the seconds that each part adds to the longest path, by columns; 0 where not allowed.
    [P, K]
    """
    copies = relaxation.copies
    first = copies.begin[:-1]
    count = copies.count
    length = relaxation.head[first] + count * relaxation.work + relaxation.tail[first]
    middle = int(length.argmax())
    path = path_through(relaxation, middle, copies.full)
    times = (
        np.where(path == middle, count[middle], 1)[:, None] * relaxation.columns[path]
    )
    result = np.zeros_like(relaxation.part_columns)
    np.add.at(
        result, relaxation.machines.part[path], np.where(np.isfinite(times), times, 0.0)
    )
    return result


def path_through(relaxation: Relaxation, middle: int, allowed: BoolArray) -> IntArray:
    """Return groups that feed each other, back and forth from ``middle`` where it is longest. [p]

    Args:
        relaxation: The relaxation whose heads and tails say which ops are on long paths.
        middle: the group that the path goes through.
        allowed: edges that the path may take. [E]
    """
    copies = relaxation.copies
    first = relaxation.copies.begin[:-1]
    source = copies.source[allowed]
    target = copies.target[allowed]
    head, tail = (
        starts[first] + relaxation.work for starts in (relaxation.head, relaxation.tail)
    )
    back = _walk(middle, target, source, head)
    return np.array(
        [*back[::-1], middle, *_walk(middle, source, target, tail)], dtype=np.int32
    )


def _walk(start: int, near: IntArray, far: IntArray, value: FloatArray) -> list[int]:
    """Return the groups after ``start``, each the one of the largest value that an edge
    leads to.
    """
    ascending = np.lexsort((value[far], near))
    successor = np.full(len(value), -1)
    # Of all that a group leads to, the last group stays.
    successor[near[ascending]] = far[ascending]
    path = [start]
    while successor[path[-1]] >= 0:
        path.append(int(successor[path[-1]]))
    return path[1:]


def price_iterates(work: FloatArray, path: FloatArray, counts: FloatArray) -> float:
    """Return the best bound in seconds of all iterates.

    Args:
        work: seconds of each part on devices of each column, inf where not allowed. [P, K]
        path: seconds that it adds to the path there. [P, K]
        counts: devices of each column. [K]
    """
    rows = np.arange(len(work))
    best = 0.0
    rate = RATE
    weight = np.full(len(counts), 0.5 / counts.sum())
    shared = 0.5
    for _ in range(UPDATES):
        cost = work * weight + path * shared
        column = cost.argmin(axis=1)
        best = max(best, float(cost[rows, column].sum()))
        load = np.bincount(column, work[rows, column], len(counts)) / counts
        length = float(path[rows, column].sum())
        largest = max(float(load.max()), length, 1e-300)
        weight = weight * np.exp(rate * load / largest)
        shared = shared * np.exp(rate * length / largest)
        scale = float((weight * counts).sum()) + shared
        weight = weight / scale
        shared = shared / scale
        rate = rate * SLOWER
    return best


UPDATES = 120
# The rate of the first update, and of each update relative to the one before.
RATE, SLOWER = 0.4, 0.95


@kernel
def work_weights(
    columns: FloatArray, counts: FloatArray, updates: int
) -> tuple[FloatArray, float]:
    """Return the weight of a device of each column, and the bound in seconds that it gives. [K]

    Args:
        columns: seconds of each unit on devices that are alike, inf where not allowed. [U, K]
        counts: number of devices of each column. [K]
        updates: multiplicative updates of the weights; one column needs none.
    """
    count, num_columns = columns.shape
    devices = 0.0
    for k in range(num_columns):
        devices += counts[k]
    weight = full_floats(num_columns, 1.0 / devices)
    best = empty_floats(num_columns)
    best_total = -1.0
    rate = RATE
    for _ in range(updates if num_columns > 1 else 1):
        load = zero_floats(num_columns)
        total = 0.0
        for unit in range(count):
            cheapest = np.inf
            choice = 0
            for k in range(num_columns):
                priced = columns[unit, k] * weight[k]
                if priced < cheapest:
                    cheapest = priced
                    choice = k
            total += cheapest
            load[choice] += columns[unit, choice]
        if total > best_total:
            best_total = total
            copy_to(best, weight)
        for k in range(num_columns):
            load[k] /= counts[k]
        most_load = max(greatest(load), 1e-300)
        scale = 0.0
        for k in range(num_columns):
            weight[k] *= np.exp(rate * load[k] / most_load)
            scale += weight[k] * counts[k]
        for k in range(num_columns):
            weight[k] /= scale
        rate *= SLOWER
    return best, best_total
