"""Placing a problem with a placer by name, and comparing many."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gnnplace.errors import GnnplaceError, InputError
from gnnplace.placers.base import Placer, Result
from gnnplace.placers.few_devices import place_on_few
from gnnplace.placers.search.space import SearchSpace
from gnnplace.placers.throughput import ThroughputResult
from gnnplace.placers.throughput.placer import intervals, make_throughput_placer
from gnnplace.policy.roster import make_placer, shown_placers
from gnnplace.problem import Problem
from gnnplace.problem.constraints import Constraints, as_constraints, constrained
from gnnplace.problem.constraints.constraints import Given

Progress = Callable[[str], None]
Failure = tuple[str, GnnplaceError]
DEFAULT_BUDGET = 2.0
TIME, THROUGHPUT = "time", "throughput"


def placer_for(objective: str, name: str | Placer, **options: Any) -> Placer:
    """A placer by its name, for an objective; see ``place``.

    Raises:
        InputError: an unknown objective, placer or option.
        UnsupportedError: the placer does not minimise this objective.
    """
    if objective == THROUGHPUT:
        told = name if isinstance(name, str) else name.name
        return make_throughput_placer(told, **options)
    if objective == TIME:
        return make_placer(name, **options)
    raise InputError(f"objective {objective!r}: must be 'time' or 'throughput'")


def check_budget(budget: float) -> None:
    """Refuses a budget that no search can keep.

    Raises:
        InputError: it is negative or not a number.
    """
    if not budget >= 0:
        raise InputError(f"budget {budget}: must not be negative")


def place(
    problem: Problem,
    *,
    placer: str | Placer = "best",
    budget: float = DEFAULT_BUDGET,
    seed: int = 0,
    objective: str = TIME,
    space: SearchSpace | None = None,
    constraints: Given | None = None,
    **options: Any,
) -> Result:
    """Finds devices and sequences for a problem.

    Args:
        problem: what to place; cut it with ``with_microbatches`` for pipelines.
        placer: one of ``placer_names()``, ``module:Class`` or ``path/to/file.py:Class``; options
            may stand behind it (``exact?workers=2``). Or a placer itself.
        budget: seconds to search, from here on.
        seed: the seed of all randomness.
        objective: ``time``: seconds of one step; ``throughput``: seconds between two pipelined
            steps (the result is a ``ThroughputResult``).
        space: the problem's search space, if there is one already.
        constraints: what is asked beyond the problem: ``Constraints``, a mapping or a YAML file.
            The result is one of ``problem`` all the same.
        options: options of the placer: ``workers`` of ``exact``, ``order`` and ``checkpoint`` of
            ``learned`` and ``best``. None stands for an option that is not given.

    Raises:
        InputError: an unknown placer, objective or option, or a negative budget.
        UnsupportedError, InfeasibleError: see ``Placer.place``.
    """
    check_budget(budget)
    made = placer_for(objective, placer, **options)
    asked = as_constraints(constraints)
    if not asked:
        return made.place(problem, budget=budget, seed=seed, space=space)
    if asked.max_devices is not None and objective == THROUGHPUT:
        raise InputError("max-devices: with --objective throughput give a smaller cluster")
    problem = constrained(problem, asked)
    if asked.max_devices is None:
        return made.place(problem, budget=budget, seed=seed)
    return place_on_few(problem, made, asked.max_devices, budget=budget, seed=seed)


def compare(
    problem: Problem,
    names: Iterable[str] | None = None,
    *,
    budget: float = DEFAULT_BUDGET,
    seed: int = 0,
    constraints: Given | None = None,
    progress: Progress | None = None,
) -> list[Result | Failure]:
    """Results of many placers on one problem; a placer that cannot stands with its error.

    Args:
        problem: the problem to place.
        names: the names of placers; all that are shown by default.
        budget: seconds for each placer.
        seed: the seed of all randomness.
        constraints: as ``place`` has them.
        progress: called with a line before each placer.
    """
    asked = as_constraints(constraints)
    problem = constrained(problem, asked)
    few = Constraints(max_devices=asked.max_devices)
    space = SearchSpace(problem)
    results: list[Result | Failure] = []
    for name in names or shown_placers():
        if progress is not None:
            progress(f"placing with {name}")
        try:
            how: dict[str, Any] = {"placer": name, "budget": budget, "seed": seed}
            results.append(place(problem, space=space, constraints=few, **how))
        except GnnplaceError as error:
            results.append((name, error))
    return results


def compare_intervals(
    problem: Problem,
    names: Iterable[str] | None = None,
    *,
    budget: float = DEFAULT_BUDGET,
    seed: int = 0,
    constraints: Given | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[ThroughputResult | Failure]:
    """Intervals of pipelined steps: of searches for throughput, and what all others come to.

    Args:
        problem: the problem to place.
        names: the names of placers that minimise the step time; all that are shown by default.
        budget: seconds for each placer.
        seed: the seed of all randomness.
        constraints: as ``place`` has them; none on the number of devices.
        progress: called with a line before each placer.

    Raises:
        InputError: devices are limited in number.
    """
    asked = as_constraints(constraints)
    if asked.max_devices is not None:
        raise InputError("max-devices: compare it for the time of a step, not for throughput")
    problem = constrained(problem, asked)
    others = compare(problem, names, budget=budget, seed=seed, progress=progress)
    return intervals(problem, others, budget=budget, seed=seed, progress=progress)
