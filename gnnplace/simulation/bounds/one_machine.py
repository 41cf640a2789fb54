"""A unit is on one device: Jackson's preemptive schedule of one machine with heads and tails.

Jobs are the copies of a unit's ops by rank. A job cannot start before its head, works for so long,
and leaves at least its tail to the end. At any time the released job of the largest tail is at
work; the largest of finish plus tail is the least over all schedules that may interrupt jobs, and
so a bound on those that may not (Jackson, 1955; Carlier, 1982). It is the largest, over all sets of
jobs, of least head + work + least tail. A unit may be on the device that is best for it.

Complexity: O(n K log n) for K columns of devices that are alike.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.graph.jit import kernel
from gnnplace.graph.kernel_arrays import empty_floats, empty_ints, heap_pop, heap_push


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
        offset: where the jobs of each unit start in ``job``. [U + 1]
        job: jobs by unit, ascending by head. [n]
        group: row of ``columns`` of each job. [n]
        columns: seconds of a job on devices that are alike, inf where not allowed. [G, K]
        head: least seconds before each job. [n]
        tail: least seconds after it. [n]
    """
    result = empty_floats(len(offset) - 1)
    left, keys, waiting = empty_floats(len(job)), empty_floats(len(job)), empty_ints(len(job))
    for unit in range(len(offset) - 1):
        low, count = offset[unit], offset[unit + 1] - offset[unit]
        result[unit] = np.inf
        for k in range(columns.shape[1]):
            now, bound, next_job, held = 0.0, 0.0, 0, 0
            while next_job < count or held > 0:
                if held == 0:
                    now = max(now, head[job[low + next_job]])
                while next_job < count and head[job[low + next_job]] <= now:
                    i = job[low + next_job]
                    left[i] = columns[group[i], k]
                    heap_push(keys, waiting, 0, held, -tail[i], i)
                    held += 1
                    next_job += 1
                i = waiting[0]
                until = head[job[low + next_job]] if next_job < count else np.inf
                if now + left[i] <= until:
                    now += left[i]
                    bound = max(bound, now + tail[i])
                    heap_pop(keys, waiting, 0, held)
                    held -= 1
                else:
                    left[i] -= until - now
                    now = until
                if now == np.inf:
                    bound = np.inf
                    break
            result[unit] = min(result[unit], bound)
        if result[unit] == np.inf:
            result[unit] = 0.0
    return result
