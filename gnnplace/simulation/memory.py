"""Peak memory of every device: state, plus the tensors alive on it at each instant.

On its producer's device a tensor is alive from the start of the producer to the latest of: the
producer's finish, the finishes of its consumers there, and the ends of service of its sends. On
another device it is alive from the start of service to the last finish of a consumer there.
Intervals are half-open: tensors that end at an instant are freed before others start.
Complexity: O(I log I) for I tensors and transfers.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.graph import (
    ONE,
    Index,
    ahead,
    ascending,
    copy_to,
    empty_floats,
    empty_int_table,
    empty_ints,
    empty_table,
    full_indices,
    full_ints,
    inner,
    kernel,
    zero_flags,
    zero_floats,
)
from gnnplace.simulation.compiled import Compiled
from gnnplace.simulation.kernels import DONE, ROUNDING, StepTimes, exceeds, run_kernel


@inner(_nrt=False)
def last_use(
    compiled: Compiled, device: IntArray, finish: FloatArray, tensor: int, on: int
) -> float:
    """Return the latest finish of a consumer of ``tensor`` on device ``on``; -inf without one."""
    last = -np.inf
    tensor = Index(tensor)
    for k in range(
        Index(compiled.consumer_offset[tensor]),
        Index(compiled.consumer_offset[tensor + ONE]),
    ):
        consumer = Index(compiled.consumer[k])
        if device[consumer] == on:
            last = max(last, finish[consumer])
    return last


@inner(_nrt=False)
def approach_uses(
    compiled: Compiled, device: IntArray, finish: FloatArray, op: int
) -> None:
    """Ask memory for what ``last_use`` will read of an op's tensors."""
    for j in range(
        Index(compiled.op_tensor_offset[op]), Index(compiled.op_tensor_offset[op + 1])
    ):
        tensor = Index(compiled.op_tensor[j])
        for k in range(
            Index(compiled.consumer_offset[tensor]),
            Index(compiled.consumer_offset[tensor + ONE]),
        ):
            ahead(device, compiled.consumer[k])
            ahead(finish, compiled.consumer[k])


@kernel
def lifetimes(
    compiled: Compiled,
    device: IntArray,
    start: FloatArray,
    finish: FloatArray,
    transfer: IntArray,
    service: FloatArray,
    wanted: BoolArray,
) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """Return the device, begin, end and bytes of every tensor's life on every wanted device that
    holds it.

    Args:
        compiled: the compiled problem, whose tensors have bytes.
        device: device of each op. [n]
        start: seconds. [n]
        finish: seconds. [n]
        transfer: tensor, source and target of each transfer. [K, 3]
        service: start and end of service, and arrival. [K, 3]
        wanted: whether to look at a device. [D]
    """
    num_tensors = len(compiled.size)
    n = len(device)
    total = num_tensors + len(transfer)
    location = empty_ints(total)
    slot = full_ints(num_tensors, -1)
    begin = empty_floats(total)
    end = empty_floats(total)
    size = empty_floats(total)
    count = 0
    # A tensor lives where it is made, from the start of its op until its last reader has finished.
    for op in range(n):
        on = device[op]
        if op + 16 < n:
            approach_uses(compiled, device, finish, op + 16)
        if not wanted[Index(on)]:
            continue
        for j in range(
            Index(compiled.op_tensor_offset[op]),
            Index(compiled.op_tensor_offset[op + 1]),
        ):
            tensor = compiled.op_tensor[j]
            k = Index(tensor)
            location[count], begin[count], size[count] = on, start[op], compiled.size[k]
            end[count] = max(finish[op], last_use(compiled, device, finish, tensor, on))
            slot[k] = count
            count += 1
    # A copy lives on its target from when it is sent until its last reader there has finished; the
    # original lives on at the sender until it is sent.
    for i in range(len(transfer)):
        tensor = transfer[i, 0]
        target = transfer[i, 2]
        k = Index(tensor)
        if slot[k] >= 0:
            end[Index(slot[k])] = max(end[Index(slot[k])], service[i, 1])
        if wanted[Index(target)]:
            location[count], begin[count], size[count] = (
                target,
                service[i, 0],
                compiled.size[k],
            )
            end[count] = last_use(compiled, device, finish, tensor, target)
            count += 1
    return location[:count], begin[:count], end[:count], size[:count]


@kernel
def peak_kernel(
    where: IntArray,
    begin: FloatArray,
    end: FloatArray,
    size: FloatArray,
    state: FloatArray,
) -> FloatArray:
    """Return the peak bytes of each device from lifetimes and the state of each device. [D]."""
    return find_sorted_peak(
        where, begin, end, size, state, ascending(begin), ascending(end)
    )


