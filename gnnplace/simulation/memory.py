"""Peak memory of every device: state, plus the tensors alive on it at each instant.

A tensor lives on its producer's device from the producer's start to the latest of the producer's
finish, its consumers' finishes there and the ends of service of its sends; on another device from
the start of service to the last finish of a consumer there. Intervals are half-open: what ends at
an instant is freed before what starts. Complexity: O(I log I), I = tensors + transfers.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnplace.simulation.compiled import Compiled
from gnnplace.simulation.kernels import DONE, ROUNDING, exceeds, run_kernel

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int32]


@njit(cache=True, boundscheck=False)
def last_use(c: Compiled, device: IntArray, finish: FloatArray, tensor: int, on: int) -> float:
    """Latest finish of a consumer of ``tensor`` on device ``on``; -inf without one."""
    last = -np.inf
    for k in range(c.consumer_offset[tensor], c.consumer_offset[tensor + 1]):
        if device[c.consumer[k]] == on:
            last = max(last, finish[c.consumer[k]])
    return last


@njit(cache=True, boundscheck=False)
def lifetimes(
    c: Compiled,
    device: IntArray,
    start: FloatArray,
    finish: FloatArray,
    transfer: IntArray,
    service: FloatArray,
) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """Device, begin, end and bytes of every tensor's life on every device that holds it."""
    num_tensors, n = len(c.size), len(device)
    total = num_tensors + len(transfer)
    where = np.empty(total, np.int32)
    begin, end, size = np.empty(total), np.empty(total), np.empty(total)
    for op in range(n):
        for j in range(c.op_tensor_offset[op], c.op_tensor_offset[op + 1]):
            k = c.op_tensor[j]
            where[k], begin[k], size[k] = device[op], start[op], c.size[k]
            end[k] = max(finish[op], last_use(c, device, finish, k, device[op]))
    for i in range(len(transfer)):
        k, target = transfer[i, 0], transfer[i, 2]
        end[k] = max(end[k], service[i, 1])
        at = num_tensors + i
        where[at], begin[at], size[at] = target, service[i, 0], c.size[k]
        end[at] = last_use(c, device, finish, k, target)
    return where, begin, end, size


@njit(cache=True, boundscheck=False)
def peak_kernel(
    where: IntArray, begin: FloatArray, end: FloatArray, size: FloatArray, state: FloatArray
) -> FloatArray:
    """Peak bytes of each device from lifetimes and the state of each device. [D]."""
    # Merge sort: quicksort is slow on times that are nearly sorted, as these are.
    by_begin, by_end = np.argsort(begin, kind="mergesort"), np.argsort(end, kind="mergesort")
    now, peak = state.copy(), state.copy()
    freed = 0
    for i in by_begin:
        while freed < len(by_end) and end[by_end[freed]] <= begin[i]:
            j = by_end[freed]
            if end[j] > begin[j]:
                now[where[j]] -= size[j]
            freed += 1
        if end[i] > begin[i]:
            now[where[i]] += size[i]
            peak[where[i]] = max(peak[where[i]], now[where[i]])
    return peak


@njit(cache=True, boundscheck=False)
def device_state(c: Compiled, device: IntArray) -> FloatArray:
    """Bytes of state on each device. [D]."""
    state = np.zeros(len(c.memory))
    for op in range(len(device)):
        state[device[op]] += c.state[op]
    return state


@njit(cache=True, boundscheck=False)
def most_memory(c: Compiled, device: IntArray) -> FloatArray:
    """Bytes of each device if every tensor it ever holds were alive at once. [D]."""
    most = device_state(c, device)
    stamp = np.full(len(c.memory), -1, np.int64)
    for op in range(len(device)):
        for j in range(c.op_tensor_offset[op], c.op_tensor_offset[op + 1]):
            tensor = c.op_tensor[j]
            most[device[op]] += c.size[tensor]
            stamp[device[op]] = tensor
            for k in range(c.consumer_offset[tensor], c.consumer_offset[tensor + 1]):
                target = device[c.consumer[k]]
                if stamp[target] != tensor:
                    stamp[target] = tensor
                    most[target] += c.size[tensor]
    return most


@njit(cache=True, boundscheck=False)
def excess_kernel(
    c: Compiled, device: IntArray, order: IntArray, cutoff: float
) -> tuple[float, float]:
    """Step time in seconds, and bytes above the limit summed over devices.

    The exact peak is computed only where a cheap upper bound exceeds the limit.
    """
    n = len(device)
    after, limit = np.empty(n), cutoff * (1.0 + ROUNDING)
    if exceeds(c, device, order, limit, after):
        return np.inf, 0.0
    fits = (most_memory(c, device) <= c.memory).all()
    rows = 0 if fits else len(c.consumer) + 1
    start, finish = np.empty(n), np.empty(n)
    transfer, service = np.empty((rows, 3), np.int32), np.empty((rows, 3))
    status, step_time, count = run_kernel(
        c, device, order, limit, after, start, finish, transfer, service
    )
    if fits:
        return step_time, 0.0
    if status != DONE:
        return np.inf, np.maximum(device_state(c, device) - c.memory, 0.0).sum()
    lives = lifetimes(c, device, start, finish, transfer[:count], service[:count])
    peak = peak_kernel(lives[0], lives[1], lives[2], lives[3], device_state(c, device))
    return step_time, np.maximum(peak - c.memory, 0.0).sum()
