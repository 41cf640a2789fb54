"""What a launch file carries of a plan, in words."""

from __future__ import annotations

from gnnplace.plans.launch.exporting import LaunchFile, loss_line
from gnnplace.plans.plan import Plan
from gnnplace.report.units import seconds_text


def launch_lines(plan: Plan, made: LaunchFile, path: str) -> list[str]:
    """What `gnnplace convert --to` prints: what is written, what is lost, how to start.

    Args:
        plan: that was written.
        made: the launch file.
        path: where it was written to.
    """
    lines = [f"{plan.file.model} on {plan.file.cluster}: {made.plan.words}"]
    lines += [f"  not carried: {loss_line(loss)}" for loss in made.losses]
    if made.seconds is not None:
        lines.append(
            f"  predicted: {seconds_text(plan.step_time)} a step as planned, "
            f"{seconds_text(made.seconds)} as written"
        )
    return [*lines, f"written to {path}; start: {made.command.replace('FILE', path)}"]
