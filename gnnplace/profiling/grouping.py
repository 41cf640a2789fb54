"""A program's graph with groups of ops as its ops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnplace.graph import ComputationGraph
from gnnplace.tracing.program import Program
from gnnplace.tracing.structure import ProgramGraph


@dataclass(frozen=True)
class GroupedGraph:
    """Groups as arrays; see `gnnplace.problem.Problem` for what they mean.

    Attributes:
        graph: A tensor for each value that leaves its group; an order (a tensor of no bytes)
            where nothing else links two groups.
        phase: Of each group. [num_groups]
        colocate: Classes that share a group are one. [num_groups]
        module: Of each group's costliest op. [num_groups]
        state: Bytes. [num_groups]
        members: Ops of the program, in its order. [num_groups]
    """

    graph: ComputationGraph
    phase: NDArray[np.int8]
    colocate: tuple[str | None, ...]
    module: tuple[str | None, ...]
    state: NDArray[np.float64]
    members: tuple[tuple[str, ...], ...]


def group_graph(
    program: Program, fine: ProgramGraph, group: NDArray[np.int32], cost: NDArray[np.float64]
) -> GroupedGraph:
    """Group a program's graph.

    Args:
        program: For the names of its ops.
        fine: Its graph.
        group: Group of each op, as `gnnplace.graph.coarsening.coarsen` makes them. [num_ops]
        cost: Estimated seconds; the costliest op names its group. [num_ops]
    """
    count = int(group.max()) + 1
    heads = _heads(group, cost, count)
    members: list[list[str]] = [[] for _ in range(count)]
    for i, op in enumerate(program.ops):
        members[group[i]].append(op.name)
    return GroupedGraph(
        graph=ComputationGraph.from_tensors(
            [program.ops[i].name for i in heads], _tensors(fine, group)
        ),
        phase=fine.phase[heads],
        colocate=_classes(fine.colocate, group, count),
        module=tuple(fine.module[i] for i in heads),
        state=np.bincount(group, fine.state, count).astype(np.float64),
        members=tuple(tuple(names) for names in members),
    )


def _heads(group: NDArray[np.int32], cost: NDArray[np.float64], count: int) -> list[int]:
    heads = [-1] * count
    for i, g in enumerate(group.tolist()):
        if heads[g] < 0 or cost[i] > cost[heads[g]]:
            heads[g] = i
    return heads


def _tensors(fine: ProgramGraph, group: NDArray[np.int32]) -> list[tuple[int, float, list[int]]]:
    graph = fine.graph
    linked: set[tuple[int, int]] = set()
    tensors: list[tuple[int, float, list[int]]] = []
    for k in range(graph.num_tensors):
        source = int(group[graph.producer[k]])
        targets = dict.fromkeys(int(group[c]) for c in graph.consumers(k))
        real = bool(fine.values[k])
        leaving = [g for g in targets if g != source and (real or (source, g) not in linked)]
        if leaving:
            linked.update((source, g) for g in leaving)
            tensors.append((source, float(graph.size[k]), leaving))
    return tensors


def _classes(
    colocate: tuple[str | None, ...], group: NDArray[np.int32], count: int
) -> tuple[str | None, ...]:
    """Class of each group: classes that meet in a group are united under the first name."""
    same: dict[str, str] = {}
    own: list[str | None] = [None] * count
    for name, g in zip(colocate, group.tolist(), strict=True):
        if name is None:
            continue
        same.setdefault(name, name)
        first = own[g]
        if first is None:
            own[g] = name
        else:
            same[_root(same, name)] = _root(same, first)
    return tuple(None if name is None else _root(same, name) for name in own)


def _root(same: dict[str, str], name: str) -> str:
    while same[name] != name:
        name = same[name]
    return name
