"""The event-driven step-time kernel, in numba: one placement, or a batch of one problem.

Formulation: the semantics of the problem format. The finish of a device's next op is known as soon
as all its input tensors have been queued on their channels. So each device has one candidate, and
the earliest candidate is the next event. First all ops that finish at that instant are collected
(with ops of zero time that they release), then their tensors are queued, ordered by op, tensor and
target.

The order in which devices run their ops is given as one order of all ops; a device runs its ops in
that order. Every set of sequences without a deadlock is such an order (a linear extension of the
graph and the sequences together), so searching orders loses nothing.

With a cut-off a lower bound comes first (``exceeds``): most moves of a local search are rejected
by it at the price of a third of a simulation or less.

Complexity: O(n (D + k) + consumptions) where k is the number of ops that finish at one instant.

The format leaves two points open. Here a sending device spends the overheads of an op's messages
after the copies that it makes itself, and a receiving device spends the overhead of a message just
before the first op of its sequence that consumes it, once all inputs of that op have arrived.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnplace.arrays import FloatArray, IndexArray, IntArray
from gnnplace.graph import (
    ONE,
    Index,
    ahead,
    copy_to,
    empty_floats,
    empty_indices,
    empty_int_table,
    empty_ints,
    empty_table,
    full_floats,
    full_indices,
    inner,
    kernel,
    zero_floats,
    zero_ints,
)
from gnnplace.simulation.compiled import Compiled
from gnnplace.simulation.transfer import (
    LATENCY,
    SENDS,
    has_link,
    receive_time,
    seconds_between,
    send,
    send_costs,
)

DONE = 0
DEADLOCK = 1
NO_LINK = 2
CUT_OFF = 3
FAR = 50_000  # ops whose arrays are more than the processor keeps at hand
# A cut-off leaves this room, because bounds add in another order than a simulation.
ROUNDING = 1e-9


@inner()
def split_order(
    device: IntArray, order: IntArray, num_devices: int
) -> tuple[IntArray, IntArray]:
    """Return the sequences of all devices, one after the other, and where each starts. [n],
    [D + 1]
    """
    offset = zero_ints(num_devices + 1)
    for k in range(len(order)):
        offset[Index(device[Index(order[k])]) + ONE] += 1
    for d in range(num_devices):
        offset[d + 1] += offset[d]
    head = offset[:-1].copy()
    sequence = empty_ints(len(order))
    for k in range(len(order)):
        d = Index(device[Index(order[k])])
        sequence[Index(head[d])] = order[k]
        head[d] += 1
    return sequence, offset


@inner()
def exceeds(
    compiled: Compiled,
    device: IntArray,
    order: IntArray,
    limit: float,
    after: FloatArray,
) -> bool:
    """Return whether a lower bound on the step time of a placement is above ``limit`` seconds.

    It is the longest path of op times and uncontended transfers through the graph and the
    sequences together. Backwards through ``order``, the kernel fills ``after`` with the least
    seconds from each op's finish to the end of the step; it stops as soon as these and the longest
    path before the op are too much. In an order that contradicts the graph an op does not see
    consumers listed before it: the bound is lower, and still one. ``after``: out, [n]
    """
    if limit == np.inf:
        copy_to(after, compiled.tail)
        return False
    behind = zero_floats(len(compiled.memory))
    path_seconds = zero_floats(len(order))
    for k in range(len(order) - 1, -1, -1):
        op = Index(order[k])
        d = Index(device[op])
        longest = behind[d]
        for i in range(
            Index(compiled.flow_offset[op]), Index(compiled.flow_offset[op + ONE])
        ):
            consumer = Index(compiled.flow_op[i])
            target = Index(device[consumer])
            path = path_seconds[consumer]
            if target != d:
                path += seconds_between(
                    compiled.links, d, target, compiled.flow_size[i]
                )
            if path > longest:
                longest = path
        after[op] = longest
        longest += compiled.times[op, d]
        path_seconds[op] = behind[d] = longest
        if longest + compiled.head[op] > limit:
            return True
    return False


@inner(_nrt=False)
def approach(
    compiled: Compiled,
    device: IntArray,
    missing: IntArray,
    ready: FloatArray,
    sequence: IntArray,
    at: int,
    end: int,
) -> None:
    """Ask memory for what a device's ops after its ``at``-th will read, up to its ``end``-th.

    Each in time for what it says of the next; arguments are ``run_kernel``'s.
    """
    last = Index(end) - ONE
    op_tensors = compiled.op_tensor_offset
    flows = compiled.flow_offset
    op = Index(sequence[min(Index(at) + Index(5), last)])
    ahead(flows, op)
    ahead(op_tensors, op)
    op = Index(sequence[min(Index(at) + Index(4), last)])
    ahead(compiled.times, op)
    ahead(compiled.flow_op, flows[op])
    ahead(compiled.op_tensor, op_tensors[op])
    op = Index(sequence[min(Index(at) + Index(3), last)])
    for j in range(Index(op_tensors[op]), Index(op_tensors[op + ONE])):
        ahead(compiled.consumer_offset, compiled.op_tensor[j])
        ahead(compiled.size, compiled.op_tensor[j])
    op = Index(sequence[min(Index(at) + Index(2), last)])
    for j in range(Index(op_tensors[op]), Index(op_tensors[op + ONE])):
        ahead(compiled.consumer, compiled.consumer_offset[Index(compiled.op_tensor[j])])
    for k in range(Index(flows[op]), Index(flows[op + ONE])):
        ahead(device, compiled.flow_op[k])
        ahead(missing, compiled.flow_op[k])
        ahead(ready, compiled.flow_op[k])


@inner(_nrt=False)
def sort_ops(ops: IntArray, count: int) -> None:
    """Sort the first ``count`` of ``ops`` by insertion: few finish at one instant."""
    for i in range(1, count):
        op = ops[i]
        j = i - 1
        while j >= 0 and ops[j] > op:
            ops[j + 1] = ops[j]
            j -= 1
        ops[j + 1] = op


@inner(_nrt=False)
def list_targets(
    compiled: Compiled,
    device: IntArray,
    tensor: int,
    source: int,
    stamp: IndexArray,
    targets: IndexArray,
) -> int:
    """Write the devices but ``source`` that read a tensor to ``targets``, ascending; return how
    many.

    ``stamp``: the tensor for which each device was last written; changed. [D]
    """
    count = 0
    low = compiled.consumer_offset[tensor]
    high = compiled.consumer_offset[tensor + ONE]
    for k in range(Index(low), Index(high)):
        target = Index(device[Index(compiled.consumer[k])])
        if target != source and stamp[target] != tensor:
            stamp[target] = tensor
            at = count
            while at > 0 and targets[at - 1] > target:
                targets[at] = targets[at - 1]
                at -= 1
            targets[at] = target
            count += 1
    return count


class StepTimes(NamedTuple):
    """When the ops and transfers of one step begin and end, in seconds; filled by ``run_kernel``.

    Attributes:
        start: Seconds at which each op starts. [n]
        finish: Seconds at which it has finished. [n]
        transfer: Tensor, source and target device of each transfer. [>= consumptions, 3], or no
            rows if not wanted.
        service: Start and end of service and arrival of each transfer, as ``transfer``.
    """

    start: FloatArray
    finish: FloatArray
    transfer: IntArray
    service: FloatArray


@kernel
def run_kernel(
    compiled: Compiled,
    device: IntArray,
    order: IntArray,
    limit: float,
    after: FloatArray,
    record: StepTimes,
) -> tuple[int, float, int]:
    """Simulate one step.

    Args:
        compiled: the compiled problem, of n ops and D devices.
        device: device of each op. [n]
        order: all ops; a device runs its ops in this order. [n]
        limit: stop as soon as the step time must exceed this many seconds.
        after: lower bound of the seconds from each op's finish to the end of the step. [n]
        record: Output: when ops and transfers begin and end.

    Returns:
        DONE, DEADLOCK, NO_LINK or CUT_OFF; step time in seconds; number of transfers.
    """
    start, finish, transfer, service = record
    n, num_devices = compiled.times.shape
    links = compiled.links
    far = n > FAR
    # A device's ops to come are ``sequence[head[d] : end[d]]``; the next one can start when it has
    # no inputs ``missing``, not before it is ``ready`` nor before the device is ``free``.
    sequence, head = split_order(device, order, num_devices)
    end = head[1:].copy()
    missing = compiled.num_inputs.copy()
    ready = zero_floats(n)
    free = zero_floats(num_devices)
    channel_free = zero_floats(links.num_channels)
    # When the op that runs on each device finishes; inf for none. The least of these comes next.
    candidate = full_floats(num_devices, np.inf)
    batch = empty_ints(n)  # ops that finish at this instant and have tensors to send
    targets = empty_indices(num_devices)
    stamp = full_indices(num_devices, len(compiled.size))
    # A device is woken once by its next op's inputs and once by itself.
    waking = empty_ints(2 * num_devices)
    # Where messages cost their receiver: seconds before each op, and its place in the order, since
    # the first op that consumes a message waits for it.
    position = empty_ints(0)
    extra = empty_floats(0)
    if links.receives_cost:
        extra = zero_floats(n)
        position = empty_ints(n)
        for k in range(n):
            position[order[k]] = k
    keeps_transfers = len(transfer) > 0
    transfers = 0
    num_finished = 0
    step_time = 0.0
    # First ops without inputs start at once.
    for d in range(num_devices):
        if head[d] < end[d] and missing[sequence[head[d]]] == 0:
            op = sequence[head[d]]
            start[op] = 0.0
            candidate[d] = compiled.times[op, d]
    while num_finished < n:
        time = np.inf
        for d in range(num_devices):
            time = min(time, candidate[d])
        if time == np.inf:
            return DEADLOCK, np.inf, transfers
        # 1. Everything that finishes at this instant; local consumers have their inputs at once.
        count = 0
        num_waking = 0
        for d in range(num_devices):
            while candidate[d] == time:
                op = Index(sequence[Index(head[d])])
                if far:
                    approach(
                        compiled, device, missing, ready, sequence, head[d], end[d]
                    )
                head[d] += 1
                num_finished += 1
                finish[op] = time
                step_time = time
                if time + after[op] > limit:
                    return CUT_OFF, np.inf, transfers
                free[d] = time
                # Who waits for it here goes on; whether others wait, and sending costs its device.
                remote = False
                costly = False
                for k in range(
                    Index(compiled.flow_offset[op]),
                    Index(compiled.flow_offset[op + ONE]),
                ):
                    consumer = Index(compiled.flow_op[k])
                    target = Index(device[consumer])
                    if target == Index(d):
                        missing[consumer] -= 1
                        ready[consumer] = max(ready[consumer], time)
                    else:
                        remote = True
                        costly |= send_costs(links, d, target)
                if remote:
                    batch[count] = op
                    count += 1
                candidate[d] = np.inf
                # The next op starts now; but where sending takes the device's time, after step 2.
                if costly:
                    waking[num_waking] = d
                    num_waking += 1
                elif head[d] < end[d] and missing[Index(sequence[Index(head[d])])] == 0:
                    op = Index(sequence[Index(head[d])])
                    begin = max(time, ready[op])
                    if links.receives_cost:
                        begin += extra[op]
                    start[op] = begin
                    candidate[d] = begin + compiled.times[op, d]
        # 2. Their tensors are queued in op order, to one device after the other.
        sort_ops(batch, count)
        for i in range(count):
            op = Index(batch[i])
            d = Index(device[op])
            overhead = 0.0
            for j in range(
                Index(compiled.op_tensor_offset[op]),
                Index(compiled.op_tensor_offset[op + ONE]),
            ):
                tensor = Index(compiled.op_tensor[j])
                low = Index(compiled.consumer_offset[tensor])
                high = Index(compiled.consumer_offset[tensor + ONE])
                for m in range(
                    list_targets(compiled, device, tensor, d, stamp, targets)
                ):
                    target = targets[m]
                    if not has_link(links, d, target):
                        return NO_LINK, np.inf, transfers
                    size = compiled.size[tensor]
                    begin, served = send(
                        links, channel_free, free, d, target, size, time
                    )
                    overhead += links.costs[d, target, SENDS]
                    arrival = served + links.costs[d, target, LATENCY]
                    if keeps_transfers:
                        transfer[transfers, 0] = tensor
                        transfer[transfers, 1] = d
                        transfer[transfers, 2] = target
                        service[transfers, 0] = begin
                        service[transfers, 1] = served
                        service[transfers, 2] = arrival
                    transfers += 1
                    # Its consumers there; an idle device whose next op is among them is woken.
                    first = op
                    has_first = False
                    for k in range(low, high):
                        consumer = Index(compiled.consumer[k])
                        if Index(device[consumer]) != target:
                            continue
                        missing[consumer] -= 1
                        ready[consumer] = max(ready[consumer], arrival)
                        idle = missing[consumer] == 0 and candidate[target] == np.inf
                        if idle and Index(sequence[Index(head[target])]) == consumer:
                            waking[num_waking] = target
                            num_waking += 1
                        if links.receives_cost and (
                            not has_first or position[consumer] < position[first]
                        ):
                            first = consumer
                            has_first = True
                    if links.receives_cost:
                        extra[first] += receive_time(links, d, target, size)
            free[d] += overhead
        # 3. Devices whose next op has all its inputs queued by now.
        for i in range(num_waking):
            d = Index(waking[i])
            if candidate[d] == np.inf and head[d] < end[d]:
                op = Index(sequence[Index(head[d])])
                if missing[op] == 0:
                    begin = max(free[d], ready[op])
                    if links.receives_cost:
                        begin += extra[op]
                    start[op] = begin
                    candidate[d] = begin + compiled.times[op, d]
    return DONE, step_time, transfers


@kernel
def step_time_kernel(
    compiled: Compiled, device: IntArray, order: IntArray, cutoff: float
) -> float:
    """Step time in seconds; inf if infeasible, deadlocked or above ``cutoff``."""
    n = len(device)
    remaining = empty_floats(n)
    limit = cutoff * (1.0 + ROUNDING)
    if exceeds(compiled, device, order, limit, remaining):
        return np.inf
    start = empty_floats(n)
    finish = empty_floats(n)
    nothing = empty_int_table(0, 3)
    nowhere = empty_table(0, 3)
    return run_kernel(
        compiled,
        device,
        order,
        limit,
        remaining,
        StepTimes(start, finish, nothing, nowhere),
    )[1]


@kernel
def step_times_kernel(
    compiled: Compiled, devices: IntArray, orders: IntArray
) -> FloatArray:
    """Step times of a batch of placements; ``orders`` has one row, or one a placement. [B]"""
    result = empty_floats(len(devices))
    for b in range(len(devices)):
        order = orders[b if len(orders) > 1 else 0]
        result[b] = step_time_kernel(compiled, devices[b], order, np.inf)
    return result
