"""``Timeline``: one step as lanes of ops, transfers and memory, predicted or measured alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gnnplace.problem import PHASES, Problem
from gnnplace.simulation import Simulation

if TYPE_CHECKING:
    from gnnplace.execution.result import Execution


@dataclass(frozen=True)
class OpSpan:
    """An op on a device, in seconds since the step's start."""

    name: str
    device: int
    start: float
    finish: float
    phase: str
    module: str


@dataclass(frozen=True)
class TransferSpan:
    """A tensor on its way, in seconds since the step's start."""

    name: str
    source: int
    target: int
    start: float
    finish: float
    bytes: float


@dataclass(frozen=True)
class Timeline:
    """One step.

    Attributes:
        label: ``predicted``, ``measured`` or ``emulated``, and whose placement it is.
        devices: names of the lanes.
        memory: for each device the instants (seconds) and the bytes from then on; may be empty.
    """

    label: str
    step_time: float
    devices: tuple[str, ...]
    ops: tuple[OpSpan, ...]
    transfers: tuple[TransferSpan, ...]
    memory: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...] = ()


def from_simulation(problem: Problem, simulation: Simulation, label: str) -> Timeline:
    """The timeline of a predicted step; empty if the placement cannot run."""
    devices = tuple(device.name for device in problem.cluster.devices)
    if not np.isfinite(simulation.step_time):
        return Timeline(f"predicted, {label}", simulation.step_time, devices, (), ())
    graph, t = problem.graph, simulation.transfers
    ops = tuple(
        OpSpan(
            graph.names[i],
            int(simulation.device[i]),
            float(simulation.start[i]),
            float(simulation.finish[i]),
            PHASES[problem.phase[i]],
            problem.module[i] or "",
        )
        for i in range(problem.num_ops)
    )
    transfers = tuple(
        TransferSpan(graph.names[graph.producer[k]], int(a), int(b), float(s), float(e), size)
        for k, a, b, s, e, size in zip(
            t.tensor, t.source, t.target, t.start, t.arrival, graph.size[t.tensor], strict=True
        )
    )
    memory = tuple(
        (tuple(times.tolist()), tuple(total.tolist())) for times, total in simulation.memory_curve
    )
    return Timeline(f"predicted, {label}", simulation.step_time, devices, ops, transfers, memory)


def from_execution(problem: Problem, execution: Execution, label: str) -> Timeline:
    """The timeline of the run's most typical step."""
    devices = tuple(device.name for device in problem.cluster.devices)
    index, step = problem.graph.index, execution.timeline
    lane = problem.cluster.device_index
    ops = tuple(
        OpSpan(
            op.op,
            lane[op.device],
            op.start,
            op.finish,
            PHASES[problem.phase[index[op.op]]],
            problem.module[index[op.op]] or "",
        )
        for op in step.ops
    )
    transfers = tuple(
        TransferSpan(t.producer, lane[t.source], lane[t.target], t.start, t.finish, t.bytes)
        for t in step.transfers
    )
    return Timeline(f"{execution.mode}, {label}", execution.step_time, devices, ops, transfers)
