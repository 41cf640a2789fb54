"""List scheduling: an order of ops for given devices, and its justification, a better order.

**List scheduling** (``list_schedule``; Graham, 1966). A free device takes the op of highest
priority among its ops whose inputs have all arrived; it never idles on purpose. Transfers queue
first come, first served, and take time of sender and receiver, as in the simulator (``transfer``).
Complexity: O((n + transfers) log n).

``complete`` gives an order to a placement that has none. It simulates these orders; the shortest
step wins, and of equal ones the first:

1. a list schedule by (micro-batch, topological position), so that a device finishes the oldest
   micro-batch first and begins backward ops as they come (one forward, one backward);
2. a list schedule by (phase, micro-batch, topological position), so that all forward ops of all
   micro-batches come first;
3. a list schedule by upward rank with the mean costs of the cluster (Topcuoglu et al., 2002);
4. the order of (phase, micro-batch, topological position) itself.

Without micro-batches, upward rank comes first, then the topological position.

**Justification** (``justify``; forward-backward improvement of project scheduling: Li and Willis,
1992; Valls, Ballestin and Quintanilla, 2005). List scheduling of the reversed graph, by the finish
times of the present schedule, moves every op as late as its device and links allow. The time from
an op's start there to the end becomes its priority. Unlike an upward rank, which only knows paths,
it includes the queues. List scheduling by this priority then moves every op as early as possible.
With micro-batches this decides most of the order: copies of an op have equal upward ranks, but
different distances to the end.

Deviations: links queue in the reversed graph too, with one message for each consumer, since that
graph has no multicast. There is one pass, because further ones change little. Complexity: two list
schedules and two simulations.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.graph import (
    ONE,
    Index,
    empty_floats,
    empty_ints,
    full_floats,
    full_indices,
    full_ints,
    heap_pop,
    heap_push,
    inner,
    kernel,
    upward_rank,
    zero_floats,
    zero_longs,
    zero_table,
)
from gnnplace.problem import Problem
from gnnplace.simulation.compiled import Compiled, mean_times, offsets
from gnnplace.simulation.kernels import StepTimes, run_kernel, step_times_kernel
from gnnplace.simulation.transfer import (
    LATENCY,
    SENDS,
    has_link,
    mean_seconds,
    receive_time,
    reverse_links,
    send,
)


@inner(_nrt=False)
def receive(compiled: Compiled, unpaid: FloatArray, op: int, d: int) -> float:
    """Return the seconds that the messages with an op's inputs take of its device.

    Only the first op that reads a message pays for it.

    Args:
        compiled: The compiled problem.
        unpaid: Seconds that the message of each tensor takes of each device, 0 once paid; changed.
            [T, D]
        op: The op.
        d: Its device.
    """
    seconds = 0.0
    for k in range(compiled.input_offset[op], compiled.input_offset[op + 1]):
        seconds += unpaid[compiled.input_tensor[k], d]
        unpaid[compiled.input_tensor[k], d] = 0.0
    return seconds


@inner(_nrt=False)
def stir(stirred: IntArray, count: int, last: FloatArray, d: int, now: float) -> int:
    """Add a device to those at which something happens now, and return how many there are.

    Args:
        stirred: Devices at which something happens now, ascending; changed. [D]
        count: The number of these devices.
        last: When each device was added last; changed. [D]
        d: The device.
        now: The present time, in seconds.
    """
    if last[d] == now:
        return count
    last[d] = now
    at = count
    while at > 0 and stirred[at - 1] > d:
        stirred[at] = stirred[at - 1]
        at -= 1
    stirred[at] = d
    return count + 1


@kernel
def time_list_schedule(
    compiled: Compiled,
    device: IntArray,
    priority: FloatArray,
    finish: FloatArray,
    limit: float,
) -> IntArray:
    """Schedule ops and return their order, as ``list_schedule`` does, with their finish times. [n]

    A schedule is given up when a device can no longer finish its ops within ``limit`` seconds. Then
    ``finish[0]`` is inf, and the order is not complete.

    Args:
        compiled: The compiled problem.
        device: Device of each op. [n]
        priority: Priority of each op; the highest one runs first. [n]
        finish: Output: seconds at which each op finishes. [n]
        limit: Seconds.
    """
    n, num_devices = compiled.times.shape
    links = compiled.links
    # Of ops: the number of inputs that are not computed yet, and when the latest of the others
    # arrives, in seconds. Of devices: when they are free, and the op that runs, -1 for none.
    missing = compiled.num_inputs.copy()
    free = zero_floats(num_devices)
    running = full_ints(num_devices, -1)
    channel_free = zero_floats(links.num_channels)
    ready_at = zero_floats(n)
    # A heap of events by time: the last input of an op arrives (the op's number), or device d may
    # be free (n + D - 1 - d).
    coming = empty_floats(n + num_devices)
    event = empty_ints(n + num_devices)
    num_coming = np.int64(0)
    zero = np.int64(0)  # a literal 0 would be another type to the compiler
    # Ready ops of each device: a heap by priority, in a part of the arrays that has room for all of
    # the device's ops.
    ready = empty_floats(n)
    ready_op = empty_ints(n)
    num_ready = zero_longs(num_devices)
    low = zero_longs(num_devices + 1)
    unbegun = zero_floats(num_devices)  # seconds of ops that each device has not begun
    for op in range(n):
        low[Index(device[op]) + ONE] += 1
        unbegun[Index(device[op])] += compiled.times[op, Index(device[op])]
    for d in range(num_devices):
        low[d + 1] += low[d]
    # Devices at which something happens now, ascending, and when something last did.
    stirred = empty_ints(num_devices)
    last_stirred = full_floats(num_devices, -1.0)
    num_stirred = 0
    # Ops without inputs are ready at once.
    for op in range(n):
        if missing[op] == 0:
            d = device[op]
            heap_push(ready, ready_op, low[d], num_ready[d], -priority[op], op)
            num_ready[d] += 1
            num_stirred = stir(stirred, num_stirred, last_stirred, d, 0.0)
    order = empty_ints(n)
    count = 0
    # The tensor that each device was sent last (none at first), and when it arrives there.
    stamp = full_indices(num_devices, len(compiled.size))
    arrivals = zero_floats(num_devices)
    # Seconds that the message of a tensor takes of its receiver, until an op there reads it.
    unpaid = zero_table(len(compiled.size) if links.receives_cost else 0, num_devices)
    time = 0.0
    while time < np.inf:
        # 1. All events of this instant: the inputs of an op are there, or a device is free.
        while num_coming > 0 and coming[0] <= time:
            happened = heap_pop(coming, event, zero, num_coming)
            num_coming -= 1
            if happened < n:
                op = Index(happened)
                d = Index(device[op])
                heap_push(
                    ready,
                    ready_op,
                    low[d],
                    num_ready[d],
                    -priority[op],
                    np.int64(happened),
                )
                num_ready[d] += 1
                num_stirred = stir(stirred, num_stirred, last_stirred, d, time)
                continue
            d = Index(n + num_devices - 1 - happened)
            num_stirred = stir(stirred, num_stirred, last_stirred, d, time)
            if running[d] < 0:
                continue
            # 2. The op that ran there has finished: send its tensors, each once to a device.
            op = Index(running[d])
            source = d
            running[d] = -1
            overhead = 0.0
            for j in range(
                Index(compiled.op_tensor_offset[op]),
                Index(compiled.op_tensor_offset[op + ONE]),
            ):
                tensor = Index(compiled.op_tensor[j])
                low_k = compiled.consumer_offset[tensor]
                high_k = compiled.consumer_offset[tensor + ONE]
                for k in range(Index(low_k), Index(high_k)):
                    consumer = Index(compiled.consumer[k])
                    target = Index(device[consumer])
                    if target == source:
                        arrivals[target] = time
                    elif stamp[target] != tensor:
                        stamp[target] = tensor
                        arrivals[target] = time
                        if has_link(links, source, target):
                            size = compiled.size[tensor]
                            end = send(
                                links, channel_free, free, source, target, size, time
                            )[1]
                            overhead += links.costs[source, target, SENDS]
                            arrivals[target] = (
                                end + links.costs[source, target, LATENCY]
                            )
                            if links.receives_cost:
                                paid = receive_time(links, source, target, size)
                                unpaid[tensor, target] = paid
                    missing[consumer] -= 1
                    ready_at[consumer] = max(ready_at[consumer], arrivals[target])
                    if missing[consumer] > 0:
                        continue
                    # That was its last input: the op is ready now, or when the message arrives.
                    ready_consumer = np.int64(compiled.consumer[k])
                    if ready_at[consumer] > time:
                        heap_push(
                            coming,
                            event,
                            zero,
                            num_coming,
                            ready_at[consumer],
                            ready_consumer,
                        )
                        num_coming += 1
                    else:
                        at = num_ready[target]
                        heap_push(
                            ready,
                            ready_op,
                            low[target],
                            at,
                            -priority[consumer],
                            ready_consumer,
                        )
                        num_ready[target] += 1
                        num_stirred = stir(
                            stirred, num_stirred, last_stirred, target, time
                        )
            # Sending takes time of the device, which is then free later.
            free[d] += overhead
            if free[d] > time:
                free_event = np.int64(n + num_devices - 1) - np.int64(d)
                heap_push(coming, event, zero, num_coming, free[d], free_event)
                num_coming += 1
        # 3. Free devices at which something happened run their ready op of highest priority.
        for i in range(num_stirred):
            d = Index(stirred[i])
            last_stirred[d] = -1.0
            if running[d] < 0 and num_ready[d] > 0 and free[d] <= time:
                op = heap_pop(ready, ready_op, low[d], num_ready[d])
                num_ready[d] -= 1
                order[count] = op
                count += 1
                running[d] = op
                begin = time
                if links.receives_cost:
                    begin += receive(compiled, unpaid, op, d)
                free[d] = begin + compiled.times[Index(op), d]
                finish[Index(op)] = free[d]
                # The device has to run all its ops that have not begun.
                if begin + unbegun[d] > limit:
                    finish[0] = np.inf
                    return order
                unbegun[d] -= compiled.times[Index(op), d]
                finish_event = np.int64(n + num_devices - 1) - np.int64(d)
                heap_push(coming, event, zero, num_coming, free[d], finish_event)
                num_coming += 1
        num_stirred = 0
        time = coming[0] if num_coming > 0 else np.inf
    return order


@inner()
def list_schedule_in_kernel(
    compiled: Compiled, device: IntArray, priority: FloatArray
) -> IntArray:
    """Schedule ops and return their order: ``list_schedule`` for kernels. [n]"""
    return time_list_schedule(
        compiled, device, priority, empty_floats(len(device)), np.inf
    )


def list_schedule(
    compiled: Compiled, device: IntArray, priority: FloatArray
) -> IntArray:
    """Schedule ops and return the order in which they start. [n]

    Transfers between devices without a link take no time, so that there always is an order; the
    simulator says that such a placement is infeasible.

    Args:
        compiled: The compiled problem.
        device: Device of each op. [n]
        priority: Priority of each op; the highest one runs first. [n]
    """
    # No kernel: each kernel that takes a problem's arrays is a third of a second of compilation.
    order: IntArray = time_list_schedule(
        compiled, device, priority, np.empty(len(device)), np.inf
    )
    return order


def turn_order(problem: Problem) -> IntArray:
    """Return the ops by (phase, micro-batch, topological position). [n]

    If that is no topological order, the topological order is returned.
    """
    turn = problem.phase.astype(np.int32) * problem.microbatches + problem.microbatch
    topological = problem.graph.topological_order
    order = topological[np.argsort(turn[topological], kind="stable")]
    position = np.empty(problem.num_ops, dtype=np.int64)
    position[order] = np.arange(problem.num_ops)
    source, target, _ = problem.graph.edges
    if (position[source] < position[target]).all():
        return order
    return topological


def list_priorities(problem: Problem) -> list[FloatArray]:
    """Return the priorities that ``complete`` tries; the highest one runs first. Each [n]"""
    n = problem.num_ops
    position = problem.graph.position.astype(np.float64)
    rank = mean_upward_rank(problem)
    if problem.microbatches == 1:
        return [rank, -position]
    by_microbatch = -(problem.microbatch * float(n) + position)
    by_turn = np.empty(n)
    by_turn[turn_order(problem)] = -np.arange(n, dtype=np.float64)
    return [by_microbatch, by_turn, rank]


def mean_upward_rank(problem: Problem) -> FloatArray:
    """Return the upward rank of each op in seconds, with mean costs over the cluster. [n]"""
    _, _, edge_bytes = problem.graph.edges
    edge_cost = mean_transfer_times(problem, edge_bytes)
    return upward_rank(problem.graph, mean_times(problem), edge_cost)


def mean_transfer_times(problem: Problem, size: FloatArray) -> FloatArray:
    """Return the seconds of messages over the cluster's mean link (``transfer.mean_seconds``)."""
    return mean_seconds(problem.cluster, size)


