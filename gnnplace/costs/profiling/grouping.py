"""A program's graph with groups of ops as its ops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.graph import ComputationGraph
from gnnplace.graph.computation_graph import quotient, united
from gnnplace.tracing.program import Program
from gnnplace.tracing.structure import ProgramGraph


@dataclass(frozen=True)
class GroupedGraph:
    """Groups as arrays; see `gnnplace.problem.Problem` for what they mean.

    Attributes:
        graph: A tensor for each value that leaves its group, one for all of a group's values in
            the same memory (a tensor and its views), as large as the largest; an order (a tensor
            of no bytes) where nothing else links two groups.
        phase: The phase of each group. [num_groups]
        colocate: Classes that share a group are one. [num_groups]
        module: The module of each group's costliest op. [num_groups]
        state: Bytes of parameters, optimizer state and buffers. [num_groups]
        inputs: Bytes of the user's inputs. [num_groups]
        members: Ops of the program, in its order. [num_groups]
    """

    graph: ComputationGraph
    phase: NDArray[np.int8]
    colocate: tuple[str | None, ...]
    module: tuple[str | None, ...]
    state: FloatArray
    inputs: FloatArray
    members: tuple[tuple[str, ...], ...]


def group_graph(
    program: Program,
    fine: ProgramGraph,
    group: IntArray,
    cost: FloatArray,
    apart: bool = False,
) -> GroupedGraph:
    """Group a program's graph.

    Args:
        program: The program, for the names of its ops.
        fine: The graph of the program's ops.
        group: Group of each op, as `gnnplace.graph.coarsening.coarsen` makes them. [num_ops]
        cost: Estimated seconds; the costliest op names its group. [num_ops]
        apart: Keep a tensor of its own for each view, with its bytes, as the shipped data sets do.
    """
    count = int(group.max()) + 1
    heads = _heads(group, cost, count)
    order_only = np.array([not name for name in fine.values], dtype=np.bool_)
    whole = fine.graph
    if not apart:
        whole, order_only = _in_one_memory(fine, group)
    members: list[list[str]] = [[] for _ in range(count)]
    for i, op in enumerate(program.ops):
        members[group[i]].append(op.name)
    return GroupedGraph(
        graph=quotient(whole, group, [program.ops[i].name for i in heads], order_only),
        phase=fine.phase[heads],
        colocate=_classes(fine.colocate, group, count),
        module=tuple(fine.module[i] for i in heads),
        state=np.bincount(group, fine.state, count).astype(np.float64),
        inputs=np.bincount(group, fine.inputs, count).astype(np.float64),
        members=tuple(tuple(names) for names in members),
    )


def _in_one_memory(fine: ProgramGraph, group: IntArray) -> tuple[ComputationGraph, BoolArray]:
    """The graph with one tensor for those of a group that share memory; which are but orders."""
    graph = fine.graph
    own = np.where(fine.root >= 0, fine.root, graph.num_tensors + np.arange(graph.num_tensors))
    key = own * (int(group.max()) + 1) + group[graph.producer]
    _, first, label = np.unique(key, return_index=True, return_inverse=True)
    place = np.argsort(np.argsort(first))[label]  # in the order of the first of each
    first = np.sort(first)
    size = np.zeros(len(first))
    np.maximum.at(size, place, np.where(fine.root >= 0, graph.size, 0.0))
    tensor = place[np.repeat(np.arange(graph.num_tensors), np.diff(graph.consumer_offset))]
    pairs = np.unique(np.stack([tensor, graph.consumer]), axis=1)
    merged = ComputationGraph(
        names=graph.names,
        producer=graph.producer[first],
        size=size,
        consumer_offset=np.searchsorted(pairs[0], np.arange(len(first) + 1)).astype(np.int32),
        consumer=pairs[1].astype(np.int32),
    )
    return merged, np.array([not fine.values[k] for k in first], dtype=np.bool_)


def _heads(group: IntArray, cost: FloatArray, count: int) -> list[int]:
    heads = [-1] * count
    for i, g in enumerate(group.tolist()):
        if heads[g] < 0 or cost[i] > cost[heads[g]]:
            heads[g] = i
    return heads


def _classes(
    colocate: tuple[str | None, ...], group: IntArray, count: int
) -> tuple[str | None, ...]:
    """Class of each group: classes that meet in a group are united under the first name."""
    names = list(dict.fromkeys(name for name in colocate if name is not None))
    index = {name: i for i, name in enumerate(names)}
    label = np.array([-1 if name is None else index[name] for name in colocate], dtype=np.int32)
    return tuple(None if k < 0 else names[k] for k in united(label, group, count).tolist())
