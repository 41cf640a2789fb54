"""List scheduling: an order of ops for given devices (Graham, 1966), with the links' queues.

A free device takes the op of highest priority among its ops whose inputs have all arrived; it never
idles on purpose. Transfers queue first come, first served, and take time of sender and receiver, as
in the simulator (``transfer``). Complexity: O((n + transfers) log n).

``complete`` gives sequences to a placement that has none. It tries list scheduling by several
priorities, and the fixed orders that these priorities come from. The shortest simulated step wins,
the first among equals:

1. upward rank with the mean costs of the cluster (Topcuoglu et al., 2002);
2. micro-batches in turn: (micro-batch, topological position), so that a device finishes the oldest
   micro-batch first and goes on to backward ops as they come (one forward, one backward);
3. (phase, micro-batch, topological position): all forward ops of all micro-batches first.

Justification: a better order of ops for given devices, from the schedule read backwards.

Formulation (forward-backward improvement of project scheduling: Li and Willis, 1992; Valls,
Ballestin and Quintanilla, 2005): list scheduling of the reversed graph, by the finish times of the
present schedule, moves every op as late as its device and links allow. The time from an op's start
there to the end becomes its priority; unlike an upward rank, which only knows paths, it includes
the queues. List scheduling by this priority then moves every op as early as possible.

With micro-batches this decides most of the order: copies of an op have equal upward ranks, but
different distances to the end. Deviations: links queue in the reversed graph too, with one message
for each consumer, since that graph has no multicast; there is one pass, because more change little.
Complexity: two list schedules and two simulations.
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
    linked,
    mean_seconds,
    receive_time,
    reverse_links,
    send,
)


@inner(_nrt=False)
def receive(compiled: Compiled, unpaid: FloatArray, op: int, d: int) -> float:
    """Return the seconds that messages for ``op`` take of device ``d``; only their first consumer
    pays.

    ``unpaid``: seconds of every tensor's message to each device, 0 if paid; changed. [T, D]
    """
    seconds = 0.0
    for k in range(compiled.input_offset[op], compiled.input_offset[op + 1]):
        seconds += unpaid[compiled.input_tensor[k], d]
        unpaid[compiled.input_tensor[k], d] = 0.0
    return seconds


@inner(_nrt=False)
def stir(stirred: IntArray, count: int, last: FloatArray, d: int, now: float) -> int:
    """Put device ``d`` among those at which something happens now; return how many there are."""
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
    """Return what ``list_schedule`` does, and when each op finishes as far as it knows: ``finish``,
    out. [n]

    A schedule that must take more than ``limit`` seconds, since one of its devices could not do
    what it has left by then, is given up: ``finish[0]`` is inf, and the order is cut off.
    """
    n, num_devices = compiled.times.shape
    links = compiled.links
    # Of ops: inputs that are not made yet, and seconds when the latest of the others is there. Of
    # devices: seconds until which they are busy, and the op that runs, -1 for none.
    missing = compiled.num_inputs.copy()
    free = zero_floats(num_devices)
    running = full_ints(num_devices, -1)
    channel_free = zero_floats(links.num_channels)
    ready_at = zero_floats(n)
    # What happens next: an op's inputs arrive, or, as n + D - 1 - d, device d may be free.
    coming = empty_floats(n + num_devices)
    event = empty_ints(n + num_devices)
    num_coming = np.int64(0)
    zero = np.int64(0)  # A 0 is a type of its own to the compiler.
    # Ready ops of each device: a heap in a part of the arrays that has room for all its ops.
    ready, ready_op = empty_floats(n), empty_ints(n)  # on each device, by priority
    num_ready = zero_longs(num_devices)
    low = zero_longs(num_devices + 1)
    unbegun = zero_floats(num_devices)  # seconds of ops that a device has not begun
    for op in range(n):
        low[Index(device[op]) + ONE] += 1
        unbegun[Index(device[op])] += compiled.times[op, Index(device[op])]
    for d in range(num_devices):
        low[d + 1] += low[d]
    # Devices at which something happened, ascending, and when it last did.
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
    stamp = full_indices(num_devices, len(compiled.size))
    arrivals = zero_floats(num_devices)
    # Seconds that a message takes of its receiver, until an op there consumes it.
    unpaid = zero_table(len(compiled.size) if links.receives_cost else 0, num_devices)
    time = 0.0
    while time < np.inf:
        # 1. All that happens now: inputs of an op have come, or a device is free.
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
            # 2. What ran there has finished: its tensors are sent, each once to a device.
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
                        if linked(links, source, target):
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
                    # The last input of that op: it is ready now, or when the message arrives.
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
            # A device that has to send is free later.
            free[d] += overhead
            if free[d] > time:
                free_event = np.int64(n + num_devices - 1) - np.int64(d)
                heap_push(coming, event, zero, num_coming, free[d], free_event)
                num_coming += 1
        # 3. Free devices at which something happened take their ready op of highest priority.
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
    """Return what ``list_schedule`` does, for kernels. [n]"""
    return time_list_schedule(
        compiled, device, priority, empty_floats(len(device)), np.inf
    )


def list_schedule(
    compiled: Compiled, device: IntArray, priority: FloatArray
) -> IntArray:
    """Return the order in which ops start when free devices take the ready op of highest priority.

    Pairs without a link are taken as instant, so that an order always comes out; the simulator
    says that the placement is infeasible. It is no kernel of its own: one more that takes a
    problem's arrays is a third of a second of compilation. [n]
    """
    order: IntArray = time_list_schedule(
        compiled, device, priority, np.empty(len(device)), np.inf
    )
    return order


def turn_order(problem: Problem) -> IntArray:
    """Return the ops by (phase, micro-batch, topological position): a topological order. [n]"""
    turn = problem.phase.astype(np.int32) * problem.microbatches + problem.microbatch
    listed = problem.graph.topological_order
    order = listed[np.argsort(turn[listed], kind="stable")]
    position = np.empty(problem.num_ops, dtype=np.int64)
    position[order] = np.arange(problem.num_ops)
    source, target, _ = problem.graph.edges
    if (position[source] < position[target]).all():
        return order
    return listed


def priorities(problem: Problem) -> list[FloatArray]:
    """Return the priorities that ``complete`` tries, highest first to run. Each [n]."""
    n = problem.num_ops
    position = problem.graph.position.astype(np.float64)
    rank = mean_upward_rank(problem)
    if problem.microbatches == 1:
        return [rank, -position]
    turn = np.empty(n)
    turn[turn_order(problem)] = -np.arange(n, dtype=np.float64)
    return [-(problem.microbatch * float(n) + position), turn, rank]


def mean_upward_rank(problem: Problem) -> FloatArray:
    """Return the upward rank with mean op times and mean transfer times over the cluster, in
    seconds. [n]
    """
    size = problem.graph.edges[2]
    return upward_rank(
        problem.graph, mean_times(problem), mean_transfer_times(problem, size)
    )


def mean_transfer_times(problem: Problem, size: FloatArray) -> FloatArray:
    """Return the seconds that ``size`` bytes take over the cluster's mean link:
    ``transfer.mean_seconds``.
    """
    return mean_seconds(problem.cluster, size)


def complete(problem: Problem, compiled: Compiled, device: IntArray) -> IntArray:
    """Return the best order found for given devices, as the module's text says. [n]

    Where an op cannot run on its device, there are no times to schedule by: micro-batches in turn.
    """
    device = np.ascontiguousarray(device, dtype=np.int32)
    if not np.isfinite(compiled.times[np.arange(len(device)), device]).all():
        return turn_order(problem)
    orders = [
        list_schedule(compiled, device, priority) for priority in priorities(problem)
    ]
    orders += [turn_order(problem)]
    batch = np.stack(orders)
    times = step_times_kernel(compiled, np.tile(device, (len(batch), 1)), batch)
    return batch[int(np.argmin(times))]


def reverse_problem(compiled: Compiled) -> Compiled:
    """Return the same ops and devices with every edge and link turned round; a tensor an edge."""
    n = len(compiled.state)
    edges = len(compiled.consumer)
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
        consumer_offset=np.arange(edges + 1, dtype=np.int32),
        consumer=source,
        input_offset=offsets(inputs),
        input_tensor=np.argsort(source, kind="stable").astype(np.int32),
        links=reverse_links(compiled.links),
    )


def find_times(
    compiled: Compiled, device: IntArray, order: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Start and finish of each op in seconds. [n], [n]"""
    n = len(device)
    start = np.zeros(n)
    finish = np.zeros(n)
    nothing = np.empty((0, 3), np.int32)
    nowhere = np.empty((0, 3))
    record = StepTimes(
        start=start,
        finish=finish,
        transfer=nothing,
        service=nowhere,
    )
    run_kernel(compiled, device, order, np.inf, np.zeros(n), record)
    return start, finish


def finish_times(compiled: Compiled, device: IntArray, order: IntArray) -> FloatArray:
    """Return the seconds at which each op finishes. [n]"""
    return find_times(compiled, device, order)[1]


def distances(
    compiled: Compiled, reversed_compiled: Compiled, device: IntArray, order: IntArray
) -> FloatArray:
    """Return the seconds from each op's start to the end where all ops are as late as can be. [n]

    Args:
        compiled: the compiled problem, as it is and not reversed.
        reversed_compiled: ``reverse_problem(c)``.
        device: device of each op. [n]
        order: all ops as the schedule to improve has them. [n]
    """
    backwards = list_schedule(
        reversed_compiled, device, finish_times(compiled, device, order)
    )
    return finish_times(reversed_compiled, device, backwards)


def justify(
    compiled: Compiled, reversed_compiled: Compiled, device: IntArray, order: IntArray
) -> IntArray:
    """Return another order for the same devices, mostly a better one; arguments as ``distances``.
    [n]
    """
    return list_schedule(
        compiled, device, distances(compiled, reversed_compiled, device, order)
    )
