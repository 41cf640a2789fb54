"""`explain_plan` and `explain_launch_plan`: what limits a plan's step, and what would help.

A plan in words is priced by its model's sizes, without torch. For every other plan the model is
captured. Both become an `ExplainedStep`, from which parts, causes and changes are computed.
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
    measured_steps,
)
from gnnplace.explaining.steps import ExplainedStep, step_causes, step_parts
from gnnplace.launch import LaunchAnswer, price_file, with_priced_schedule
from gnnplace.plans import MemoryEntry, Plan
from gnnplace.problem import Cluster


@dataclass(frozen=True, kw_only=True)
class StepExplanation:
    """An explanation of a step.

    Attributes:
        parts: Seconds of the step by what they go to (`PARTS`). They add up to the step.
        changes: Single changes that fit, the fastest first.
        tried: The number of changes that were priced.
        causes: What may make a run slower than predicted, the likeliest first.
        measured: A step of a run; None where none is known.
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
        answer: Its price.
    """

    answer: LaunchAnswer


@dataclass(frozen=True, kw_only=True)
class PlanExplanation(StepExplanation):
    """An explanation of what bounds a captured model's plan.

    Attributes:
        plan: The plan that was explained.
        step_time: Predicted seconds of a step.
        interval: Interval that holds nine in ten steps.
        fullest: The name of the fullest device.
        memory: Bytes that the fullest device holds.
        room: Bytes that the fullest device has.
        fits: Whether every device holds the plan.
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
        measured: A step of a run of it; None: causes are those of any run.

    Raises:
        InputError: If the plan cannot be.
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
    """Explain what bounds a run that was priced.

    Args:
        answer: The answer of `price_launch_plan` or `search_launcher`.
        measured: A step of the run, as "0.83s", or a log.

    Raises:
        InputError: If the plan cannot be, or no step can be read.
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
        steps = measured_steps(measured, sizes)
    explained = explain_step(
        SpecStep(setting, with_priced_schedule(plan, setting)), steps
    )
    return LaunchExplanation(answer=answer, **vars(explained))


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
    run = f"{measured}s" if isinstance(measured, (int, float)) else measured
    if file.words is not None:
        return explain_launch_plan(price_file(file, cluster, model), run)
    steps = None if run is None else measured_steps(run, find_run_sizes(file))
    if progress is not None:
        progress("explaining: capturing the model")
    from gnnplace.explaining.captured import capture_plan_step

    step = capture_plan_step(plan, model, cluster)
    if progress is not None:
        progress("explaining: pricing single changes")
    explained = explain_step(step, steps)

    # The plan's file has the memory and the interval of the step that it predicted.
    priced = step.planned
    rank = max(range(len(priced.chunks)), key=priced.held)
    stage = priced.draft.stages[priced.draft.ranks.index(rank)]
    name = step.fabric.cluster.devices[stage.mesh.first].name
    low, high = file.interval or (file.step_time or 0.0,) * 2
    scale = priced.step_time / (file.step_time or priced.step_time)
    return PlanExplanation(
        plan=plan,
        step_time=priced.step_time,
        interval=(low * scale, high * scale),
        fullest=name,
        memory=file.memory[name],
        room=priced.memory[rank] + file.memory[name].slack,
        fits=priced.lacking[1] <= 0,
        **vars(explained),
    )
