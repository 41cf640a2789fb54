"""Intervals of pipelined steps, compared: searches for throughput, and what all others come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gnnplace.errors import GnnplaceError
from gnnplace.placers.base import Placer, Result
from gnnplace.placers.search.space import SearchSpace
from gnnplace.placers.throughput.placer import (
    ContiguousThroughput,
    Throughput,
    ThroughputResult,
    with_interval,
)
from gnnplace.problem import Problem

Failure = tuple[str, GnnplaceError]
SEARCHES: tuple[tuple[str, type[Throughput]], ...] = (
    ("throughput", Throughput),
    ("contiguous-split", ContiguousThroughput),
)


def intervals(
    problem: Problem,
    others: Sequence[Result | Failure],
    *,
    budget: float,
    seed: int,
    progress: Callable[[str], None] | None = None,
) -> list[ThroughputResult | Failure]:
    """Intervals of the searches for throughput, then of placements that others found.

    Args:
        problem: what to place.
        others: results of placers that minimise the step time.
        budget: seconds for each search.
        seed: the seed of all randomness.
        progress: called with a line before each search.
    """
    space = SearchSpace(problem)
    found: list[ThroughputResult | Failure] = []
    for label, kind in SEARCHES:
        if progress is not None:
            progress(f"placing with {label}")
        found.append(_searched(label, kind(), space, budget, seed))
    return found + [
        other if isinstance(other, tuple) else with_interval(space, other) for other in others
    ]


def _searched(
    label: str, placer: Placer, space: SearchSpace, budget: float, seed: int
) -> ThroughputResult | Failure:
    try:
        result = placer.place(space.problem, budget=budget, seed=seed, space=space)
    except GnnplaceError as error:
        return label, error
    assert isinstance(result, ThroughputResult)
    return replace(result, placer=label)
