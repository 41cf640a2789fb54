"""What a launch file carries of a plan, and what a launcher's plan takes, in words."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from gnnplace.launch import LaunchAnswer, LaunchFile, with_priced_schedule
from gnnplace.plans import Plan, device_peaks, roofline_line
from gnnplace.report.answer import Answer, Lines
from gnnplace.report.money import compute_cost, cost_lines
from gnnplace.report.plans import job_words
from gnnplace.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Mapping


def describe_launch_file(
    launch_file: LaunchFile, *, path: str, plan: Plan | None = None, source: str = ""
) -> Answer:
    """Describe a launch file that was written: what it cannot carry, and how to start it.

    Args:
        launch_file: The launch file.
        path: Where it was written to.
        plan: The plan that was written; None where another launcher's file was converted.
        source: The path of that file.
    """
    if plan is not None:
        lines = launch_lines(plan, launch_file, path)
    else:
        lines = format_converted_lines(launch_file, source, path)
    return Answer(title=path, sections=[Lines(lines)])


def launch_lines(plan: Plan, launch_file: LaunchFile, path: str) -> list[str]:
    """Format what `gnnplace convert --to` prints: the file, what it cannot carry, how to start.

    Args:
        plan: The plan that was written.
        launch_file: the launch file.
        path: where it was written to.
    """
    lines = [f"{plan.file.model} on {plan.file.cluster}: {launch_file.plan.words}"]
    lines += [f"  not carried: {loss.line}" for loss in launch_file.losses]
    if launch_file.seconds is not None:
        lines.append(
            f"  predicted: {seconds_text(plan.step_time)} a step as planned, "
            f"{seconds_text(launch_file.seconds)} as written"
        )
    if launch_file.beside is not None:
        lines.append(
            f"  order of actions: beside it, in {Path(path).with_suffix('.csv')}"
        )
    return [
        *lines,
        f"written to {path}; start: {launch_file.command.replace('FILE', path)}",
    ]


def format_converted_lines(converted: LaunchFile, source: str, path: str) -> list[str]:
    """Format what `gnnplace convert FILE --to` prints of another launcher's file.

    Args:
        converted: The file that was written.
        source: Path of the file that was read.
        path: Where it was written to.
    """
    lines = [f"{Path(source).name}: {converted.plan.words}"]
    lines += [f"  not carried: {loss.line}" for loss in converted.losses]
    return [
        *lines,
        f"written to {path}; start: {converted.command.replace('FILE', path)}",
    ]


def describe_launch(
    found: LaunchAnswer,
    *,
    model: str,
    cluster: str,
    prices: Mapping[str, float] | None = None,
    tokens: float | None = None,
) -> Answer:
    """Describe what a launcher's plan takes, for `gnnplace plan --given FILE`.

    Args:
        found: The plan, and what it takes.
        model: The model, as the caller named it.
        cluster: The cluster, as the caller named it.
        prices: USD a GPU-hour by kind; None where costs are not asked for.
        tokens: Tokens of a whole run, or None.
    """
    data = launch_data(found)
    lines = _answer_lines(found, model, cluster)
    if prices is not None and found.answer.step_time is not None:
        sizes = found.setting.decoder
        cost = compute_cost(
            seconds=found.answer.step_time,
            tokens=(found.plan.batch or sizes.batch) * sizes.length,
            cluster=found.setting.cluster,
            prices=prices,
            run_tokens=tokens,
        )
        lines += cost_lines(cost, tokens)
        data["cost"] = cost
    return Answer(f"{model} on {cluster}", [Lines(lines)], data)


def launch_data(found: LaunchAnswer) -> dict[str, object]:
    """Return a launcher's plan and what it takes as programs get them."""
    interval = None
    if found.answer.low is not None:
        interval = [found.answer.low, found.answer.high]
    schedule = with_priced_schedule(found.plan, found.setting)
    return {
        "words": found.plan.words,
        "framework": found.framework,
        **asdict(found.answer),
        "interval": interval,
        "memory": device_peaks(found.setting, schedule),
        "notes": list(found.notes),
    }


def _answer_lines(found: LaunchAnswer, model: str, cluster: str) -> list[str]:
    """Format a launcher's plan, its time, rate and memory."""
    answer = found.answer
    framework = found.setting.framework
    sizes = found.setting.decoder
    if sizes.adapters is None:
        adapters = []
    else:
        adapters = [sizes.adapters.label]
    if answer.step_time is None:
        return [f"{model} on {cluster}: {found.plan.words}: {answer.reason}"]
    lines = [
        f"{model} on {cluster}, as {found.framework} trains: {seconds_text(answer.step_time)} a "
        f"step, predicted ({seconds_text(answer.low)} to {seconds_text(answer.high)} in four of "
        f"five)",
        "  "
        + job_words(
            parameters=sizes.parameters,
            batch=found.plan.batch or sizes.batch,
            length=sizes.length,
            options=(framework.precision, framework.optimizer, *adapters),
            defaults=(),
        ),
        f"  {found.plan.words}",
        f"  {answer.tokens_per_second or 0.0:,.0f} tokens/s, {bytes_text(answer.peak or 0.0)} on "
        f"the fullest device, which has them with a probability of {answer.fits or 0.0:.0%}",
    ]
    lines += [f"  {answer.reason}"] if answer.reason else []
    if framework.kernels.is_roofline:
        lines.append(f"  {roofline_line(found.setting.cluster)}")
    return lines + [f"  {line}" for line in found.notes]
