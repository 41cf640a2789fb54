"""Answers about results of placers: one of them, or several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gnnplace.placers import Result
from gnnplace.report.answer import Answer, Lines
from gnnplace.report.rows import make_row, summary_lines, with_best_bound
from gnnplace.report.tables import (
    comparison,
    describe_intervals,
    memory_lines,
    placement_table,
)
from gnnplace.report.timeline import Timeline, from_simulation

if TYPE_CHECKING:
    from gnnplace.errors import GnnplaceError
    from gnnplace.explaining import Advice
    from gnnplace.problem import Problem


@dataclass(frozen=True, eq=False)
class Comparison:
    """Results of placers on one problem.

    Attributes:
        problem: What was placed.
        results: One for each placer; one that could not stands with its name and its error.
        may_split: Whether more devices than one could be used.
        is_pipelined: Whether placers are compared by the interval between pipelined steps, and not
            by the time of one.
    """

    problem: Problem
    results: Sequence[Result | tuple[str, GnnplaceError]]
    may_split: bool = True
    is_pipelined: bool = False


def describe_comparison(compared: Comparison) -> Answer:
    """Describe placers side by side."""
    problem = compared.problem
    results = compared.results
    if compared.is_pipelined:
        return describe_intervals(problem, results)
    rows = with_best_bound([make_row(result) for result in results])
    title = f"{problem.name} on {problem.num_devices} devices"
    summary = summary_lines(rows, may_split=compared.may_split)
    return Answer(
        title=title,
        sections=[comparison(rows, title), Lines(summary)],
        data={"problem": problem.name},
        page=lambda: _make_page(problem, results),
        steps=lambda: _list_steps(problem, results),
    )


def describe_result(
    result: Result, *, problem: Problem, advice: Advice | None = None
) -> Answer:
    """Describe a placement that was found.

    Args:
        result: The placement, its memory and its step.
        problem: What was placed.
        advice: Which devices it uses, and what to try next; None without advice.
    """
    lines = memory_lines(problem, result.simulation)
    if advice is not None:
        from gnnplace.report.explanations import advice_lines  # for advice alone

        *devices, following = advice_lines(advice, result)
        lines = [*devices, *lines, following]
    return Answer(
        title=f"{problem.name} on {problem.num_devices} devices",
        sections=[Lines(lines)],
        page=lambda: _make_page(problem, [result]),
        table=lambda: placement_table(problem, result.placement),
        steps=lambda: _list_steps(problem, [result]),
    )


def _make_page(
    problem: Problem, results: Sequence[Result | tuple[str, GnnplaceError]]
) -> str:
    """Make the text of a page about results, the fastest first."""
    from gnnplace.report.placements import results_page  # for pages alone

    return results_page(problem, results)


def _list_steps(
    problem: Problem, results: Sequence[Result | tuple[str, GnnplaceError]]
) -> list[Timeline]:
    """Return the steps of the placements that were found, in their order."""
    return [
        from_simulation(problem, result.simulation, result.placer)
        for result in results
        if isinstance(result, Result)
    ]
