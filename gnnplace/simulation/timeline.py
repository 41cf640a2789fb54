"""``Timelines``: the last simulated steps of a large problem, so that none is simulated twice.

A step of a million ops takes a third of a second. The placer scores it, repair asks whether it
fits, and what is handed back is checked: one simulation of the same devices and order answers all
of them. Devices and order are compared entry by entry, so what is kept is what would be found.

Complexity: O(n) to look for one; of each of the ``KEPT`` some 50 bytes an op or a transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.simulation.compiled import Compiled
from gnnplace.simulation.kernels import ROUNDING, run_kernel
from gnnplace.simulation.memory import device_state, lifetimes, most_memory, peak_kernel

Lives = tuple[IntArray, FloatArray, FloatArray, FloatArray]
LARGE = 200_000  # ops from which on timelines are kept
KEPT = 2


@dataclass(frozen=True, eq=False)
class Timeline:
    """One simulated step; K transfers.

    Attributes:
        compiled: the problem.
        device: device of each op. [n]
        order: the order of all ops. [n]
        step_time: seconds; inf where the placement cannot run.
        start: seconds at which each op starts; nan where it does not. [n]
        finish: seconds at which each op finishes. [n]
        transfer: tensor, source and target of each transfer. [K, 3]
        service: start and end of service and arrival of each transfer. [K, 3]
    """

    compiled: Compiled
    device: IntArray
    order: IntArray
    step_time: float
    start: FloatArray
    finish: FloatArray
    transfer: IntArray
    service: FloatArray

    @classmethod
    def of(cls, compiled: Compiled, device: IntArray, order: IntArray) -> Timeline:
        """Simulates a step."""
        n, room = len(device), len(compiled.consumer) + 1
        start, finish = np.full(n, np.nan), np.full(n, np.nan)
        transfer, service = np.empty((room, 3), np.int32), np.empty((room, 3))
        out = (start, finish, transfer, service)
        _, step_time, count = run_kernel(compiled, device, order, np.inf, compiled.tail, *out)
        told = (transfer[:count], service[:count])
        return cls(compiled, device, order, float(step_time), start, finish, *told)

    def lives(self, wanted: BoolArray) -> Lives:
        """Device, begin, end and bytes of every tensor's life on every wanted device. [D]"""
        times = (self.start, self.finish, self.transfer, self.service)
        found: Lives = lifetimes(self.compiled, self.device, *times, wanted)
        return found

    @cached_property
    def excess(self) -> float:
        """Bytes above the limits summed over devices, as ``excess_kernel`` counts them."""
        memory = self.compiled.memory
        doubtful = most_memory(self.compiled, self.device) > memory
        if not doubtful.any():
            return 0.0
        peak = device_state(self.compiled, self.device)
        if np.isfinite(self.step_time):
            peak = peak_kernel(*self.lives(doubtful), peak)
        return float(np.maximum(peak - memory, 0.0).sum())

    def within(self, cutoff: float) -> float:
        """The step time; inf above ``cutoff`` seconds."""
        return self.step_time if self.step_time <= cutoff * (1.0 + ROUNDING) else np.inf


class Timelines:
    """The last timelines of a problem; none of a small one.

    Args:
        compiled: the problem.
    """

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled
        self.kept: list[Timeline] = []

    def get(self, device: IntArray, order: IntArray, cutoff: float = np.inf) -> Timeline | None:
        """The timeline of a placement: kept, or made and kept.

        None of a small problem, nor with a ``cutoff``, which saves more, where it is not kept.
        """
        if len(device) < LARGE:
            return None
        for made in self.kept:
            if np.array_equal(made.device, device) and np.array_equal(made.order, order):
                return made
        if cutoff < np.inf:
            return None
        made = Timeline.of(self.compiled, device.copy(), order.copy())
        self.kept = [made, *self.kept][:KEPT]
        return made
