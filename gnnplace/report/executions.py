"""The run of a placement: its step time beside the predicted one, what it computed, memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gnnplace.measurements import is_disturbed
from gnnplace.report.answer import Answer, Lines
from gnnplace.report.rows import eager_line
from gnnplace.report.timeline import (
    Timeline,
    from_execution,
    from_simulation,
    make_page,
)
from gnnplace.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from gnnplace.problem import Problem
    from gnnplace.run.measuring import Executed
    from gnnplace.run.placed import Execution
    from gnnplace.simulation import Simulation

RUN_WORDS = (
    "wall: the clock; virtual: the workers' own processor time, undisturbed by others"
)


def describe_execution(
    run: Executed,
    *,
    problem: Problem,
    predicted: Simulation,
    name: str,
    forward_only: bool = False,
    eager: Mapping[int, float] | None = None,
) -> Answer:
    """Describe a run of a placement.

    Args:
        run: The run.
        problem: What was placed.
        predicted: The step as it was predicted.
        name: What the step is called on a page and in a trace.
        forward_only: Whether a step has no backward pass, so that no gradients were compared.
        eager: Seconds of an eager step by number of cores, where it does the same work.
    """
    names = [device.name for device in problem.cluster.devices]
    memory = dict(zip(names, predicted.peak_memory.tolist(), strict=True))

    def get_steps() -> list[Timeline]:
        """Return the step as it was run, and as it was predicted."""
        return [
            from_execution(problem, run.execution, name),
            from_simulation(problem, predicted, name),
        ]

    lines = [
        *_time_lines(run.execution, predicted.step_time),
        run.verification.summary(),
    ]
    if not forward_only:
        lines.append(run.whole.summary())
    lines += _memory_lines(run.execution, memory)
    if eager:
        lines.append(eager_line(eager))
    lines.append(RUN_WORDS)
    return Answer(
        title=f"{problem.name} on {problem.num_devices} devices",
        sections=[Lines(lines)],
        data=lambda: _execution_data(run, predicted.step_time, memory, eager or {}),
        page=lambda: make_page(problem, get_steps(), beside=True),
        steps=get_steps,
    )


def _is_disturbed(execution: Execution) -> bool:
    """Return whether other programs interrupted steps that were measured on CPU cores."""
    rows = [(step.wall, step.virtual, step.interrupted) for step in execution.steps]
    on_gpus = any(name.startswith("cuda:") for name in execution.devices)
    return execution.mode == "measured" and not on_gpus and is_disturbed(rows)


def _time_lines(execution: Execution, predicted: float) -> list[str]:
    """Format the step time, beside the predicted seconds where they may be compared."""
    if execution.caveat:
        prediction = ""
    else:
        prediction = f"predicted {seconds_text(predicted)}"
    wall = execution.wall_step_time
    virtual = execution.virtual_step_time
    if _is_disturbed(execution):
        # The wall clock timed the other programs as well; the workers' own time is what compares.
        if prediction:
            comparison = f" ({prediction})"
        else:
            comparison = ""
        line = (
            f"measured: {seconds_text(virtual)} of the workers' own time{comparison}; "
            f"{seconds_text(wall)} by the clock, because other programs had the cores "
            f"(medians of {len(execution.steps)} steps, all interrupted)"
        )
    else:
        line = (
            f"{execution.mode} step time: {seconds_text(execution.step_time)} "
            f"({prediction}{'; ' if prediction else ''}median of {len(execution.steps)} steps, "
            f"{execution.num_interrupted} interrupted; wall {seconds_text(wall)}, "
            f"virtual {seconds_text(virtual)})"
        )
    if not execution.caveat:
        return [line]
    return [
        line,
        f"predicted step time: {seconds_text(predicted)}",
        f"not to be compared: {execution.caveat}",
    ]


def _memory_lines(execution: Execution, predicted: Mapping[str, float]) -> list[str]:
    """Format the bytes of each device, beside the predicted ones by its name."""
    lines = []
    for name, memory in execution.memory.items():
        buffers = f"message buffers {bytes_text(memory.messages)}"
        if memory.process is not None:
            process = bytes_text(memory.process)
            buffers = f"process and libraries {process}, {buffers}"
        peak = bytes_text(memory.peak)
        state = bytes_text(memory.state)
        lines.append(
            f"memory of {name}: {peak} in a step, {state} of it state "
            f"(predicted {bytes_text(predicted[name])}); held beside: {buffers}"
        )
    return lines


def _execution_data(
    run: Executed,
    predicted: float,
    memory: Mapping[str, float],
    eager: Mapping[int, float],
) -> dict[str, Any]:
    """Return a run as plain data.

    Args:
        run: The run.
        predicted: Predicted seconds of a step.
        memory: Predicted bytes by device.
        eager: Seconds of an eager step by number of cores.
    """
    execution = run.execution
    return {
        "mode": execution.mode,
        "step_time": execution.step_time,
        "wall_step_time": execution.wall_step_time,
        "virtual_step_time": execution.virtual_step_time,
        "predicted_step_time": predicted,
        "comparable": not execution.caveat,
        "disturbed": _is_disturbed(execution),
        "verified": run.passed,
        "bitwise": run.verification.bitwise,
        "peak_memory": execution.peak_memory,
        "predicted_peak_memory": memory,
        "memory": {
            name: asdict(device_memory)
            for name, device_memory in execution.memory.items()
        },
        "loss": execution.first.loss if execution.first else None,
        "eager_step_time": {str(cores): seconds for cores, seconds in eager.items()},
    }
