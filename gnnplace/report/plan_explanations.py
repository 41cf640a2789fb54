"""What bounds a plan and what would help, in words."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gnnplace.plans.explaining import PARTS, PlanExplanation
from gnnplace.report.rates import rates_line
from gnnplace.report.units import bytes_text, seconds_text

MOST = 3  # changes that are told


def plan_explanation_lines(found: PlanExplanation) -> list[str]:
    """What `gnnplace explain PLAN.json` prints."""
    step, (low, high) = found.step_time, found.interval
    lines = [
        f"{found.plan.file.model} on {found.plan.file.cluster}: {seconds_text(step)} a step, "
        f"predicted ({seconds_text(low)} to {seconds_text(high)} in nine of ten), "
        f"{found.plan.shape}",
        f"  {rates_line(found.plan.file, step)}",
        f"  bound by {PARTS[found.bound]}: {found.parts[found.bound] / step:.0%} of the step",
    ]
    for name, seconds in sorted(found.parts.items(), key=lambda x: -x[1]):
        if seconds > 0.0005 * step:
            lines.append(f"    {seconds / step:6.1%}  {seconds_text(seconds):>9}  {PARTS[name]}")
    memory = found.memory
    told = ", ".join(f"{name} {bytes_text(size)}" for name, size in memory.model_dump().items())
    lines.append(f"  fullest device {found.fullest}: {bytes_text(memory.all)} of "
                 f"{bytes_text(found.room)} ({told})")  # fmt: skip
    lines.append(f"  single changes worth most, of {found.tried} that were priced:")
    for change in found.changes[:MOST]:
        more = change.step_time / step - 1
        lines.append(f"    {change.told}: {seconds_text(change.step_time)} ({more:+.1%}), "
                     f"{bytes_text(change.held)} on the fullest device")  # fmt: skip
    if not found.changes:
        lines.append("    none that fits is faster")
    return [*lines, *_measured(found)]


def _measured(found: PlanExplanation) -> list[str]:
    """How far a run is from the prediction, and what would explain it."""
    steps = found.measured
    if steps is None:
        return []
    (low, high), step = found.interval, found.step_time
    place = "inside" if low <= steps.seconds <= high else "outside"
    told = ""
    if steps.source:
        told = f", the median of {steps.count} of {steps.source}'s log after {steps.left_out}"
    lines = [
        f"  measured {seconds_text(steps.seconds)} a step{told}: {steps.seconds / step - 1:+.1%} "
        f"of the predicted, {place} of its interval"
    ]
    lines.append(f"    {rates_line(found.plan.file, steps.seconds)}")
    if bound := found.plan.file.lower_bound:
        lines.append(f"    {steps.seconds / bound:.2f} times the bound, {seconds_text(bound)}")
    if found.gap <= 0:
        return [*lines, "    faster than predicted: are batch, tokens and precision the plan's?"]
    lines.append(f"    what would explain {seconds_text(found.gap)}, the nearest first:")
    lines += [f"      {x.told}: {seconds_text(x.seconds)}; {x.first}" for x in found.likely]
    lines.append("      what is left: data loader, logging, checkpoints; run with made-up data")
    return lines


def plan_explanation_data(found: PlanExplanation) -> dict[str, Any]:
    """What `gnnplace explain PLAN.json --json` prints."""
    return {
        "step_time": found.step_time,
        "interval": list(found.interval),
        "bound": found.bound,
        "parts": found.parts,
        "device": found.fullest,
        "memory": found.memory.model_dump(),
        "room": found.room,
        "changes": [
            {"change": x.told, "step_time": x.step_time, "held": x.held} for x in found.changes
        ],
        "tried": found.tried,
        "measured": None if found.measured is None else asdict(found.measured),
        "suspects": [asdict(x) for x in (found.likely if found.measured else found.suspects)],
    }
