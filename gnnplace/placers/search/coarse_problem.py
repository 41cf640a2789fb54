"""A problem with groups of ops as its ops, and the way back.

The ops of one micro-batch, and those that are not cut, are grouped by ``graph.coarsening``; every
other micro-batch gets the same groups. So the coarse problem has micro-batches in turn as the fine
one has, and no group holds ops of two of them, which would make both wait for each other. Units
that meet in a group become one, with all their copies. Ops of different phases, pins or kinds that
can run them, or devices that are forbidden to them, are never grouped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import BoolArray, IntArray
from gnnplace.graph import ComputationGraph
from gnnplace.graph.coarsening import coarsen
from gnnplace.graph.quotient import quotient, united
from gnnplace.problem import Problem
from gnnplace.simulation.compiled import least_times

MOST_CODES = 127  # of phase, pin and kinds together: what coarsening has room for


@dataclass(frozen=True, eq=False)
class CoarseProblem:
    """A coarse problem and the group that each fine op is in.

    Attributes:
        problem: groups as ops.
        group: group of each op of the fine problem. [n]
    """

    problem: Problem
    group: IntArray

    def fine_order(self, fine: Problem, order: IntArray) -> IntArray:
        """An order of the fine ops: group by group, topological inside a group. [n]

        Args:
            fine: the fine problem.
            order: an order of all groups.
        """
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        return np.lexsort((fine.graph.position, place[self.group])).astype(np.int32)


def coarse_problem(problem: Problem, target: int) -> CoarseProblem | None:
    """The problem with about ``target`` groups; None where grouping cannot make it smaller."""
    origin = first_copy(problem)
    codes = _codes(problem)
    if origin is None or codes is None or problem.num_ops <= target:
        return None
    first = np.unique(origin)
    per_copy = max(1, target * len(first) // problem.num_ops)
    group = _grouped(problem, first, codes, per_copy)
    place = np.searchsorted(first, origin)
    key = group[place].astype(np.int64) * problem.microbatches + problem.microbatch
    group = np.unique(key, return_inverse=True)[1].astype(np.int32)
    coarse = grouped(problem, group, problem.unit_of)
    if coarse.num_ops >= problem.num_ops or not coarse.unit_allowed.any(axis=1).all():
        return None
    return CoarseProblem(coarse, group)


def first_copy(problem: Problem, ops: IntArray | None = None) -> IntArray | None:
    """For each op, or for each of ``ops``, its copy in micro-batch 0; None if one has none. [n]"""
    ops = np.arange(problem.num_ops, dtype=np.int32) if ops is None else ops
    if problem.microbatches == 1:
        return ops
    index = problem.graph.index
    names = problem.graph.names
    copies = [
        index.get(f"{names[i].rpartition('#')[0]}#0", -1) if k else i
        for i, k in zip(ops.tolist(), problem.microbatch[ops].tolist(), strict=True)
    ]
    found = np.array(copies, dtype=np.int32)
    return None if (found < 0).any() or problem.microbatch[found].any() else found


def _codes(problem: Problem) -> NDArray[np.int8] | None:
    """What ops of a group have in common, as a number; None if there is too much. [n]"""
    runs = np.isfinite(problem.kind_times)
    barred = runs[:, :0] if problem.forbid is None else problem.forbid
    rows = np.column_stack([problem.phase, problem.pin, runs, barred]).astype(np.int64)
    _, code = np.unique(rows, axis=0, return_inverse=True)
    return code.astype(np.int8).ravel() if code.max() <= MOST_CODES else None


def _grouped(problem: Problem, ops: IntArray, codes: NDArray[np.int8], target: int) -> IntArray:
    """Group of each of ``ops``, the ops of one micro-batch. [len(ops)]"""
    inner = np.full(problem.num_ops, -1)
    inner[ops] = np.arange(len(ops))
    source, end, size = problem.graph.edges
    inside = (inner[source] >= 0) & (inner[end] >= 0)
    edges = zip(inner[source[inside]], size[inside], inner[end[inside]], strict=True)
    graph = ComputationGraph.from_tensors(
        [problem.graph.names[i] for i in ops], [(int(a), float(b), [int(c)]) for a, b, c in edges]
    )
    unit = problem.unit_of[ops]
    shared = np.bincount(unit, minlength=problem.num_units)[unit] > 1
    labels = [str(u) if s else None for u, s in zip(unit, shared, strict=True)]
    cost = least_times(problem)[ops]
    return coarsen(graph, cost, target=target, unit=labels, phase=codes[ops])


def grouped(problem: Problem, group: IntArray, label: IntArray) -> Problem:
    """The problem of groups; where times come from, and their errors, are not kept.

    Args:
        problem: the problem of ops.
        group: group of each op, from 0 without gaps; ops of one share a phase, a micro-batch, and
            a pin if one of them has any. [n]
        label: class of each op, from 0; classes that meet in a group become one unit. [n]
    """
    head = np.unique(group, return_index=True)[1]
    count = len(head)
    share = problem.microbatch[head]
    cut = problem.microbatches > 1
    names = [f"group{i}#{k}" if cut else f"group{i}" for i, k in enumerate(share.tolist())]
    pin = np.full(count, -1, dtype=np.int32)
    np.maximum.at(pin, group, problem.pin)
    return replace(
        problem,
        graph=quotient(problem.graph, group, names),
        time={
            k: np.bincount(group, seconds, count).astype(np.float64)
            for k, seconds in problem.time.items()
        },
        state=np.bincount(group, problem.state, count).astype(np.float64),
        phase=problem.phase[head],
        colocate=tuple(f"class{k}" for k in united(label, group, count).tolist()),
        pin=pin,
        module=tuple(problem.module[i] for i in head),
        members=((),) * count,
        estimated=np.bincount(group, problem.estimated, count) > 0,
        error={},
        source={},
        forbid=_forbidden(problem, group, count),
    )


def _forbidden(problem: Problem, group: IntArray, count: int) -> BoolArray | None:
    """Whether a device is forbidden to an op of each group. [G, D]"""
    if problem.forbid is None:
        return None
    forbid = np.zeros((count, problem.num_devices), dtype=bool)
    np.logical_or.at(forbid, group, problem.forbid)
    return forbid
