"""Justification: a better order of ops for given devices, from the schedule read backwards.

Formulation (forward-backward improvement of project scheduling: Li and Willis, 1992; Valls,
Ballestin and Quintanilla, 2005): list scheduling of the reversed graph by the finish times of the
schedule so far moves every op as late as its devices and links let it; the time from an op's start
there to the end is a priority that knows the queues, where an upward rank knows paths alone. List
scheduling by it moves every op as early as it can be.

With micro-batches that is most of the order: copies of an op have equal upward ranks, but not
equal distances to the end. Deviations: links queue backwards too, each consumer with a message of
its own, as the reversed graph has no multicast; one pass, because more change little.
Complexity: two list schedules and two simulations.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import FloatArray, IntArray, LongArray
from gnnplace.simulation.compiled import Compiled
from gnnplace.simulation.kernels import run_kernel
from gnnplace.simulation.list_scheduling import list_schedule
from gnnplace.simulation.transfer import reversed_links


def reversed_problem(compiled: Compiled) -> Compiled:
    """The same ops and devices with every edge and link turned round; a tensor an edge."""
    n, edges = len(compiled.state), len(compiled.consumer)
    tensor = np.repeat(np.arange(len(compiled.size)), np.diff(compiled.consumer_offset))
    producer = np.empty(len(compiled.size), np.int32)
    producer[compiled.op_tensor] = np.repeat(np.arange(n), np.diff(compiled.op_tensor_offset))
    source = producer[tensor]
    outputs = np.bincount(compiled.consumer, minlength=n)
    inputs = np.bincount(source, minlength=n)
    by_consumer = np.argsort(compiled.consumer, kind="stable").astype(np.int32)
    return compiled._replace(
        num_inputs=inputs.astype(np.int32),
        op_tensor_offset=_offset(outputs),
        op_tensor=by_consumer,
        flow_offset=_offset(outputs),
        flow_op=source[by_consumer],
        flow_size=compiled.size[tensor][by_consumer],
        head=compiled.tail,
        tail=compiled.head,
        size=compiled.size[tensor],
        consumer_offset=np.arange(edges + 1, dtype=np.int32),
        consumer=source,
        input_offset=_offset(inputs),
        input_tensor=np.argsort(source, kind="stable").astype(np.int32),
        links=reversed_links(compiled.links),
    )


def _offset(counts: LongArray) -> IntArray:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


def times_of(
    compiled: Compiled, device: IntArray, order: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Start and finish of each op in seconds. [n], [n]"""
    n = len(device)
    start, finish = np.zeros(n), np.zeros(n)
    nothing, nowhere = np.empty((0, 3), np.int32), np.empty((0, 3))
    run_kernel(compiled, device, order, np.inf, np.zeros(n), start, finish, nothing, nowhere)
    return start, finish


def finish_times(compiled: Compiled, device: IntArray, order: IntArray) -> FloatArray:
    """Seconds at which each op finishes. [n]"""
    return times_of(compiled, device, order)[1]


def distances(
    compiled: Compiled, reversed_compiled: Compiled, device: IntArray, order: IntArray
) -> FloatArray:
    """Seconds from each op's start to the end where all ops are as late as can be. [n]

    Args:
        compiled: the compiled problem, as it is and not reversed.
        reversed_compiled: ``reversed_problem(c)``.
        device: device of each op. [n]
        order: all ops as the schedule to improve has them. [n]
    """
    backwards = list_schedule(reversed_compiled, device, finish_times(compiled, device, order))
    return finish_times(reversed_compiled, device, backwards)


def justify(
    compiled: Compiled, reversed_compiled: Compiled, device: IntArray, order: IntArray
) -> IntArray:
    """Another order for the same devices, mostly a better one; arguments as ``distances``. [n]"""
    return list_schedule(compiled, device, distances(compiled, reversed_compiled, device, order))
