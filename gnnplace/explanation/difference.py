"""What two placements of one problem do differently: which modules moved, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnplace.explanation.modules import module_rows
from gnnplace.problem import Problem
from gnnplace.simulation import Simulation


@dataclass(frozen=True)
class Move:
    """Work of a module that went from one device to another.

    Attributes:
        module: its name, as far as rows go.
        source: name of the device before.
        target: name of the device after.
        ops: ops that went.
        seconds: their seconds, before.
    """

    module: str
    source: str
    target: str
    ops: int
    seconds: float


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two steps.

    Attributes:
        step_time: seconds; inf where it cannot run.
        transfers: messages between devices.
        bytes: bytes of them.
        peak_memory: bytes of each device. [D]
        busy: seconds each device computes. [D]
        faults: why it cannot be; empty if it can.
    """

    step_time: float
    transfers: int
    bytes: float
    peak_memory: NDArray[np.float64]
    busy: NDArray[np.float64]
    faults: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Difference:
    """Two placements of one problem.

    Attributes:
        devices: names. [D]
        moves: what went elsewhere, the most work first.
        same: ops that stayed.
        before: the first.
        after: the second.
    """

    devices: tuple[str, ...]
    moves: tuple[Move, ...]
    same: int
    before: Side
    after: Side


def difference(problem: Problem, before: Simulation, after: Simulation) -> Difference:
    """What two simulated placements of a problem do differently."""
    names = tuple(device.name for device in problem.cluster.devices)
    labels, row = module_rows(problem)
    moved = np.flatnonzero(before.device != after.device)
    found: dict[tuple[int, int, int], list[int]] = {}
    for op in moved.tolist():
        ends = int(row[op]), int(before.device[op]), int(after.device[op])
        found.setdefault(ends, []).append(op)
    seconds = problem.times[np.arange(problem.num_ops), before.device]
    moves = [
        Move(labels[r], names[a], names[b], len(ops), float(seconds[ops].sum()))
        for (r, a, b), ops in found.items()
    ]
    moves.sort(key=lambda move: (-move.seconds, -move.ops, move.module))
    stayed = problem.num_ops - len(moved)
    return Difference(names, tuple(moves), stayed, _side(problem, before), _side(problem, after))


def _side(problem: Problem, simulation: Simulation) -> Side:
    tensors = simulation.transfers.tensor
    return Side(
        simulation.step_time,
        len(tensors),
        float(problem.graph.size[tensors].sum()),
        simulation.peak_memory,
        simulation.busy_share(problem.num_devices) * simulation.step_time
        if np.isfinite(simulation.step_time)
        else np.zeros(problem.num_devices),
        simulation.faults,
    )