def complete(problem: Problem, compiled: Compiled, device: IntArray) -> IntArray:
    """Return the best of several orders for given devices, as the module's text says. [n]

    If an op cannot run on its device, there are no times to schedule by, and ``turn_order`` is
    returned.
    """
    device = np.ascontiguousarray(device, dtype=np.int32)
    if not np.isfinite(compiled.times[np.arange(len(device)), device]).all():
        return turn_order(problem)
    orders = [
        list_schedule(compiled, device, priority)
        for priority in list_priorities(problem)
    ]
    orders.append(turn_order(problem))
    order_rows = np.stack(orders)
    device_rows = np.tile(device, (len(orders), 1))
    step_times = step_times_kernel(compiled, device_rows, order_rows)
    return order_rows[int(np.argmin(step_times))]


def reverse_problem(compiled: Compiled) -> Compiled:
    """Return the compiled problem with all edges and links reversed, and a tensor for each edge."""
    # An edge is a consumption: reversed, the consumer produces a tensor for the producer.
    n = len(compiled.state)
    num_edges = len(compiled.consumer)
    tensor = np.repeat(np.arange(len(compiled.size)), np.diff(compiled.consumer_offset))
    producer = np.empty(len(compiled.size), np.int32)
    producer[compiled.op_tensor] = np.repeat(
        np.arange(n), np.diff(compiled.op_tensor_offset)
    )
    source = producer[tensor]
    outputs = np.bincount(compiled.consumer, minlength=n)
    inputs = np.bincount(source, minlength=n)
    by_consumer = np.argsort(compiled.consumer, kind="stable").astype(np.int32)
    return compiled._replace(
        num_inputs=inputs.astype(np.int32),
        op_tensor_offset=offsets(outputs),
        op_tensor=by_consumer,
        flow_offset=offsets(outputs),
        flow_op=source[by_consumer],
        flow_size=compiled.size[tensor][by_consumer],
        head=compiled.tail,
        tail=compiled.head,
        size=compiled.size[tensor],
        consumer_offset=np.arange(num_edges + 1, dtype=np.int32),
        consumer=source,
        input_offset=offsets(inputs),
        input_tensor=np.argsort(source, kind="stable").astype(np.int32),
        links=reverse_links(compiled.links),
    )


