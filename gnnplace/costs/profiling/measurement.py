"""Measured op times: every op of a program timed in place, in a worker of its own.

The program is one straight-line Python function that notes a clock after every op. On CPU the
worker has one thread and its clock is the CPU time of that thread, so that being preempted on a
busy machine does not count; on CUDA events between the ops are its clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch

from gnnplace.arrays import FloatArray
from gnnplace.costs.profiling.cache import spread
from gnnplace.errors import InputError
from gnnplace.run.workers import Task, available_cores, run_tasks
from gnnplace.tracing import CallWriter, Program, clone_initial, on_device, set_step

WARM_UP = 2
MOST = 15
LEAST = 3
BUDGET = 6.0
"""Seconds after which no further step is begun (at least `LEAST` are)."""
TIMEOUT = 600.0
"""Seconds after which a step that does not end is given up."""
NANO = 1e-9
MILLI = 1e-3
Step = Callable[[dict[str, torch.Tensor], Callable[[], None]], None]


def measure_ops(program: Program, device: str = "cpu") -> tuple[FloatArray, float]:
    """Return the median seconds of every op over warm steps, and how much whole steps differ.

    Args:
        program: A program with its initial tensors, which stay as they are.
        device: "cpu", or a CUDA device such as "cuda:0".

    Returns:
        Seconds of each op [num_ops]; interquartile range over median of the steps' seconds.

    Raises:
        InputError: The program was captured without tensors.
        ExecutionError: An op failed on the device.
    """
    if not program.initial:
        raise InputError(
            f"{program.name}: captured without tensors; its ops can't be measured"
        )
    task = Task(
        f"profile of {device}",
        lambda: _measure(program, torch.device(device)).tolist(),
        available_cores()[0],
    )
    rows = np.array(run_tasks([task], timeout=TIMEOUT)[0], dtype=np.float64)
    return np.median(rows, axis=0), spread(rows.sum(axis=1))


def _measure(program: Program, device: torch.device) -> FloatArray:
    """Return the seconds of each op in each step. [steps, num_ops]"""
    start = time.perf_counter()
    rows = []
    set_step(0)
    with torch.inference_mode():
        step = straight_line(program, device)
        if device.type == "cuda":
            clock = _cuda_step
        else:
            clock = _cpu_step
        for repetition in range(WARM_UP + MOST):
            inputs = {
                name: tensor.to(program.inputs[name].home(device))
                for name, tensor in clone_initial(program).items()
            }
            rows.append(clock(lambda tick, given=inputs: step(given, tick)))  # type: ignore[misc]
            late = time.perf_counter() - start > BUDGET
            if repetition + 1 >= WARM_UP + LEAST and late:
                break
    return np.array(rows[WARM_UP:])


def _cpu_step(step: Callable[[Callable[[], None]], None]) -> FloatArray:
    """Return the seconds between ticks of a step, less what a tick itself takes. [num_ops]"""
    stamps: list[int] = []

    def tick(append: Callable[[int], None] = stamps.append) -> None:
        append(time.thread_time_ns())

    for _ in range(64):
        tick()
    tick_time = float(np.median(np.diff(stamps)))
    stamps.clear()
    step(tick)
    return (
        np.maximum(np.diff(np.array(stamps, dtype=np.float64)) - tick_time, 0.0) * NANO
    )


def _cuda_step(step: Callable[[Callable[[], None]], None]) -> FloatArray:
    """Return the seconds between events of the current stream."""
    events: list[torch.cuda.Event] = []

    def tick() -> None:
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()

    step(tick)
    events[-1].synchronize()
    pairs = pairwise(events)
    return np.array([a.elapsed_time(b) for a, b in pairs]) * MILLI


def straight_line(program: Program, device: torch.device) -> Step:
    """Compile a program.

    Args:
        program: What to run, in its own order.
        device: Takes the place of every device among the arguments.

    Returns:
        `step(inputs, tick)`: runs all ops on the inputs (which updates change in place) and calls
        `tick()` before the first and after each. Values are freed after their last use, before
        the tick, so that the cost of freeing is the op's.
    """
    return _StraightWriter(program, device).compiled()


class _StraightWriter:
    def __init__(self, program: Program, device: torch.device) -> None:
        self.program = program
        self.names: dict[str, str] = {}
        self.calls = CallWriter(self.name, lambda value: on_device(value, device))
        last = {
            name: i
            for i, op in enumerate(program.ops)
            for name in (*op.reads, *op.results)
        }
        self.dying: dict[int, list[str]] = {}
        for name, i in last.items():
            if name is not None and name not in program.inputs:
                self.dying.setdefault(i, []).append(name)

    def compiled(self) -> Step:
        body = [f"{self.name(n)} = inputs[{n!r}]" for n in self.program.inputs]
        body.append("tick()")
        for i, op in enumerate(self.program.ops):
            body += self.calls.lines(op)
            if i in self.dying:
                body.append("del " + ", ".join(self.name(n) for n in self.dying[i]))
            body.append("tick()")
        source = "def step(inputs, tick):\n    " + "\n    ".join(body) + "\n"
        scope = dict(self.calls.constants)
        exec(compile(source, "<gnnplace profiled program>", "exec"), scope)
        step: Step = scope["step"]
        return step

    def name(self, value: str) -> str:
        return self.names.setdefault(value, f"v{len(self.names)}")
