"""Three lower bounds on the step time, from the fact that a device runs one op at a time.

Jobs are copies of ops by rank (``copies``). A job has a head, the least seconds before it, a
duration, and a tail, the least seconds after it. Devices that are alike are one of K columns.

**One machine** (``bound_units``). All jobs of a unit are on one device. Jackson's schedule
always runs the released job with the largest tail. Its largest finish plus tail is minimal over all
schedules that may interrupt jobs, and so bounds schedules that may not (Jackson, 1955; Carlier,
1982). It equals the maximum, over all sets of jobs, of least head + work + least tail. Each unit is
taken on its best device. Complexity: O(n K log n).

**Windows** (``windows``; Fernandez and Bussell, 1973). Jobs whose heads are at least ``a`` and
whose tails are at least ``b`` do their work within T - a - b seconds of the step time T.
Complexity: O(n log n + g^2) with g thresholds.

**Filling and draining** (``fill``). Early and late in a step, devices cannot do all of their work,
as when micro-batches fill and drain a pipeline. In the first ``a`` seconds a unit, alone on a
device, can do at most P(a): its released jobs, one after the other. In the last ``b`` seconds it
can do at most Q(b), by tails. The rest of its work W is done in the T - a - b seconds between. With
the weights ``w`` of devices from the work bound, for all ``a`` and ``b`` that leave some unit with
work,

    T >= a + b + sum over units of min over devices of w[d] * max(0, W[d] - P[d](a) - Q[d](b)).

If some unit has work left, the two ends do not overlap, since otherwise all of its work would be in
them. Deviation from Fernandez and Bussell: their ops have no devices. Complexity:
O(n log n + U K g^2) for U units and g thresholds, spread evenly over the ranks of heads (tails).
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
def bound_units(
    offset: IntArray,
    job: IntArray,
    group: IntArray,
    columns: FloatArray,
    head: FloatArray,
    tail: FloatArray,
) -> FloatArray:
    """Return the one-machine bound of each unit in seconds, 0 if no device is allowed. [U]

    Args:
        offset: Index where the jobs of each unit start in ``job``. [U + 1]
        job: Jobs by unit, ascending by head. [n]
        group: Row of ``columns`` of each job. [n]
        columns: Seconds of a job on each kind of equal devices, inf where not allowed. [G, K]
        head: Least seconds before each job. [n]
        tail: Least seconds after each job. [n]
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
            # Jackson's schedule: of the released jobs, the one with the longest tail runs until it
            # is done or the next job is released.
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


THRESHOLDS = 64  # of heads, and of tails
FEWEST_THRESHOLDS = 8
MOST_CELLS = (
    20_000_000  # units times columns times pairs of thresholds that ``fill`` visits
)
ROUNDING = 1e-9  # share of a unit's work; a smaller remainder is a rounding error


def thresholds(values: FloatArray, count: int = THRESHOLDS) -> FloatArray:
    """Return at most ``count`` of the values, ascending and spread evenly over their ranks.

    The least value is one of them.
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
    """Return the bound of filling and draining in seconds.

    Args:
        part: Unit of each job. [n]
        group: Row of ``columns`` of each job. [n]
        columns: Seconds of a job on each kind of equal devices, inf where not allowed. [G, K]
        weight: Weight of a device of each column. [K]
        head: Least seconds before each job. [n]
        tail: Least seconds after each job. [n]
    """
    # On large problems there are fewer thresholds.
    num_units = int(part.max()) + 1
    cells = MOST_CELLS / (num_units * len(weight))
    count = int(np.clip(np.sqrt(cells), FEWEST_THRESHOLDS, THRESHOLDS))
    a = thresholds(head, count)
    b = thresholds(tail, count)
    early = _make_jobs(part, head, a)
    late = _make_jobs(part, tail, b)
    inside = _sum_work_between(group, columns, weight, early, late)
    value = np.where(inside > 0, a[:, None] + b[None, :] + inside, 0.0)
    return float(value.max())


def sort_jobs_by_unit(part: IntArray, release: FloatArray) -> tuple[IntArray, IntArray]:
    """Sort jobs by unit, then by release. Return where each unit starts, and the jobs. [U + 1], [n]

    Args:
        part: Unit of each job. [n]
        release: Least seconds before each job. [n]
    """
    offset = offsets(part, int(part.max()) + 1)
    job = np.lexsort((release, part)).astype(np.int32)
    return offset, job


class Jobs(NamedTuple):
    """The jobs of units by their release, and instants at which their work is counted.

    Attributes:
        offset: Index where the jobs of each unit start in ``job``. [U + 1]
        job: Jobs by unit, ascending by release. [n]
        release: Least seconds before each job: its head, or its tail if time runs backwards. [n]
        at: The instants in seconds, ascending. [g]
    """

    offset: IntArray
    job: IntArray
    release: FloatArray
    at: FloatArray


def _make_jobs(part: IntArray, release: FloatArray, at: FloatArray) -> Jobs:
    """Sort jobs by unit and release, with instants at which their work is counted."""
    offset, job = sort_jobs_by_unit(part, release)
    return Jobs(offset=offset, job=job, release=release, at=at)


@kernel
def _sum_work_between(
    group: IntArray, columns: FloatArray, weight: FloatArray, early: Jobs, late: Jobs
) -> FloatArray:
    """Return the weighted seconds of work that is left between two thresholds. [a, b]"""
    return _sum_remaining_work(
        _compute_work_done(early, group, columns),
        _compute_work_done(late, group, columns),
        weight,
    )


@inner()
def _compute_work_done(jobs: Jobs, group: IntArray, columns: FloatArray) -> FloatArray:
    """Return the most seconds of work that each unit can have done by each instant. [U K, g + 1]

    There is a row for each unit and column, with inf where it is not allowed. The last entry is all
    of the unit's work.
    """
    offset, job, release, at = jobs
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
                clock = max(clock, release[job[i]])
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
def _sum_remaining_work(
    early: FloatArray, late: FloatArray, weight: FloatArray
) -> FloatArray:
    """Return the work that is left between each two thresholds, in weighted seconds. [a, b]

    It is summed over units, each on the device where its weighted work is least.

    Args:
        early: Work that units can have done from the beginning on. [U K, a + 1]
        late: Work that units can have done from the end on. [U K, b + 1]
        weight: Weight of a device of each column. [K]
    """
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
    """Return the bound of windows in seconds.

    Args:
        head: Least seconds before each job. [n]
        tail: Least seconds after each job. [n]
        share: Share of each job in the work bound, in seconds. [n]
    """
    # Sum the work of jobs by the highest thresholds that their heads and tails reach.
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
