"""What a finished schedule says of its ops: how critical each is, where devices are busy.

The slack of an op is the step time less the longest path through it, along edges and the devices'
sequences, as the schedule has them (queues of links left out); its weight is
exp(-slack / (``SOFT`` step time)): 1 on the critical path, near 0 where nothing hangs on it.
Complexity: one simulation and O(n + edges).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnplace.graph.allocation import empty_int_table, empty_table, zero_floats, zero_table
from gnnplace.graph.jit import inner
from gnnplace.simulation.arrays import greatest
from gnnplace.simulation.compiled import Compiled
from gnnplace.simulation.kernels import exceeds, run_kernel

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int32]
SOFT = 0.02
BINS = 64
ENDLESS = 1e300  # a limit that no path exceeds, though finite: ``exceeds`` then fills its output


class Schedule(NamedTuple):
    """A schedule, read.

    Attributes:
        start: seconds. [n]
        finish: seconds. [n]
        weight: how critical each op is, 0..1. [n]
        unit_weight: the most of its ops. [U]
        load: seconds of work on each device. [D]
        busy: share of each bin of the step in which a device works. [D, BINS]
        critical: the same, weighted by how critical the work is. [D, BINS]
        held: bytes of state and of all tensors made on each device. [D]
        seconds: step time. [1]
    """

    start: FloatArray
    finish: FloatArray
    weight: FloatArray
    unit_weight: FloatArray
    load: FloatArray
    busy: FloatArray
    critical: FloatArray
    held: FloatArray
    seconds: FloatArray


@inner()
def empty_schedule(compiled: Compiled, num_units: int) -> Schedule:
    """Room for ``read_schedule``."""
    n, num_devices = compiled.times.shape
    return Schedule(
        zero_floats(n),
        zero_floats(n),
        zero_floats(n),
        zero_floats(num_units),
        zero_floats(num_devices),
        zero_table(num_devices, BINS),
        zero_table(num_devices, BINS),
        zero_floats(num_devices),
        zero_floats(1),
    )


@inner()
def read_schedule(
    compiled: Compiled, device: IntArray, order: IntArray, schedule: Schedule
) -> None:
    """Simulates a placement and fills ``schedule``."""
    n = len(device)
    after = zero_floats(n)
    exceeds(compiled, device, order, ENDLESS, after)
    nothing, nowhere = empty_int_table(0, 3), empty_table(0, 3)
    run_kernel(
        compiled, device, order, np.inf, after, schedule.start, schedule.finish, nothing, nowhere
    )
    longest = greatest(schedule.finish)
    step_time = max(longest, 1e-300)
    schedule.seconds[0] = step_time
    schedule.unit_weight[:] = 0.0
    schedule.load[:] = 0.0
    schedule.held[:] = 0.0
    schedule.busy[:] = 0.0
    schedule.critical[:] = 0.0
    per_bin = BINS / step_time
    for op in range(n):
        d, u = device[op], compiled.unit_of[op]
        slack = max(0.0, longest - schedule.finish[op] - after[op]) / step_time
        weight = np.exp(-slack / SOFT)
        schedule.weight[op] = weight
        schedule.unit_weight[u] = max(schedule.unit_weight[u], weight)
        schedule.load[d] += compiled.times[op, d]
        schedule.held[d] += compiled.state[op]
        for j in range(compiled.op_tensor_offset[op], compiled.op_tensor_offset[op + 1]):
            schedule.held[d] += compiled.size[compiled.op_tensor[j]]
        first, last = schedule.start[op] * per_bin, schedule.finish[op] * per_bin
        for b in range(int(first), min(BINS - 1, int(last)) + 1):
            share = min(last, b + 1.0) - max(first, float(b))
            if share > 0.0:
                schedule.busy[d, b] += share
                schedule.critical[d, b] += weight * share
