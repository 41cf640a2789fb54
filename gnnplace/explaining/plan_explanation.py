"""`explain_plan` and `explain_launch_plan`: what limits a plan's step, and what would help.

A plan that came from a launcher's words is priced by its model's sizes, without torch. For every
other plan the model is captured. Both become an `ExplainedStep`, from which `explain_step` computes
the parts of the step, the causes of a slow run, and the changes that would help.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gnnplace.errors import InputError
from gnnplace.explaining.causes import SlowdownCause
from gnnplace.explaining.changes import PlanChange
from gnnplace.explaining.in_words import SpecStep
from gnnplace.explaining.measured_steps import (
    MeasuredSteps,
    RunSizes,
    find_run_sizes,
    read_measured_steps,
)
from gnnplace.explaining.steps import ExplainedStep, step_causes, step_parts
from gnnplace.launch import LaunchAnswer, price_file, with_priced_schedule
from gnnplace.plans import MemoryEntry, Plan
from gnnplace.problem import Cluster


@dataclass(frozen=True, kw_only=True)
class StepExplanation:
    """An explanation of a plan's step.

    Attributes:
        parts: Seconds of the step by what they are spent on (`PARTS`). They add up to the step.
        changes: Single changes of the plan that fit in memory, the fastest first.
        tried: The number of changes that were priced.
        causes: Causes that may make a run slower than predicted, the likeliest first.
        measured: The measured steps of a run; None if no run was given.
    """

    parts: dict[str, float]
    changes: tuple[PlanChange, ...]
    tried: int
    causes: tuple[SlowdownCause, ...] = ()
    measured: MeasuredSteps | None = None

    @property
    def bound(self) -> str:
        """Return the part of the step that takes the most seconds."""
        return max(self.parts, key=self.parts.__getitem__)


@dataclass(frozen=True, kw_only=True)
class LaunchExplanation(StepExplanation):
    """An explanation of what bounds a run of a launch file, or of a plan in words.

    Attributes:
        answer: The priced plan that was explained.
    """

    answer: LaunchAnswer


@dataclass(frozen=True, kw_only=True)
class PlanExplanation(StepExplanation):
    """An explanation of what bounds a captured model's plan.

    Attributes:
        plan: The plan that was explained.
        step_time: Predicted seconds of a step.
        interval: Seconds between which nine in ten steps are expected.
        fullest: The name of the fullest device.
        memory: Bytes that the fullest device needs, by what they are.
        room: Bytes that the fullest device has.
        fits: Whether the plan fits in the memory of every device.
    """

    plan: Plan
    step_time: float
    interval: tuple[float, float]
    fullest: str
    memory: MemoryEntry
    room: float
    fits: bool = True


def explain_step(
    step: ExplainedStep, measured: MeasuredSteps | None = None
) -> StepExplanation:
    """Explain what bounds a step, and which single changes would help most.

    Args:
        step: The step.
        measured: Measured steps of a run of the plan. With None, causes are ranked by how often
            they occur.

    Raises:
        InputError: The plan cannot be priced; the message says why.
    """
    changes = [PlanChange(text, answer) for text, answer in step.price_changes()]
    fitting = [change for change in changes if change.answer.feasible]
    parts = step_parts(step)
    if measured is None:
        seconds = None
    else:
        seconds = measured.seconds
    return StepExplanation(
        parts=parts,
        changes=tuple(sorted(fitting, key=lambda change: change.step_time)),
        tried=len(changes),
        causes=step_causes(step, parts, seconds),
        measured=measured,
    )


def explain_launch_plan(
    answer: LaunchAnswer, measured: str | None = None
) -> LaunchExplanation:
    """Explain what bounds a launcher's run, from its price.

    Args:
        answer: The answer of `price_launch_plan` or `search_launcher`.
        measured: A measured step of the run, such as "0.83s", or the path of a log.

    Raises:
        InputError: The plan cannot be priced, or no step can be read.
    """
    plan = answer.plan
    setting = answer.setting
    if answer.answer.step_time is None:
        raise InputError(f"{plan.words}: {answer.answer.reason}")
    batch = plan.batch or 1
    sizes = RunSizes(batch, batch * setting.decoder.length, plan.world or 1)
    if measured is None:
        steps = None
    else:
        steps = read_measured_steps(measured, sizes)
    step = SpecStep(setting, with_priced_schedule(plan, setting))
    explanation = explain_step(step, steps)
    return LaunchExplanation(answer=answer, **vars(explanation))


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
        plan: The plan: found by a search, priced, or read from a file.
        model: The model's name. Required if the plan's file does not say how to make the model.
        cluster: The cluster. Required if the plan's file does not say how to make it.
        measured: A measured step of a run of the plan: seconds, a text such as "0.83s", or the path
            of a log.
        progress: Called with a line when something begins that takes seconds.

    Raises:
        InputError: The model or the cluster cannot be made, or no step can be read.
        MismatchError: The plan is of another model or cluster.
    """
    file = plan.file
    run_text = f"{measured}s" if isinstance(measured, (int, float)) else measured
    if file.words is not None:
        return explain_launch_plan(price_file(file, cluster, model), run_text)
    if run_text is None:
        steps = None
    else:
        steps = read_measured_steps(run_text, find_run_sizes(file))
    if progress is not None:
        progress("explaining: capturing the model")
    from gnnplace.explaining.captured import capture_plan_step

    step = capture_plan_step(plan, model, cluster)
    if progress is not None:
        progress("explaining: pricing single changes")
    explanation = explain_step(step, steps)

    # The first device of the fullest rank.
    priced = step.planned
    draft = priced.draft
    fullest_rank = max(range(len(priced.chunks)), key=priced.held)
    stage = draft.stages[draft.ranks.index(fullest_rank)]
    fullest = step.fabric.cluster.devices[stage.mesh.first].name
    _, missing_bytes = priced.lacking

    # The file has the interval of its own prediction; scale it to the step that is priced here.
    file_step_time = file.step_time or 0.0
    low, high = file.interval or (file_step_time, file_step_time)
    scale = priced.step_time / (file.step_time or priced.step_time)
    return PlanExplanation(
        plan=plan,
        step_time=priced.step_time,
        interval=(low * scale, high * scale),
        fullest=fullest,
        memory=file.memory[fullest],
        room=priced.memory[fullest_rank] + file.memory[fullest].slack,
        fits=missing_bytes <= 0,
        **vars(explanation),
    )
