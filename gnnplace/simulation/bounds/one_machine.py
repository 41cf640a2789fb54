"""A unit is on one device: Jackson's preemptive schedule of one machine with heads and tails.

Jobs are the copies of a unit's ops by rank. A job starts no earlier than its head, takes its
duration, and leaves at least its tail until the end. Jackson's schedule always runs the released
job of largest tail; the largest finish plus tail is then minimal over all schedules that may
interrupt jobs, and so it bounds schedules that may not (Jackson, 1955; Carlier, 1982). It equals
the maximum, over all sets of jobs, of least head + work + least tail. Each unit is taken on its
best device.

Complexity: O(n K log n) for K columns of devices that are alike.

Windows, filling and draining (after Fernandez and Bussell, 1973).

Windows: ops that cannot start before ``a`` and leave at least ``b`` seconds of path after them do
their work within step time - a - b. Complexity: O(n log n + g^2) with g thresholds.

Filling and draining: work that devices cannot do early in the step, or late in it.

In the first ``a`` seconds a unit, alone on a device, can do at most its released jobs one after the
other, ``P(a)``; in the last ``b`` seconds at most ``Q(b)``, by tails. The rest of its work is done
in the ``T - a - b`` seconds between. With the weights ``w`` of devices of the work bound, for all
``a`` and ``b`` that leave some unit with work,

    T >= a + b + sum over units of min over devices of w[d] * max(0, W[d] - P[d](a) - Q[d](b)).

If some unit has work left, the two ends do not overlap; otherwise all of its work would be in them.
This is the bound that accounts for micro-batches filling and draining a pipeline (after Fernandez
and Bussell, whose ops have no devices).

Complexity: O(n log n + U K g^2) with g thresholds, spread evenly over the ranks of heads (tails).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.graph import (
    empty_floats,
    empty_ints,
    empty_table,
    heap_pop,
    heap_push,
    inner,
    kernel,
    zero_table,
)
from gnnplace.simulation.bounds.copies import offsets


@kernel
def on_one_machine(
    offset: IntArray,
    job: IntArray,
    group: IntArray,
    columns: FloatArray,
    head: FloatArray,
    tail: FloatArray,
) -> FloatArray:
    """Bound of each unit in seconds, 0 where no device is allowed. [U]

    Args:
        offset: Index where the jobs of each unit start in ``job``. [U + 1]
        job: jobs by unit, ascending by head. [n]
        group: row of ``columns`` of each job. [n]
        columns: seconds of a job on devices that are alike, inf where not allowed. [G, K]
        head: least seconds before each job. [n]
        tail: least seconds after it. [n]
    """
    result = empty_floats(len(offset) - 1)
    remaining = empty_floats(len(job))
    keys = empty_floats(len(job))
    waiting = empty_ints(len(job))
    for unit in range(len(offset) - 1):
        low = offset[unit]
        count = offset[unit + 1] - offset[unit]
        result[unit] = np.inf
        for k in range(columns.shape[1]):
            clock = 0.0
            bound = 0.0
            next_job = 0
            num_waiting = 0
            # Preemptive one-machine schedule: of the jobs that are released, the one with the
            # longest tail runs until it is done or the next job is released.
            while next_job < count or num_waiting > 0:
                if num_waiting == 0:
                    clock = max(clock, head[job[low + next_job]])
                while next_job < count and head[job[low + next_job]] <= clock:
                    i = job[low + next_job]
                    remaining[i] = columns[group[i], k]
                    heap_push(keys, waiting, 0, num_waiting, -tail[i], i)
                    num_waiting += 1
                    next_job += 1
                i = waiting[0]
                if next_job < count:
                    until = head[job[low + next_job]]
                else:
                    until = np.inf
                if clock + remaining[i] <= until:
                    clock += remaining[i]
                    bound = max(bound, clock + tail[i])
                    heap_pop(keys, waiting, 0, num_waiting)
                    num_waiting -= 1
                else:
                    remaining[i] -= until - clock
                    clock = until
                if clock == np.inf:
                    bound = np.inf
                    break
            result[unit] = min(result[unit], bound)
        if result[unit] == np.inf:
            result[unit] = 0.0
    return result


THRESHOLDS = 64
MOST_CELLS = 20_000_000
ROUNDING = 1e-9  # Relative to a unit's work: a smaller remainder is rounding


def thresholds(values: FloatArray, count: int = THRESHOLDS) -> FloatArray:
    """Return at most ``count`` of the values, spread evenly over their ranks, the least
    included.
    """
    ranks = np.linspace(0, len(values) - 1, count).astype(np.int64)
    return np.unique(np.sort(values)[ranks])


def fill(
    part: IntArray,
    group: IntArray,
    columns: FloatArray,
    weight: FloatArray,
    head: FloatArray,
    tail: FloatArray,
) -> float:
    """Return the bound in seconds.

    Args:
        part: unit of each job. [n]
        group: row of ``columns`` of each job. [n]
        columns: seconds of a job on devices that are alike, inf where not allowed. [G, K]
        weight: weight of a device of each column. [K]
        head: least seconds before each job. [n]
        tail: least seconds after it. [n]
    """
    num_units = int(part.max()) + 1
    cells = MOST_CELLS / (num_units * len(weight))
    count = int(np.clip(np.sqrt(cells), 8, THRESHOLDS))
    a = thresholds(head, count)
    b = thresholds(tail, count)
    early = Jobs(*by_unit(part, head), head, a)
    late = Jobs(*by_unit(part, tail), tail, b)
    inside = _work_inside(group, columns, weight, early, late)
    value = np.where(inside > 0, a[:, None] + b[None, :] + inside, 0.0)
    return float(value.max())


def by_unit(part: IntArray, release: FloatArray) -> tuple[IntArray, IntArray]:
    """Return where the jobs of each unit start, and jobs by unit, ascending by release. [U + 1],
    [n]
    """
    return offsets(part, int(part.max()) + 1), np.lexsort((release, part)).astype(
        np.int32
    )


class Jobs(NamedTuple):
    """The jobs of units by their release, and instants at which their work is counted.

    Attributes:
        offset: Where the jobs of each unit start. [U + 1]
        job: Jobs by unit, ascending by release. [n]
        release: Least seconds before each job. [n]
        at: The instants, seconds. [g]
    """

    offset: IntArray
    job: IntArray
    release: FloatArray
    at: FloatArray


@kernel
def _work_inside(
    group: IntArray, columns: FloatArray, weight: FloatArray, early: Jobs, late: Jobs
) -> FloatArray:
    """Return the weighted seconds that must be done between each two thresholds. [a, b]"""
    return _inside(_done(early, group, columns), _done(late, group, columns), weight)


@inner()
def _done(jobs: Jobs, group: IntArray, columns: FloatArray) -> FloatArray:
    """Return the seconds of work that each unit can have done by each threshold, then all of it.

    A row a unit and column; inf where it is not allowed. [U K, g + 1]
    """
    offset, job, head, at = jobs
    num_units = len(offset) - 1
    num_columns = columns.shape[1]
    work_done = zero_table(num_units * num_columns, len(at) + 1)
    for unit in range(num_units):
        low = offset[unit]
        count = offset[unit + 1] - offset[unit]
        for k in range(num_columns):
            row = unit * num_columns + k
            clock = 0.0
            work = 0.0
            t = 0
            for i in range(low, low + count):
                clock = max(clock, head[job[i]])
                seconds = columns[group[job[i]], k]
                while t < len(at) and at[t] <= clock + seconds:
                    work_done[row, t] = work + max(0.0, at[t] - clock)
                    t += 1
                clock += seconds
                work += seconds
            while t <= len(at):
                work_done[row, t] = work
                t += 1
    return work_done


@inner()
def _inside(early: FloatArray, late: FloatArray, weight: FloatArray) -> FloatArray:
    """Return the weighted seconds of all units between each two thresholds. [a, b]"""
    rows = early.shape[1] - 1
    columns = late.shape[1] - 1
    total = zero_table(rows, columns)
    smallest = empty_table(rows, columns)
    num_columns = len(weight)
    for unit in range(len(early) // num_columns):
        is_allowed = False
        for k in range(num_columns):
            row = unit * num_columns + k
            work = early[row, rows]
            if work == np.inf:
                continue
            full_work = work * (1.0 - ROUNDING)
            for i in range(rows):
                for j in range(columns):
                    inside = weight[k] * max(
                        0.0, full_work - early[row, i] - late[row, j]
                    )
                    smallest[i, j] = (
                        min(smallest[i, j], inside) if is_allowed else inside
                    )
            is_allowed = True
        if is_allowed:
            for i in range(rows):
                for j in range(columns):
                    total[i, j] += smallest[i, j]
    return total


def windows(head: FloatArray, tail: FloatArray, share: FloatArray) -> float:
    """Return the bound in seconds.

    Args:
        head: least seconds before each job. [n]
        tail: least seconds after it. [n]
        share: its share of the work bound, in seconds. [n]
    """
    heads = thresholds(head)
    tails = thresholds(tail)
    row = np.searchsorted(heads, head, side="right") - 1
    column = np.searchsorted(tails, tail, side="right") - 1
    cell = row * len(tails) + column
    work = np.bincount(cell, share, len(heads) * len(tails)).reshape(
        len(heads), len(tails)
    )

    # Work of all jobs whose head and tail are at least the thresholds: sums from the far corner.
    reversed_work = work[::-1, ::-1]
    inside = reversed_work.cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
    value = np.where(inside > 0, heads[:, None] + tails[None, :] + inside, 0.0)
    return float(value.max())
