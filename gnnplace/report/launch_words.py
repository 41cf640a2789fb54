"""What a launch file says, which needs no model, no cluster and few imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnnplace.launch import words_data, words_lines
from gnnplace.report.answer import Answer, Lines

if TYPE_CHECKING:
    from gnnplace.launch import LaunchPlan


def describe_launch_plan(plan: LaunchPlan, *, launcher: str, path: str) -> Answer:
    """Describe what a launch file says, without a model and a cluster.

    Args:
        plan: The plan of the file.
        launcher: Whose file it is.
        path: The file.
    """
    return Answer(
        title=path,
        sections=[Lines(words_lines(plan, launcher, path))],
        data=lambda: words_data(plan, launcher),
    )
