"""Where the ops of a graph are drawn: from left to right by depth, each near its inputs' mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.graph.ranks import levels
from gnnplace.problem import Problem

MOST_NODES = 4_000
MOST_EDGES = 12_000


@dataclass(frozen=True, eq=False)
class Layout:
    """A drawing of a graph.

    Attributes:
        x: place from the left, in 0..1. [num_ops]
        y: place from above, in 0..1. [num_ops]
        size: radius of each dot in pixels; its area grows with the op's seconds. [num_ops]
        edges: pairs of ops. [E, 2]
        tallest: the most ops of one depth.
    """

    x: FloatArray
    y: FloatArray
    size: FloatArray
    edges: IntArray
    tallest: int


def layout(problem: Problem) -> Layout | None:
    """The drawing; None for a graph that is too large to be looked at."""
    source, target, _ = problem.graph.edges
    if problem.num_ops > MOST_NODES or len(source) > MOST_EDGES:
        return None
    level, y, tallest = _placed(problem)
    work = np.where(np.isfinite(problem.times), problem.times, 0.0).max(axis=1)
    size = 2.2 + 5.0 * np.sqrt(work / max(work.max(), 1e-300))
    edges = np.stack([source, target], axis=1).astype(np.int32)
    return Layout(level / max(1, level.max()), y, size, edges, tallest)


def _placed(problem: Problem) -> tuple[IntArray, FloatArray, int]:
    """Levels, vertical places in 0..1 and the largest level."""
    graph, level = problem.graph, levels(problem.graph)
    y = np.full(graph.num_ops, 0.5)
    tallest = int(np.bincount(level).max())
    for depth in range(int(level.max()) + 1):
        ops = np.flatnonzero(level == depth)
        wish = [y[graph.predecessors(int(op))].mean() if depth else 0.5 for op in ops]
        ops = ops[np.argsort(wish, kind="stable")]
        room = min(1.0, len(ops) / max(1, tallest) + 0.12)
        y[ops] = 0.5 + room * ((np.arange(len(ops)) + 0.5) / len(ops) - 0.5)
    return level, y, tallest
