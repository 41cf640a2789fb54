"""Work shared out over devices of several kinds: a linear programme's dual.

For any weights ``w`` of devices that are not negative and sum to 1, the step time is at least
``sum over units of min over devices of w[d] * time[unit, d]``, for a unit is on one device: it is
the linear programme of splitting units over devices, dualised. Devices that are alike share a
weight, and are one column. The weights come from multiplicative updates (Arora, Hazan and Kale,
2012), and every iterate is a valid bound.

Complexity: O(units x columns) an update.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.graph.jit import kernel
from gnnplace.graph.kernel_arrays import copy_to, empty_floats, full_floats, greatest, zero_floats

UPDATES = 120
RATE, SLOWER = 0.4, 0.95  # Of the first update, and of each update the next.


@kernel
def work_weights(columns: FloatArray, counts: FloatArray, updates: int) -> tuple[FloatArray, float]:
    """Weight of a device of each column, and the bound in seconds that it gives. [K]

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
    best, most, rate = empty_floats(num_columns), -1.0, RATE
    for _ in range(updates if num_columns > 1 else 1):
        load = zero_floats(num_columns)
        total = 0.0
        for unit in range(count):
            least, choice = np.inf, 0
            for k in range(num_columns):
                priced = columns[unit, k] * weight[k]
                if priced < least:
                    least, choice = priced, k
            total += least
            load[choice] += columns[unit, choice]
        if total > most:
            most = total
            copy_to(best, weight)
        for k in range(num_columns):
            load[k] /= counts[k]
        most_load, scale = max(greatest(load), 1e-300), 0.0
        for k in range(num_columns):
            weight[k] *= np.exp(rate * load[k] / most_load)
            scale += weight[k] * counts[k]
        for k in range(num_columns):
            weight[k] /= scale
        rate *= SLOWER
    return best, most
