"""The placers that search for throughput by name, and how all placers compare by their interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gnnplace.errors import GnnplaceError, UnsupportedError
from gnnplace.placers.base import Placer, Result
from gnnplace.placers.row import Row, Speed, parse_name
from gnnplace.placers.search.space import SearchSpace
from gnnplace.placers.throughput.placer import (
    ContiguousThroughput,
    Throughput,
    ThroughputResult,
    with_interval,
)
from gnnplace.problem import Problem

Failure = tuple[str, GnnplaceError]
PLACERS: dict[str, Row] = {
    row.name: row
    for row in (
        Row("best", Throughput, Speed.SEARCH),
        Row("contiguous", ContiguousThroughput, Speed.CONSTRUCTION),
    )
}
# What placers that are no more were for, and what to use.
RETIRED = {"exact": "no placer proves an optimum for objective 'throughput' any more; use best"}
SEARCHES: tuple[tuple[str, type[Throughput]], ...] = (
    ("throughput", Throughput),
    ("contiguous-split", ContiguousThroughput),
)


def make_throughput_placer(name: str, **options: Any) -> Placer:
    """A placer for throughput: ``contiguous`` splits alone, or the ``best`` that is found.

    Raises:
        InputError: an option, for they have none.
        UnsupportedError: a placer that minimises the step time, or one that is no more.
    """
    base, written = parse_name(name)
    if base in RETIRED:
        raise UnsupportedError(f"placer {base!r}: {RETIRED[base]}")
    if base not in PLACERS:
        known = ", ".join(PLACERS)
        raise UnsupportedError(
            f"placer {base!r} minimises the step time; for objective 'throughput' use {known}"
        )
    given = {key: value for key, value in options.items() if value is not None}
    return PLACERS[base].made(written | given)


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
    """What a search finds, under the name that comparisons show."""
    try:
        result = placer.place(space.problem, budget=budget, seed=seed, space=space)
    except GnnplaceError as error:
        return label, error
    assert isinstance(result, ThroughputResult)
    return replace(result, placer=label)
