"""Blocks of units by what precedes what, and orders of units that contiguous splits are cut from.

What precedes what (``precedence``): an op what reads from it. In a training graph a backward op
follows its forward op and the chain of backward ops counts in reverse, so that a layer's backward
work stays with it; units on a cycle of these are one block. Complexity: O(U + edges) each.
"""

from __future__ import annotations

from typing import NamedTuple

import networkx as nx
import numpy as np

from gnnplace.arrays import IntArray
from gnnplace.placers.search.space import SearchSpace
from gnnplace.problem import BACKWARD


class Blocks(NamedTuple):
    """Units that cannot be told apart in order, in one topological order.

    Attributes:
        units: the units of each block. [B]
        before: blocks that directly precede each block. [B]
        after: blocks that directly follow. [B]
    """

    units: list[list[int]]
    before: list[list[int]]
    after: list[list[int]]


def precedence(space: SearchSpace) -> nx.DiGraph:
    """Which unit precedes which, as the module's text says; it may have cycles."""
    problem = space.problem
    source, target, _ = problem.graph.edges
    backward = problem.phase == BACKWARD
    flip = backward[source] & backward[target] & _folded(space)
    first = np.where(flip, target, source)
    second = np.where(flip, source, target)
    unit = problem.unit_of
    graph = nx.DiGraph()
    graph.add_nodes_from(range(problem.num_units))
    pairs = np.unique(np.stack([unit[first], unit[second]]), axis=1).T
    graph.add_edges_from((int(a), int(b)) for a, b in pairs if a != b)
    return graph


def _folded(space: SearchSpace) -> bool:
    """Whether backward ops stay with their forward ops: some colocation class says so."""
    problem = space.problem
    backward = problem.phase == BACKWARD
    has = [
        np.bincount(problem.unit_of, part, problem.num_units) > 0 for part in (backward, ~backward)
    ]
    return bool((has[0] & has[1]).any())


def make_blocks(space: SearchSpace) -> Blocks:
    """The strongly connected components of ``precedence``."""
    whole = nx.condensation(precedence(space))
    rank = {node: k for k, node in enumerate(nx.lexicographical_topological_sort(whole))}
    units = [sorted(whole.nodes[node]["members"]) for node in rank]
    before = [sorted(rank[p] for p in whole.predecessors(node)) for node in rank]
    after = [sorted(rank[p] for p in whole.successors(node)) for node in rank]
    return Blocks(units, before, after)


def depth_first(blocks: Blocks, rng: np.random.Generator | None = None) -> IntArray:
    """A topological order of units that ends a branch before the next; drawn with ``rng``. [U]"""
    missing = [len(many) for many in blocks.before]
    ready = [b for b, number in enumerate(missing) if number == 0][::-1]
    order: list[int] = []
    while ready:
        block = ready.pop() if rng is None else ready.pop(int(rng.integers(len(ready))))
        order += blocks.units[block]
        for c in reversed(blocks.after[block]):
            missing[c] -= 1
            if missing[c] == 0:
                ready.append(c)
    return np.array(order, dtype=np.int32)