def find_times(
    compiled: Compiled, device: IntArray, order: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Simulate an order and return when each op starts and finishes, in seconds. [n], [n]"""
    n = len(device)
    start = np.zeros(n)
    finish = np.zeros(n)
    # Without rows for transfers, none is recorded.
    record = StepTimes(
        start=start,
        finish=finish,
        transfer=np.empty((0, 3), np.int32),
        service=np.empty((0, 3)),
    )
    run_kernel(compiled, device, order, np.inf, np.zeros(n), record)
    return start, finish


def finish_times(compiled: Compiled, device: IntArray, order: IntArray) -> FloatArray:
    """Return the seconds at which each op finishes. [n]"""
    _, finish = find_times(compiled, device, order)
    return finish


def compute_distances(
    compiled: Compiled, reversed_compiled: Compiled, device: IntArray, order: IntArray
) -> FloatArray:
    """Return the seconds from each op's start to the end, if all ops are as late as possible. [n]

    Args:
        compiled: The compiled problem.
        reversed_compiled: The result of ``reverse_problem(compiled)``.
        device: Device of each op. [n]
        order: All ops in the order of the schedule that is to be improved. [n]
    """
    finish = finish_times(compiled, device, order)
    backwards = list_schedule(reversed_compiled, device, finish)
    return finish_times(reversed_compiled, device, backwards)


def justify(
    compiled: Compiled, reversed_compiled: Compiled, device: IntArray, order: IntArray
) -> IntArray:
    """Return another order for the same devices, mostly a better one. [n]

    Arguments are those of `compute_distances`.
    """
    distance = compute_distances(compiled, reversed_compiled, device, order)
    return list_schedule(compiled, device, distance)
