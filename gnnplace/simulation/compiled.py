"""A problem as a flat bundle of arrays that numba kernels take."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.graph import ComputationGraph
from gnnplace.graph.kernels import grouped
from gnnplace.graph.orders import downward_rank, rank_after
from gnnplace.problem import Problem
from gnnplace.simulation.transfer import Links, make_links


class Compiled(NamedTuple):
    """Arrays of one problem; n ops, T tensors, D devices.

    Attributes:
        times: seconds of each op on each device, inf where it cannot run. [n, D]
        state: bytes of each op. [n]
        num_inputs: tensors each op consumes. [n]
        op_tensor_offset: where each op's tensors start in ``op_tensor``. [n + 1]
        op_tensor: tensors by producer. [T]
        size: bytes. [T]
        consumer_offset: where each tensor's consumers start in ``consumer``. [T + 1]
        consumer: consumers of all tensors.
        input_offset: where each op's inputs start in ``input_tensor``. [n + 1]
        input_tensor: tensors each op consumes, in listing order.
        flow_offset: where each op's consumptions start in ``flow_op``. [n + 1]
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


def least_times(problem: Problem) -> FloatArray:
    """Seconds of each op on its fastest allowed device; 0 where there is none. [n]"""
    times = problem.kind_times.min(axis=1)
    pinned = np.flatnonzero(problem.pin >= 0)
    times[pinned] = problem.kind_times[pinned, problem.kind_of[problem.pin[pinned]]]
    if problem.forbid is not None:
        barred = np.flatnonzero(problem.forbid.any(axis=1))
        left = np.where(problem.allowed[barred], problem.times[barred], np.inf)
        times[barred] = left.min(axis=1)
    return np.where(np.isfinite(times), times, 0.0)


def mean_times(problem: Problem) -> FloatArray:
    """Mean seconds of each op over the devices whose kind can run it; 0 where none can. [n]"""
    able = np.isfinite(problem.kind_times)
    devices = np.bincount(problem.kind_of).astype(np.float64)
    total = np.where(able, problem.kind_times, 0.0) @ devices
    return np.asarray(total / np.maximum(able @ devices, 1.0))


def tails(problem: Problem) -> FloatArray:
    """Longest path of least times after each op, the op itself not counted. [n]"""
    graph = problem.graph
    return rank_after(graph, least_times(problem), np.zeros(len(graph.successor)))


def longest_path(problem: Problem) -> float:
    """Seconds of the longest path of least times, transfers free."""
    return float((tails(problem) + least_times(problem)).max())


def compile_problem(problem: Problem) -> Compiled:
    """Bundles the arrays of ``problem``."""
    graph, cluster, cost = problem.graph, problem.cluster, least_times(problem)
    input_offset, by_consumer = grouped(graph.consumer.copy(), graph.num_ops)
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
        **_flows(graph),
        head=downward_rank(graph, cost, np.zeros(len(graph.successor))),
        tail=tails(problem),
        unit_of=problem.unit_of,
        memory=cluster.memory,
        links=make_links(cluster),
    )


def _flows(graph: ComputationGraph) -> dict[str, NDArray[Any]]:
    """Consumptions by producer, in the order of the op's tensors and their consumers."""
    tensor = graph.consumption_tensor
    offset, by_source = grouped(graph.producer[tensor], graph.num_ops)
    return {
        "flow_offset": offset,
        "flow_op": graph.consumer[by_source],
        "flow_size": graph.size[tensor[by_source]],
    }
