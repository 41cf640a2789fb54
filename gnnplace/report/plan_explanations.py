"""What bounds a plan and what would help, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from gnnplace.explaining import (
    PARTS,
    LaunchExplanation,
    MeasuredSteps,
    PlanExplanation,
    SlowdownCause,
    StepExplanation,
)
from gnnplace.report.answer import Answer, Lines
from gnnplace.report.launch import describe_launch, launch_data
from gnnplace.report.plans import basis_line, interval_share
from gnnplace.report.rates import rates_line
from gnnplace.units import bytes_text, seconds_text

MOST = 3  # changes that are told
MOST_CAUSES = 4


def _plan_lines(found: PlanExplanation) -> list[str]:
    """Format what bounds a plan, what would help, and what slows a run of it down."""
    step, (low, high) = found.step_time, found.interval
    share = interval_share(found.plan.file)
    if high:
        range_told = f"({seconds_text(low)} to {seconds_text(high)} in {share}), "
    else:
        range_told = ""
    lines = [
        f"{found.plan.file.model} on {found.plan.file.cluster}: {seconds_text(step)} a step, "
        f"predicted {range_told}{found.plan.shape}",
        f"  {basis_line(found.plan)}",
        f"  {rates_line(found.plan.file, step)}",
        *part_lines(found, step),
    ]
    memory = found.memory
    parts_of_memory = ", ".join(
        f"{name} {bytes_text(size)}" for name, size in memory.model_dump().items()
    )
    lines.append(
        f"  fullest device {found.fullest}: {bytes_text(memory.all)} of "
        f"{bytes_text(found.room)} ({parts_of_memory})"
    )
    lines += change_lines(found, step, fits=found.fits)
    return [*lines, *_make_measured_lines(found)]


def _make_measured_lines(found: PlanExplanation) -> list[str]:
    """Return lines that compare a run with the prediction and name likely causes."""
    steps = found.measured
    if steps is None:
        return []
    references = [f"    {rates_line(found.plan.file, steps.seconds)}"]
    if bound := found.plan.file.lower_bound:
        references.append(
            f"    {steps.seconds / bound:.2f} times the bound, {seconds_text(bound)}"
        )
    place, *lines = format_measured_lines(
        steps, found.step_time, found.interval, found.causes
    )
    return [place, *references, *lines]


def format_measured_lines(
    steps: MeasuredSteps,
    step: float,
    interval: tuple[float, float],
    causes: Sequence[SlowdownCause],
) -> list[str]:
    """Return lines that compare a run with its predicted seconds and interval.

    Args:
        steps: The measured steps.
        step: seconds that are predicted.
        interval: The predicted interval, which holds most steps.
        causes: what would explain the gap, the likeliest first.
    """
    if interval[0] <= steps.seconds <= interval[1]:
        place = "inside"
    else:
        place = "outside"
    gap = steps.seconds - step
    origin = ""
    if steps.source:
        details = [f"{steps.warm_up} before them are warm-up", *steps.notes]
        origin = (
            f", the median of {steps.count} steps on lines {steps.first_line} to "
            f"{steps.last_line} of {steps.source}'s log ({'; '.join(details)})"
        )
    lines = [
        f"  measured {seconds_text(steps.seconds)} a step{origin}: {steps.seconds / step - 1:+.1%} "
        f"of the predicted, {place} of its interval"
    ]
    if gap <= 0:
        return [*lines, "    faster than predicted: nothing of the run is slow"]
    lines.append(f"    what would explain {seconds_text(gap)}, the likeliest first:")
    for cause in causes[:MOST_CAUSES]:
        explained = f"{seconds_text(cause.seconds)}, {cause.share:.0%} likely"
        lines.append(f"      {cause.text} ({explained}); {cause.first}")
    return lines


def describe_launch_explanation(
    found: LaunchExplanation, *, name: str, cluster: str
) -> Answer:
    """Describe what bounds a launcher's plan, for `gnnplace explain FILE`.

    Args:
        found: The explanation.
        name: The model or the file, as the caller named it.
        cluster: The cluster, as the caller named it.
    """
    priced = describe_launch(found.answer, model=name, cluster=cluster)
    answer = found.answer.answer
    step = answer.step_time or 0.0
    lines = part_lines(found, step)
    lines += change_lines(found, step, fits=answer.feasible)
    if found.measured is not None:
        interval = (answer.low or 0.0, answer.high or 0.0)
        lines += format_measured_lines(found.measured, step, interval, found.causes)
    data = {
        **launch_data(found.answer),
        "parts": found.parts,
        "changes": [{"change": x.text, **asdict(x.answer)} for x in found.changes],
        "bound": found.bound,
        "measured": found.measured,
        "suspects": causes_data(found.causes),
    }
    return replace(priced, sections=[*priced.sections, Lines(lines)], data=data)


def part_lines(found: StepExplanation, step: float) -> list[str]:
    """Format what bounds a step and its parts, the largest first.

    A part below a thousandth of the step is left out.

    Args:
        found: The explanation.
        step: Seconds of the step.
    """
    largest = found.parts[found.bound]
    lines = [f"  bound by {PARTS[found.bound]}: {largest / step:.0%} of the step"]
    for name, seconds in sorted(found.parts.items(), key=lambda row: -row[1]):
        if seconds > 1e-3 * step:
            share = seconds / step
            time = seconds_text(seconds)
            lines.append(f"    {share:6.1%}  {time:>9}  {PARTS[name]}")
    return lines


def change_lines(found: StepExplanation, step: float, *, fits: bool) -> list[str]:
    """Format the single changes that are worth most.

    Args:
        found: The explanation.
        step: Seconds of the step.
        fits: Whether the plan fits. One that does not is worth every change that does.
    """
    lines = [f"  single changes worth most, of {found.tried} that were priced:"]
    better = [change for change in found.changes if not fits or change.step_time < step]
    for change in better[:MOST]:
        lines.append(
            f"    {change.text}: {seconds_text(change.step_time)} "
            f"({change.step_time / step - 1:+.1%}), "
            f"{bytes_text(change.answer.peak or 0.0)} on the fullest device"
        )
    if better:
        return lines
    return [*lines, "    none that fits is faster"]


def causes_data(causes: Sequence[SlowdownCause]) -> list[dict[str, Any]]:
    """Return what would explain the gap, the likeliest first; without a run all that may."""
    return [
        {
            "cause": cause.name,
            "told": cause.text,
            "factor": cause.factor,
            "seconds": cause.seconds,
            "share": cause.share,
            "first": cause.first,
        }
        for cause in causes
    ]


def describe_plan_explanation(found: PlanExplanation) -> Answer:
    """Describe what bounds a plan and what would help, for `gnnplace explain PLAN.json`."""
    data = {
        "step_time": found.step_time,
        "interval": list(found.interval),
        "bound": found.bound,
        "parts": found.parts,
        "device": found.fullest,
        "memory": found.memory.model_dump(),
        "room": found.room,
        "changes": [
            {"change": x.text, "step_time": x.step_time, "held": x.answer.peak}
            for x in found.changes
        ],
        "tried": found.tried,
        "measured": found.measured,
        "suspects": causes_data(found.causes),
    }
    title = f"{found.plan.file.model} on {found.plan.file.cluster}"
    return Answer(title, [Lines(_plan_lines(found))], data)
