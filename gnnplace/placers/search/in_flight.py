"""Fewer micro-batches in flight: list schedules whose activations fit into tight memory.

Formulation: list scheduling starts every op that is ready, and so keeps all micro-batches in
flight. With a limit ``most``, the forward ops of a unit's micro-batch k + ``most`` wait for the
backward ops of its micro-batch k (one forward, one backward; Narayanan et al., 2021). These waits
are edges inside a unit, which send no message. Only the graph from which orders are made has them,
so that the result is a placement of the unchanged problem. Which number is best depends on
what fits: with all in flight one device fits early in a search and no device late in it.
``fewer_in_flight`` takes the number whose best start scores least, and all of them unless fewer
are ``WORTH`` it. A start with all of them that does not fit yet counts by its seconds alone,
without penalty: a search mends it in its first laps. Where it fits, no other number is tried: of
50 problems of training families none had a start with fewer that was 6 % shorter. Nor is a number
whose edges alone make a path that is too long.

Complexity: a ranking of starts for each number that is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from gnnplace.arrays import IntArray
from gnnplace.graph import ComputationGraph
from gnnplace.placers.search.chunk_search import Start
from gnnplace.placers.search.space import SearchSpace
from gnnplace.problem import BACKWARD, FORWARD, Problem
from gnnplace.simulation import (
    ROUNDING,
    Compiled,
    compile_problem,
    compute_longest_path,
    make_lean,
    reverse_problem,
)

WORTH = 0.75  # score of a start with fewer in flight over the seconds of that with all
TRIED = (1, 2, 3, 4, 6, 8)  # micro-batches in flight


def with_most_in_flight(problem: Problem, most: int) -> Problem:
    """Return the problem with edges of no bytes that keep ``most`` micro-batches of a unit in
    flight.
    """
    graph = problem.graph
    producers, waiting_ops = _find_held_back(problem, most)
    producer = np.concatenate([graph.producer, producers])
    by_producer = np.argsort(producer, kind="stable")
    held_by = np.array([len(waiting) for waiting in waiting_ops], dtype=np.int64)
    counts = np.concatenate([np.diff(graph.consumer_offset), held_by])
    begin = np.cumsum(counts) - counts
    consumer = np.concatenate([graph.consumer, *waiting_ops])
    counts = counts[by_producer]
    begin = begin[by_producer]
    offset = np.concatenate(([0], np.cumsum(counts)))
    taken = np.arange(offset[-1]) + np.repeat(begin - offset[:-1], counts)
    graph_in_flight = ComputationGraph(
        names=graph.names,
        producer=producer[by_producer].astype(np.int32),
        size=np.concatenate([graph.size, np.zeros(len(producers))])[by_producer],
        consumer_offset=offset.astype(np.int32),
        consumer=consumer[taken].astype(np.int32),
    )
    return replace(problem, graph=graph_in_flight)


def _find_held_back(problem: Problem, most: int) -> tuple[IntArray, list[IntArray]]:
    """Return the backward ops that others wait for, and the forward ops that wait for each
    of them.
    """
    forward = _list_phase_ops(problem, FORWARD)
    backward = _list_phase_ops(problem, BACKWARD)
    pairs = [
        (op, forward[unit, share + most])
        for (unit, share), ops in backward.items()
        if (unit, share + most) in forward
        for op in ops.tolist()
    ]
    return np.array([op for op, _ in pairs], dtype=np.int32), [
        waiting for _, waiting in pairs
    ]


def _list_phase_ops(problem: Problem, phase: int) -> dict[tuple[int, int], IntArray]:
    """Return the ops of a phase by unit and micro-batch."""
    ops = np.flatnonzero(problem.phase == phase).astype(np.int32)
    if len(ops) == 0:
        return {}
    unit = problem.unit_of[ops]
    microbatch = problem.microbatch[ops]
    by_key = np.lexsort((microbatch, unit))
    ops = ops[by_key]
    unit = unit[by_key]
    microbatch = microbatch[by_key]

    new_unit = np.diff(unit, prepend=-1) != 0
    new_microbatch = np.diff(microbatch, prepend=-1) != 0
    begins = np.flatnonzero(new_unit | new_microbatch)
    keys = zip(unit[begins].tolist(), microbatch[begins].tolist(), strict=True)
    return dict(zip(keys, np.split(ops, begins[1:]), strict=True))


class InFlightSpace(SearchSpace):
    """A space whose list schedules keep at most so many micro-batches of a unit in flight.

    Args:
        problem: the problem; scores and simulations are of it as it is.
        most: the number of micro-batches of a unit that may be in flight.
    """

    def __init__(self, problem: Problem, most: int) -> None:
        super().__init__(problem)
        self.most = most

    @cached_property
    def held(self) -> Problem:
        """Return the problem with the edges that hold forward ops back."""
        return with_most_in_flight(self.problem, self.most)

    @cached_property
    def lean(self) -> tuple[Compiled, Compiled]:
        """Return `SearchSpace.lean` with the edges that hold forward ops back."""
        lean_problem = make_lean(self.held, compile_problem(self.held))
        return lean_problem, reverse_problem(lean_problem)


def fewer_in_flight(
    space: SearchSpace, ranked: Callable[[SearchSpace], Sequence[Start]]
) -> tuple[SearchSpace, Sequence[Start]]:
    """Return the space to search in, with all or fewer micro-batches in flight, and its ranked
    starts.

    Args:
        space: the space with all of them.
        ranked: starts of a space, the best first; at least one.
    """
    best = space, ranked(space)
    if not space.memory_matters:
        return best
    first = best[1][0]
    seconds = space.simulator.step_time(space.spread(first.unit_device), first.order)
    if first.score <= seconds * (1.0 + ROUNDING):
        return best
    limit = WORTH * seconds
    for limit_in_flight in TRIED:
        if limit_in_flight >= space.problem.microbatches:
            break
        candidate = InFlightSpace(space.problem, limit_in_flight)
        if compute_longest_path(candidate.held) >= limit:
            continue
        starts = ranked(candidate)
        if starts[0].score < limit:
            best = (candidate, starts)
            limit = starts[0].score
    return best
