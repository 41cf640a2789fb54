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
from numpy.typing import NDArray

from gnnplace.graph import ComputationGraph
from gnnplace.problem import Problem
from gnnplace.simulation.compiled import Compiled

IntArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]
MOST_OPS = 20_000


def lean(problem: Problem, compiled: Compiled) -> Compiled:
    """The compiled problem for list schedules alone.

    Args:
        problem: the problem.
        compiled: all of it.
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


def _offset(counts: NDArray[np.int64]) -> IntArray:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


def needed(graph: ComputationGraph, unit: IntArray) -> BoolArray:
    """Whether each entry of ``graph.consumer`` must be kept, by the units of ops. [consumptions]"""
    behind = _descendants(graph)
    kept = np.ones(len(graph.consumer), dtype=bool)
    for k in range(graph.num_tensors):
        low, high = graph.consumer_offset[k], graph.consumer_offset[k + 1]
        source, consumers = int(graph.producer[k]), graph.consumer[low:high].tolist()
        for i, op in enumerate(consumers):
            if unit[op] == unit[source]:
                others = [w for w in graph.successors(source).tolist() if w != op]
            else:
                others = [w for w in consumers if w != op and unit[w] == unit[op]]
            kept[low + i] = not any(behind[w] >> op & 1 for w in others)
    return kept


def _descendants(graph: ComputationGraph) -> list[int]:
    """The ops that paths lead to from each op, as the bits of a number. [n]"""
    behind = [0] * graph.num_ops
    for op in graph.topological_order[::-1].tolist():
        reached = 0
        for other in graph.successors(op).tolist():
            reached |= behind[other] | 1 << other
        behind[op] = reached
    return behind
