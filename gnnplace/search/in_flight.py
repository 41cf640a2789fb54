"""Fewer micro-batches in flight: list schedules whose activations fit into tight memory.

Formulation: list scheduling starts what is ready, and so keeps as many micro-batches in flight as
there are. With at most ``most`` of them, the forward ops of a unit's micro-batch k + ``most`` wait
for the backward ops of its micro-batch k (one forward, one backward; Narayanan et al., 2021):
edges inside a unit, which send no message. They are in the graph that orders are made on alone, so
that what a search finds is a placement of the problem as it is. Which number is best depends on
what fits: with all in flight one device fits early in a search and no device late in it.
``fewer_in_flight`` takes the number whose best start scores least, and all of them unless fewer
are ``WORTH`` it. A start with all of them that does not fit yet counts by its seconds alone,
without penalty: a search mends it in its first laps.

Complexity: a ranking of starts for each number that is tried.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnplace.graph import ComputationGraph
from gnnplace.problem import BACKWARD, FORWARD, Problem
from gnnplace.search.lean import lean
from gnnplace.search.space import SearchSpace
from gnnplace.simulation.compiled import Compiled, compile_problem
from gnnplace.simulation.justification import reversed_problem

IntArray = NDArray[np.int32]
WORTH = 0.75  # score of a start with fewer in flight over the seconds of that with all
TRIED = (1, 2, 3, 4, 6, 8)  # micro-batches in flight


class State(Protocol):
    """A state of a search: units' devices and an order, with the score in seconds and penalty."""

    @property
    def score(self) -> float:
        """Predicted seconds with penalty."""

    @property
    def unit_device(self) -> IntArray:
        """Device of each unit. [U]"""

    @property
    def order(self) -> IntArray:
        """Of all ops. [n]"""


S = TypeVar("S", bound=State)


def with_most_in_flight(problem: Problem, most: int) -> Problem:
    """The problem with edges of no bytes that keep ``most`` micro-batches of a unit in flight."""
    forward, backward = _of_phase(problem, FORWARD), _of_phase(problem, BACKWARD)
    graph = problem.graph
    low, high = graph.consumer_offset[:-1], graph.consumer_offset[1:]
    tensors = [
        (int(graph.producer[k]), float(graph.size[k]), graph.consumer[low[k] : high[k]])
        for k in range(graph.num_tensors)
    ]
    for (unit, share), ops in backward.items():
        waiting = forward.get((unit, share + most))
        if waiting is not None:
            tensors += [(op, 0.0, np.array(waiting)) for op in ops]
    tensors.sort(key=lambda tensor: tensor[0])
    return replace(problem, graph=ComputationGraph.from_tensors(graph.names, tensors))


def _of_phase(problem: Problem, phase: int) -> dict[tuple[int, int], list[int]]:
    """Ops of a phase by unit and micro-batch."""
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    for op in np.flatnonzero(problem.phase == phase).tolist():
        found[int(problem.unit_of[op]), int(problem.microbatch[op])].append(op)
    return found


class InFlightSpace(SearchSpace):
    """A space whose list schedules keep at most so many micro-batches of a unit in flight.

    Args:
        problem: the problem; scores and simulations are of it as it is.
        most: micro-batches.
    """

    def __init__(self, problem: Problem, most: int) -> None:
        super().__init__(problem)
        self.most = most

    @cached_property
    def lean(self) -> tuple[Compiled, Compiled]:
        """As ``SearchSpace`` has it, with the edges that hold forward ops back."""
        held = with_most_in_flight(self.problem, self.most)
        made = lean(held, compile_problem(held))
        return made, reversed_problem(made)


def fewer_in_flight(
    space: SearchSpace, ranked: Callable[[SearchSpace], Sequence[S]]
) -> tuple[SearchSpace, Sequence[S]]:
    """The space to search in, with all or fewer micro-batches in flight, and its ranked starts.

    Args:
        space: the space with all of them.
        ranked: starts of a space, the best first; at least one.
    """
    best = space, ranked(space)
    if not space.memory_matters:
        return best
    first = best[1][0]
    limit = WORTH * space.simulator.step_time(space.spread(first.unit_device), first.order)
    for most in TRIED:
        if most >= space.problem.microbatches:
            break
        held = InFlightSpace(space.problem, most)
        starts = ranked(held)
        if starts[0].score < limit:
            best, limit = (held, starts), starts[0].score
    return best
