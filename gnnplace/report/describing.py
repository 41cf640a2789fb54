"""`describe`: the answer of any result that a command prints, by the result's type.

`DESCRIBERS` names the function that describes each type. Its module is imported with the first
result of the type, so that a command imports what describes its own answer and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from gnnplace.errors import InputError, suggestion
from gnnplace.files import write_text

if TYPE_CHECKING:
    from gnnplace.report.answer import Answer

View = TypeVar("View")

DESCRIBERS: Mapping[str, str] = {
    # Placements.
    "Comparison": "comparisons:describe_comparison",
    "Executed": "executions:describe_execution",
    "Explanation": "explanations:describe_explanation",
    "PlacementDifference": "explanations:describe_difference",
    "Result": "comparisons:describe_result",
    "Road": "road:describe_road",
    "Simulation": "tables:describe_simulation",
    "Size": "tables:describe_size",
    # Plans.
    "BaselinePlans": "plans:describe_baselines",
    "BatchPlan": "batches:describe_batch",
    "FitAnswer": "fits:describe_fit",
    "HybridStudy": "hybrid:describe_hybrid",
    "MachinePlans": "machines:describe_machines",
    "Plan": "plans:describe_plan",
    "PlanDifference": "plans:describe_plan_difference",
    "PlanExplanation": "plan_explanations:describe_plan_explanation",
    "PlanRun": "plans:describe_plan_run",
    "PricedTable": "priced:describe_priced",
    # Launch files.
    "LaunchAnswer": "launch:describe_launch",
    "LaunchExplanation": "plan_explanations:describe_launch_explanation",
    "LaunchFile": "launch:describe_launch_file",
    "LaunchPlan": "launch_words:describe_launch_plan",
    # Splits of layers.
    "Frontier": "sharding:describe_frontier",
    "GoalAnswer": "sharding:describe_goal",
    # Measurements and constants.
    "Calibrated": "measurements:describe_calibrated",
    "Environment": "environment:describe_environment",
    "MeasurementStore": "measurements:describe_store",
    "ServerNetwork": "priced:describe_network",
    "Study": "fidelity:describe_study",
}
"""Module of this room and function, by the name of the class, which is unique in the package."""


def describe(result: object, **options: object) -> Answer:
    """Return the answer of a result: one description that all renderers read.

    Args:
        result: What a verb of the package returned. A subclass is described as its class is, if it
            has no row of its own in `DESCRIBERS`.
        **options: Keyword arguments of the function that describes the type.

    Raises:
        InputError: Nothing describes results of this type.
    """
    return find_describer(type(result))(result, **options)


def find_describer(kind: type) -> Callable[..., Answer]:
    """Return the function that describes results of a type.

    Raises:
        InputError: There is none.
    """
    for base in kind.__mro__:
        if not base.__module__.startswith("gnnplace."):
            continue
        if base.__name__ in DESCRIBERS:
            module, _, name = DESCRIBERS[base.__name__].partition(":")
            function = getattr(import_module(f"gnnplace.report.{module}"), name)
            return cast("Callable[..., Answer]", function)
    raise InputError(
        f"describe: nothing describes a {kind.__name__}; add its row to DESCRIBERS in "
        f"gnnplace/report/describing.py{suggestion(kind.__name__, DESCRIBERS)}"
    )


def write_answer(
    answer: Answer,
    *,
    table: str | Path | None = None,
    page: str | Path | None = None,
    picture: str | Path | None = None,
    trace: str | Path | None = None,
    chakra: str | Path | None = None,
) -> None:
    """Write the files of an answer that have a path, each at once or not at all.

    Args:
        answer: The answer.
        table: The path of its table, .md or .csv.
        page: The path of its page.
        picture: The path of its picture, .svg or .html.
        trace: The path of its steps as a trace that Perfetto opens.
        chakra: The folder of its first step, which is predicted, as Chakra's traces.

    Raises:
        InputError: The answer has no such view, or a file cannot be written.
    """
    # The renderer of a file is imported once the file is asked for.
    if chakra is not None:
        from gnnplace.report.chakra import write_chakra

        step = _make_view(answer.steps, "step")[0]
        if step.simulation is None:
            raise InputError("Chakra's traces are of steps that were predicted")
        write_chakra(chakra, step.problem, step.simulation)
    if table is not None:
        from gnnplace.report.tables import write_table

        write_table(table, _make_view(answer.table, "table"))
    if page is not None:
        from gnnplace.report.answer import as_page

        write_text(page, as_page(answer))
    if picture is not None:
        from gnnplace.report.pictures import write_picture

        write_picture(picture, _make_view(answer.picture, "picture"))
    if trace is not None:
        from gnnplace.report.trace import write_trace

        write_trace(trace, _make_view(answer.steps, "step"))


def _make_view(view: Callable[[], View] | None, name: str) -> View:
    """Return a view of an answer: what its function makes.

    Raises:
        InputError: The answer has no such view.
    """
    if view is None:
        raise InputError(f"this answer has no {name} to write")
    return view()
