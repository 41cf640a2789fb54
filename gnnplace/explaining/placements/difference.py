"""What two placements of one problem do differently: which modules moved, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.errors import MismatchError
from gnnplace.explaining.placements.modules import module_rows
from gnnplace.problem import Placement, Problem
from gnnplace.simulation import Simulation, simulate


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
    peak_memory: FloatArray
    busy: FloatArray
    faults: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class PlacementDifference:
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


def difference(
    problem: Problem, before: Placement, after: Placement, other: Problem | None = None
) -> PlacementDifference:
    """Simulate two placements of a problem and compare them.

    Args:
        problem: what was placed.
        before: a placement.
        after: another one.
        other: the same model as it was placed then, under other constraints or grouped otherwise.

    Raises:
        MismatchError: they are no placements of one model on one cluster.
        DeadlockError: sequences contradict the graph; names the ops of a cycle.
    """
    second = other or problem
    return steps_differ(
        problem, simulate(problem, before), simulate(second, after), second
    )


def steps_differ(
    problem: Problem,
    before: Simulation,
    after: Simulation,
    other: Problem | None = None,
) -> PlacementDifference:
    """Compare two simulated placements of a model.

    Args:
        problem: what was placed first.
        before: its step.
        after: the other step.
        other: what was placed then, if it was grouped otherwise; captured ops are compared then,
            each with its share of its group's seconds.

    Raises:
        MismatchError: they are no placements of one model on one cluster.
    """
    names = tuple(device.name for device in problem.cluster.devices)
    second = other or problem
    if names != tuple(device.name for device in second.cluster.devices):
        raise MismatchError("diff: the placements are on clusters whose devices differ")
    same_groups = second.graph.names == problem.graph.names
    first = _atoms(problem, before, same_groups)
    then = _atoms(second, after, same_groups)
    if first.keys() != then.keys():
        unmatched = sorted(first.keys() ^ then.keys())[0]
        raise MismatchError(
            f"diff: {unmatched!r} is in one of the placements alone; they are of other models, or "
            "cut into other numbers of micro-batches"
        )
    seconds_by_move: dict[tuple[str, int, int], list[float]] = {}
    for name, (module, source, seconds) in first.items():
        target = then[name][1]
        if source != target:
            seconds_by_move.setdefault((module, source, target), []).append(seconds)
    moves = [
        Move(module, names[a], names[b], len(seconds), sum(seconds))
        for (module, a, b), seconds in seconds_by_move.items()
    ]
    moves.sort(key=lambda move: (-move.seconds, -move.ops, move.module))
    stayed = len(first) - sum(move.ops for move in moves)
    return PlacementDifference(
        names, tuple(moves), stayed, _side(problem, before), _side(second, after)
    )


def _atoms(
    problem: Problem, simulation: Simulation, whole: bool
) -> dict[str, tuple[str, int, float]]:
    """Return module row, device and seconds of each op.

    If `whole` is False, of each captured op, because the two problems may group them differently.
    """
    labels, row = module_rows(problem)
    spent = problem.times[np.arange(problem.num_ops), simulation.device].tolist()
    device, atoms = simulation.device.tolist(), {}
    for op, name in enumerate(problem.graph.names):
        parts = (name,) if whole or not problem.members[op] else problem.members[op]
        for part in parts:
            atoms[part] = (labels[row[op]], device[op], spent[op] / len(parts))
    return atoms


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