@kernel
def find_sorted_peak(
    where: IntArray,
    begin: FloatArray,
    end: FloatArray,
    size: FloatArray,
    state: FloatArray,
    by_begin: IntArray,
    by_end: IntArray,
) -> FloatArray:
    """Return what `peak_kernel` does, of lives whose order is known.

    Args:
        where: Device of each life. [I]
        begin: Seconds at which it begins. [I]
        end: Seconds at which it ends. [I]
        size: Its bytes. [I]
        state: Bytes of state on each device. [D]
        by_begin: Lives by `begin`, equal ones as they are listed. [I]
        by_end: Lives by `end`, equal ones as they are listed. [I]
    """
    alive = zero_floats(len(state))
    peak = zero_floats(len(state))
    copy_to(alive, state)
    copy_to(peak, state)
    freed = 0
    for i in by_begin:
        while freed < len(by_end) and end[by_end[freed]] <= begin[i]:
            j = by_end[freed]
            if end[j] > begin[j]:
                alive[where[j]] -= size[j]
            freed += 1
        if end[i] > begin[i]:
            alive[where[i]] += size[i]
            peak[where[i]] = max(peak[where[i]], alive[where[i]])
    return peak


@kernel
def device_state(compiled: Compiled, device: IntArray) -> FloatArray:
    """Return the bytes of state on each device. [D]."""
    state = zero_floats(len(compiled.memory))
    for op in range(len(device)):
        state[Index(device[op])] += compiled.state[op]
    return state


@kernel
def compute_total_memory(compiled: Compiled, device: IntArray) -> FloatArray:
    """Return the bytes of each device if every tensor it ever holds were alive at once. [D]."""
    upper_bound = device_state(compiled, device)
    stamp = full_indices(len(compiled.memory), len(compiled.size))
    for op in range(len(device)):
        d = Index(device[op])
        for j in range(
            Index(compiled.op_tensor_offset[op]),
            Index(compiled.op_tensor_offset[op + 1]),
        ):
            tensor = Index(compiled.op_tensor[j])
            upper_bound[d] += compiled.size[tensor]
            stamp[d] = tensor
            for k in range(
                Index(compiled.consumer_offset[tensor]),
                Index(compiled.consumer_offset[tensor + ONE]),
            ):
                target = Index(device[Index(compiled.consumer[k])])
                if stamp[target] != tensor:
                    stamp[target] = tensor
                    upper_bound[target] += compiled.size[tensor]
    return upper_bound


@inner()
def above(need: FloatArray, limit: FloatArray) -> tuple[BoolArray, bool]:
    """Return which devices need more than the limit, and whether any does. [D]."""
    result = zero_flags(len(need))
    any_above = False
    for d in range(len(need)):
        result[d] = need[d] > limit[d]
        any_above |= result[d]
    return result, any_above


@inner(_nrt=False)
def sum_excess(need: FloatArray, limit: FloatArray) -> float:
    """Return the bytes above the limit summed over devices."""
    total = 0.0
    for d in range(len(need)):
        total += max(need[d] - limit[d], 0.0)
    return total


@kernel
def excess_kernel(
    compiled: Compiled, device: IntArray, order: IntArray, cutoff: float
) -> tuple[float, float]:
    """Step time in seconds, and bytes above the limit summed over devices.

    The exact peak is computed only for devices where a cheap upper bound exceeds the limit.
    """
    n = len(device)
    remaining = empty_floats(n)
    limit = cutoff * (1.0 + ROUNDING)
    if exceeds(compiled, device, order, limit, remaining):
        return np.inf, 0.0
    doubtful, any_above = above(compute_total_memory(compiled, device), compiled.memory)
    if any_above:
        rows = len(compiled.consumer) + 1
    else:
        rows = 0
    start = empty_floats(n)
    finish = empty_floats(n)
    transfer = empty_int_table(rows, 3)
    service = empty_table(rows, 3)
    record = StepTimes(start, finish, transfer, service)
    status, step_time, count = run_kernel(
        compiled, device, order, limit, remaining, record
    )
    if rows == 0:
        return step_time, 0.0
    state = device_state(compiled, device)
    if status != DONE:
        return np.inf, sum_excess(state, compiled.memory)
    lives = lifetimes(
        compiled, device, start, finish, transfer[:count], service[:count], doubtful
    )
    peak = peak_kernel(lives[0], lives[1], lives[2], lives[3], state)
    return step_time, sum_excess(peak, compiled.memory)


def peak_memory(compiled: Compiled, device: IntArray, order: IntArray) -> FloatArray:
    """Return the peak bytes of each device; an upper bound of it where that is within the limit.
    [D].
    """
    n = len(device)
    rows = len(compiled.consumer) + 1
    upper_bound = compute_total_memory(compiled, device)
    doubtful = upper_bound > compiled.memory
    if not doubtful.any():
        return np.asarray(upper_bound)
    start = np.empty(n)
    finish = np.empty(n)
    transfer = np.empty((rows, 3), np.int32)
    service = np.empty((rows, 3))
    record = StepTimes(
        start=start,
        finish=finish,
        transfer=transfer,
        service=service,
    )
    count = run_kernel(compiled, device, order, np.inf, np.zeros(n), record)[2]
    lives = lifetimes(
        compiled, device, start, finish, transfer[:count], service[:count], doubtful
    )
    return np.where(
        doubtful, peak_kernel(*lives, device_state(compiled, device)), upper_bound
    )
