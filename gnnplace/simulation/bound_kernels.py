"""Loops over ops of the lower bounds, in numba. The bounds themselves: ``bounds``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnplace.graph.allocation import empty_floats, full_floats, zero_floats, zero_table
from gnnplace.graph.jit import kernel
from gnnplace.simulation.arrays import copy_to, greatest

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int32]


@kernel
def weighted_work(columns: FloatArray, counts: FloatArray, updates: int) -> FloatArray:
    """Each op's share of the work bound under the best weights found, in seconds. [n]

    Args:
        columns: seconds of each op on devices that are alike, inf where not allowed. [n, K]
        counts: number of devices of each column. [K]
        updates: multiplicative updates of the weights; one column needs none.
    """
    n, num_columns = columns.shape
    devices = 0.0
    for k in range(num_columns):
        devices += counts[k]
    weight = full_floats(num_columns, 1.0 / devices)
    share, best, most = empty_floats(n), zero_floats(n), -1.0
    for _ in range(updates if num_columns > 1 else 1):
        load = zero_floats(num_columns)
        total = 0.0
        for op in range(n):
            least, choice = np.inf, 0
            for k in range(num_columns):
                priced = columns[op, k] * weight[k]
                if priced < least:
                    least, choice = priced, k
            share[op] = least
            total += least
            load[choice] += columns[op, choice]
        if total > most:
            most = total
            copy_to(best, share)
        for k in range(num_columns):
            load[k] /= counts[k]
        most_load, scale = max(greatest(load), 1e-300), 0.0
        for k in range(num_columns):
            weight[k] *= np.exp(0.2 * load[k] / most_load)
            scale += weight[k] * counts[k]
        for k in range(num_columns):
            weight[k] /= scale
    return best


@kernel
def on_one_device(part: IntArray, columns: FloatArray, head: FloatArray, tail: FloatArray) -> float:
    """Bound in seconds of parts whose ops run one after the other on the best device for them.

    Args:
        part: part of each op. [n]
        columns: seconds of each op on devices that are alike, inf where not allowed. [n, K]
        head: least seconds before each op. [n]
        tail: least seconds after each op. [n]
    """
    count, num_columns = greatest(part) + 1, columns.shape[1]
    work = zero_table(count, num_columns)
    earliest, least = full_floats(count, np.inf), full_floats(count, np.inf)
    for op in range(len(part)):
        p = part[op]
        for k in range(num_columns):
            work[p, k] += columns[op, k]
        earliest[p] = min(earliest[p], head[op])
        least[p] = min(least[p], tail[op])
    bound = 0.0
    for p in range(count):
        if earliest[p] < np.inf:
            seconds = np.inf
            for k in range(num_columns):
                seconds = min(seconds, work[p, k])
            bound = max(bound, earliest[p] + least[p] + (seconds if seconds < np.inf else 0.0))
    return bound
