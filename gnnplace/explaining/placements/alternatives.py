"""The simulated cost of moving an op, or a module, to each other device.

A unit (a colocation class) moves as a whole, even if a pin or a forbid excludes the device, which
is then reported. Two sequences are simulated for each device: the placement's present order, and
the best list schedule for the new devices; the shorter step counts. Complexity: O(D) times a list
schedule by every known priority.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnplace.arrays import IntArray
from gnnplace.errors import InputError
from gnnplace.placers import SearchSpace
from gnnplace.problem import Names


@dataclass(frozen=True, eq=False)
class Alternative:
    """One device for what is asked about.

    Attributes:
        device: its index.
        step_time: seconds; inf where it cannot run so.
        num_moved: ops that go there.
        fault: why it cannot be; empty if it can.
        placed: device of each op. [n]
        order: the order of all ops. [n]
    """

    device: int
    step_time: float
    num_moved: int
    fault: str
    placed: IntArray
    order: IntArray


def find_named_ops(
    space: SearchSpace, *, op: str | None = None, module: str | None = None
) -> IntArray:
    """Find ops by the name of one or by a pattern of modules.

    Raises:
        InputError: there is none; shows names that are like it.
    """
    problem = space.problem
    if op is None and module is None:
        raise InputError("explain: name an op or a module")
    if op is not None:
        names = Names([None] * problem.num_ops, problem.graph.names)
        exact = problem.graph.index.get(op)
        if exact is not None:
            return np.array([exact], dtype=np.int32)
        return np.flatnonzero(names.matched(op, f"op {op}").ops).astype(np.int32)
    names = Names(problem.module, problem.graph.names)
    return np.flatnonzero(names.matched(str(module), f"module {module}").ops).astype(
        np.int32
    )


def alternatives(
    space: SearchSpace, device: IntArray, order: IntArray, ops: IntArray
) -> list[Alternative]:
    """Simulate the step with some ops on each device, in the order of devices.

    Args:
        space: the problem.
        device: device of each op. [n]
        order: the order of all ops. [n]
        ops: what moves, with all that shares a device with it.
    """
    units = np.unique(space.problem.unit_of[ops])
    moving = np.isin(space.problem.unit_of, units)
    choices = []
    for d in range(space.problem.num_devices):
        placed = np.where(moving, d, device).astype(np.int32)
        num_moved = int((placed != device).sum())
        score = space.score(placed, order)  # a list schedule stands where it is better
        listed_score, listed = space.sequence(placed, cutoff=score)
        best = listed if listed_score < score else order
        simulation = space.simulator.run(placed, best)
        if simulation.faults:
            fault = simulation.faults[0]
        else:
            fault = ""
        choices.append(
            Alternative(d, simulation.step_time, num_moved, fault, placed, best)
        )
    return choices
