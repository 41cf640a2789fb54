"""A problem as a flat bundle of arrays that numba kernels take.

`make_lean`: a compiled problem without edges that others imply, with the same schedules in less
time.

Formulation: the ops of a unit are on one device, so that an edge inside a unit sends no message and
only orders two ops. It is left out if another path orders them too. Of a tensor's consumers in one
unit, those that follow another of them on some path are left out, because the message has already
arrived for that one. What remains is the transitive reduction (Aho, Garey and Ullman, 1972) of
such edges. In coarse problems of training steps, where a forward group feeds its own backward
groups, this removes half of all consumptions. Starts and finishes of ops do not change; memory
does, and so do messages of the reversed problem, which are sent edge by edge.

Complexity: O(edges n / 64) words; problems of more than ``MOST_OPS`` ops are not reduced.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray, LongArray
from gnnplace.graph import (
    ComputationGraph,
    downward_rank,
    group_entries,
    kernel,
    rank_after,
)
from gnnplace.problem import Problem
from gnnplace.simulation.transfer import Links, make_links


class Compiled(NamedTuple):
    """Arrays of one problem; n ops, T tensors, D devices.

    Attributes:
        times: seconds of each op on each device, inf where it cannot run. [n, D]
        state: bytes of each op. [n]
        num_inputs: tensors each op consumes. [n]
        op_tensor_offset: Index where each op's tensors start in ``op_tensor``. [n + 1]
        op_tensor: tensors by producer. [T]
        size: bytes. [T]
        consumer_offset: Index where each tensor's consumers start in ``consumer``. [T + 1]
        consumer: consumers of all tensors.
        input_offset: Index where each op's inputs start in ``input_tensor``. [n + 1]
        input_tensor: tensors each op consumes, in listing order.
        flow_offset: Index where each op's consumptions start in ``flow_op``. [n + 1]
        flow_op: consumers of all of an op's tensors, one op after the other.
        flow_size: bytes of the tensor of each of these.
        head: least seconds from the beginning to an op's start. [n]
        tail: least seconds from an op's finish to the end of the step. [n]
        unit_of: placement unit of each op. [n]
        memory: bytes. [D]
        links: what messages between devices cost, in seconds.
    """

    times: FloatArray
    state: FloatArray
    num_inputs: IntArray
    op_tensor_offset: IntArray
    op_tensor: IntArray
    size: FloatArray
    consumer_offset: IntArray
    consumer: IntArray
    input_offset: IntArray
    input_tensor: IntArray
    flow_offset: IntArray
    flow_op: IntArray
    flow_size: FloatArray
    head: FloatArray
    tail: FloatArray
    unit_of: IntArray
    memory: FloatArray
    links: Links


def compute_least_times(problem: Problem) -> FloatArray:
    """Return the seconds of each op on its fastest allowed device; 0 where there is none. [n]"""
    times = problem.kind_times.min(axis=1)
    pinned = np.flatnonzero(problem.pin >= 0)
    times[pinned] = problem.kind_times[pinned, problem.kind_of[problem.pin[pinned]]]
    if problem.forbid is not None:
        barred = np.flatnonzero(problem.forbid.any(axis=1))
        allowed_times = np.where(problem.allowed[barred], problem.times[barred], np.inf)
        times[barred] = allowed_times.min(axis=1)
    return np.where(np.isfinite(times), times, 0.0)


def mean_times(problem: Problem) -> FloatArray:
    """Return the mean seconds of each op over the devices whose kind can run it; 0 where none can.
    [n]
    """
    able = np.isfinite(problem.kind_times)
    devices = np.bincount(problem.kind_of).astype(np.float64)
    total = np.where(able, problem.kind_times, 0.0) @ devices
    return np.asarray(total / np.maximum(able @ devices, 1.0))


def tails(problem: Problem) -> FloatArray:
    """Return the longest path of least times after each op, the op itself not counted. [n]"""
    graph = problem.graph
    return rank_after(
        graph, compute_least_times(problem), np.zeros(len(graph.successor))
    )


def compute_longest_path(problem: Problem) -> float:
    """Return the seconds of the longest path of least times, transfers free."""
    return float((tails(problem) + compute_least_times(problem)).max())


def compile_problem(problem: Problem) -> Compiled:
    """Bundle the arrays of ``problem``."""
    graph = problem.graph
    cluster = problem.cluster
    cost = compute_least_times(problem)
    input_offset, by_consumer = group_entries(graph.consumer.copy(), graph.num_ops)
    # Flows are in the order of the op's tensors and their consumers.
    tensor = graph.consumption_tensor
    offset, by_source = group_entries(graph.producer[tensor], graph.num_ops)
    return Compiled(
        times=problem.times,
        state=problem.state.astype(np.float64),
        num_inputs=np.diff(input_offset),
        op_tensor_offset=graph.op_tensor_offset,
        op_tensor=graph.op_tensor,
        size=graph.size.copy(),  # Copies can be written to: one type in kernels, as reversed.
        consumer_offset=graph.consumer_offset.copy(),
        consumer=graph.consumer.copy(),
        input_offset=input_offset,
        input_tensor=graph.consumption_tensor[by_consumer],
        flow_offset=offset,
        flow_op=graph.consumer[by_source],
        flow_size=graph.size[tensor[by_source]],
        head=downward_rank(graph, cost, np.zeros(len(graph.successor))),
        tail=tails(problem),
        unit_of=problem.unit_of,
        memory=cluster.memory,
        links=make_links(cluster),
    )


MOST_OPS = 20_000
WORD = 64  # ops whose bits are one number


def make_lean(problem: Problem, compiled: Compiled) -> Compiled:
    """Return the compiled problem for list schedules alone.

    Args:
        problem: the problem that is scheduled.
        compiled: the problem compiled with all its consumptions.
    """
    if problem.num_ops > MOST_OPS:
        return compiled
    graph = problem.graph
    is_needed = find_needed_edges(graph, problem.unit_of)
    tensor = graph.consumption_tensor[is_needed]
    consumer = graph.consumer[is_needed]
    sent = np.bincount(tensor, minlength=graph.num_tensors)
    listed = compiled.op_tensor[sent[compiled.op_tensor] > 0]
    by_consumer = np.argsort(consumer, kind="stable")
    inputs = np.bincount(consumer, minlength=problem.num_ops)
    return compiled._replace(
        num_inputs=inputs.astype(np.int32),
        op_tensor_offset=offsets(
            np.bincount(graph.producer[listed], minlength=problem.num_ops)
        ),
        op_tensor=listed,
        consumer_offset=offsets(sent),
        consumer=consumer.copy(),
        input_offset=offsets(inputs),
        input_tensor=tensor[by_consumer],
    )


def offsets(counts: LongArray) -> IntArray:
    """Return where each of several runs begins that lie behind each other, and where the
    last ends.
    """
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


def find_needed_edges(graph: ComputationGraph, unit: IntArray) -> BoolArray:
    """Return whether each entry of ``graph.consumer`` must be kept, by the units of ops.
    [consumptions]
    """
    arrays = GraphArrays(
        order=graph.topological_order,
        offset=graph.successor_offset,
        successor=graph.successor,
        producer=graph.producer,
        consumer_offset=graph.consumer_offset,
        consumer=graph.consumer,
    )
    behind = np.zeros((graph.num_ops, graph.num_ops // WORD + 1), dtype=np.int64)
    is_needed = np.ones(len(graph.consumer), dtype=bool)
    _mark_needed(arrays, unit, behind, is_needed)
    return is_needed


class GraphArrays(NamedTuple):
    """A graph as its CSR arrays, by ops and by tensors.

    Attributes:
        order: Ops, producers first. [n]
        offset: Index where each op's successors start in ``successor``. [n + 1]
        successor: Distinct successors of all ops.
        producer: The op that makes each tensor. [T]
        consumer_offset: Index where each tensor's consumers start in ``consumer``. [T + 1]
        consumer: Consumers of all tensors.
    """

    order: IntArray
    offset: IntArray
    successor: IntArray
    producer: IntArray
    consumer_offset: IntArray
    consumer: IntArray


@kernel
def _mark_needed(
    graph: GraphArrays, unit: IntArray, behind: LongArray, kept: BoolArray
) -> None:
    """Write the result of `find_needed_edges`; ``behind``, zeros, becomes the ops that paths lead
    to from each, as bits.
    """
    order, offset, successor, producer, consumer_offset, consumer = graph
    for i in range(len(order) - 1, -1, -1):
        op = order[i]
        for j in range(offset[op], offset[op + 1]):
            consumer_op = successor[j]
            for word in range(behind.shape[1]):
                behind[op, word] |= behind[consumer_op, word]
            behind[op, consumer_op // WORD] |= np.int64(1) << np.int64(
                consumer_op % WORD
            )
    for k in range(len(producer)):
        source = producer[k]
        low = consumer_offset[k]
        high = consumer_offset[k + 1]
        for i in range(low, high):
            op = consumer[i]
            word = op // WORD
            bit = np.int64(op % WORD)
            if unit[op] == unit[source]:
                for j in range(offset[source], offset[source + 1]):
                    if (behind[successor[j], word] >> bit) & 1:
                        kept[i] = False
            else:
                for j in range(low, high):
                    consumer_op = consumer[j]
                    if (
                        unit[consumer_op] == unit[op]
                        and (behind[consumer_op, word] >> bit) & 1
                    ):
                        kept[i] = False
