"""A compiled problem without consumptions that others imply: the same schedules in less time.

Formulation: ops of a unit are on one device, so an edge inside a unit sends no message and only
says who is first; where another path says so too, it is left out. Of a tensor's consumers in one
unit those are left out that come after another one of them on some path: the message is there for
that one already. What is left is the transitive reduction (Aho, Garey and Ullman, 1972) of such
edges. In coarse problems of training steps, where a forward group feeds its own backward groups,
that is half of all consumptions. Start and finish of ops stay as they are; memory does not, nor do
messages of the reversed problem, which go edge by edge.

Complexity: O(edges n / 64) words; problems of more than ``MOST_OPS`` stay as they are.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import BoolArray, IntArray, LongArray
from gnnplace.graph import ComputationGraph
from gnnplace.graph.jit import kernel
from gnnplace.problem import Problem
from gnnplace.simulation.compiled import Compiled

MOST_OPS = 20_000
WORD = 64  # ops whose bits are one number


def lean(problem: Problem, compiled: Compiled) -> Compiled:
    """The compiled problem for list schedules alone.

    Args:
        problem: the problem that is scheduled.
        compiled: the problem compiled with all its consumptions.
    """
    if problem.num_ops > MOST_OPS:
        return compiled
    graph = problem.graph
    kept = needed(graph, problem.unit_of)
    tensor, consumer = graph.consumption_tensor[kept], graph.consumer[kept]
    sent = np.bincount(tensor, minlength=graph.num_tensors)
    listed = compiled.op_tensor[sent[compiled.op_tensor] > 0]
    by_consumer = np.argsort(consumer, kind="stable")
    inputs = np.bincount(consumer, minlength=problem.num_ops)
    return compiled._replace(
        num_inputs=inputs.astype(np.int32),
        op_tensor_offset=_offset(np.bincount(graph.producer[listed], minlength=problem.num_ops)),
        op_tensor=listed,
        consumer_offset=_offset(sent),
        consumer=consumer.copy(),
        input_offset=_offset(inputs),
        input_tensor=tensor[by_consumer],
    )


def _offset(counts: LongArray) -> IntArray:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


def needed(graph: ComputationGraph, unit: IntArray) -> BoolArray:
    """Whether each entry of ``graph.consumer`` must be kept, by the units of ops. [consumptions]"""
    follow = graph.topological_order, graph.successor_offset, graph.successor
    behind = np.zeros((graph.num_ops, graph.num_ops // WORD + 1), dtype=np.int64)
    kept = np.ones(len(graph.consumer), dtype=bool)
    _mark_needed(*follow, graph.producer, graph.consumer_offset, graph.consumer, unit, behind, kept)
    return kept


@kernel
def _mark_needed(
    order: IntArray,
    offset: IntArray,
    successor: IntArray,
    producer: IntArray,
    consumer_offset: IntArray,
    consumer: IntArray,
    unit: IntArray,
    behind: LongArray,
    kept: BoolArray,
) -> None:
    """``needed``; ``behind``, zeros, becomes the ops that paths lead to from each, as bits."""
    for i in range(len(order) - 1, -1, -1):
        op = order[i]
        for j in range(offset[op], offset[op + 1]):
            other = successor[j]
            for word in range(behind.shape[1]):
                behind[op, word] |= behind[other, word]
            behind[op, other // WORD] |= np.int64(1) << np.int64(other % WORD)
    for k in range(len(producer)):
        source, low, high = producer[k], consumer_offset[k], consumer_offset[k + 1]
        for i in range(low, high):
            op = consumer[i]
            word, bit = op // WORD, np.int64(op % WORD)
            if unit[op] == unit[source]:
                for j in range(offset[source], offset[source + 1]):
                    if (behind[successor[j], word] >> bit) & 1:
                        kept[i] = False
            else:
                for j in range(low, high):
                    other = consumer[j]
                    if unit[other] == unit[op] and (behind[other, word] >> bit) & 1:
                        kept[i] = False
