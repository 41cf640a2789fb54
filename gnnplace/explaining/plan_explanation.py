"""`PlanExplanation`: what bounds a plan, and what of it would help; asked by `explain_plan`.

A plan in words is priced by its model's sizes, without torch. Every other plan captures its model
(`explaining.captured`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gnnplace.errors import InputError
from gnnplace.explaining.causes import SlowdownCause
from gnnplace.explaining.in_words import (
    ROW_PARTS,
    RowChange,
    row_causes,
    row_changes,
    row_parts,
)
from gnnplace.explaining.measured_steps import MeasuredSteps, RunSizes, measured_steps
from gnnplace.launch import LaunchAnswer, price_file, priced_spec
from gnnplace.plans import MemoryEntry, Plan
from gnnplace.problem import Cluster

PARTS = {
    **{name: ROW_PARTS[name] for name in ("compute", "host", "shards", "messages")},
    "zero": "ZeRO's exchanges with every micro-batch",
    "reduction": "sums of gradients, and parameters gathered, at the end of the step",
    **{name: ROW_PARTS[name] for name in ("recompute", "update", "bubble")},
}


@dataclass(frozen=True)
class PlanChange:
    """A plan with one word changed.

    Attributes:
        told: The change in a few words.
        step_time: Predicted seconds of a step.
        held: Bytes of the fullest device.
        lacking: Bytes by which a device is too small; at most 0 where all fit.
    """

    told: str
    step_time: float
    held: float
    lacking: float


@dataclass(frozen=True)
class PlanExplanation:
    """An explanation of what bounds a plan.

    Attributes:
        plan: The plan that was explained.
        step_time: Predicted seconds of a step.
        interval: Interval that holds nine in ten steps.
        parts: Seconds of the step by what they go to; see `PARTS`.
        fullest: The name of the fullest device.
        memory: Bytes that the fullest device holds.
        room: Bytes that the fullest device has.
        changes: Single changes that are faster and fit, the fastest first; of a plan that does not
            fit those that make it fit.
        tried: The number of changes that were priced.
        causes: What may make a run slower than predicted, the likeliest first.
        measured: A step of a run; None where none is known.
    """

    plan: Plan
    step_time: float
    interval: tuple[float, float]
    parts: dict[str, float]
    fullest: str
    memory: MemoryEntry
    room: float
    changes: tuple[PlanChange, ...]
    tried: int
    causes: tuple[SlowdownCause, ...] = ()
    measured: MeasuredSteps | None = None

    @property
    def bound(self) -> str:
        """Return the part of the step that takes the most seconds."""
        return max(self.parts, key=self.parts.__getitem__)


@dataclass(frozen=True)
class LaunchExplanation:
    """An explanation of what bounds a run of a launch file.

    Attributes:
        answer: Its price.
        parts: Seconds of its step by what they go to (`ROW_PARTS`).
        changes: Single changes of its words that fit, the fastest first.
        causes: What may make the run slower than predicted, the likeliest first.
        measured: A step of the run; None where none is known.
    """

    answer: LaunchAnswer
    parts: dict[str, float]
    changes: tuple[RowChange, ...]
    causes: tuple[SlowdownCause, ...] = ()
    measured: MeasuredSteps | None = None


def explain_launch_plan(
    answer: LaunchAnswer, measured: str | None = None
) -> LaunchExplanation:
    """Explain what bounds a run that was priced.

    Args:
        answer: The answer of `price_launch_plan` or `search_launcher`.
        measured: A step of the run, as "0.83s", or a log.

    Raises:
        InputError: If the plan cannot be, or no step can be read.
    """
    plan, setting = answer.plan, answer.setting
    if answer.answer.step_time is None:
        raise InputError(f"{plan.words}: {answer.answer.reason}")
    batch, words = plan.batch or 1, priced_spec(plan, setting)
    sizes = RunSizes(batch, batch * setting.decoder.length, plan.world or 1)
    steps = None if measured is None else measured_steps(measured, sizes)
    changes = tuple(row_changes(setting, words))
    parts = row_parts(setting, words)
    causes = row_causes(setting, words, parts, None if steps is None else steps.seconds)
    return LaunchExplanation(answer, parts, changes, causes, steps)


def explain_plan(
    plan: Plan,
    *,
    model: str | None = None,
    cluster: str | Cluster | None = None,
    measured: str | float | None = None,
    progress: Callable[[str], None] | None = None,
) -> PlanExplanation | LaunchExplanation:
    """Explain what bounds a plan's step, and which single changes would help most.

    Args:
        plan: The plan, which was searched, given or read.
        model: The model by its name, where the plan's file does not say how to make it.
        cluster: The cluster, where the file does not say how to make it.
        measured: A measured step of a run of it: seconds, words such as "0.83s", or the path of a
            log.
        progress: Called with a line for each thing that is done.

    Raises:
        InputError: If the model or the cluster cannot be made, or no step can be read.
        MismatchError: If the plan is of another model or cluster.
    """
    file = plan.file
    step = f"{measured}s" if isinstance(measured, (int, float)) else measured
    if file.words is not None:
        return explain_launch_plan(price_file(file, cluster, model), step)
    from gnnplace.explaining.captured import explain_captured

    return explain_captured(
        plan, model=model, cluster=cluster, measured=step, progress=progress
    )
