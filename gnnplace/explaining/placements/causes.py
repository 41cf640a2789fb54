"""The event that each op of a simulated step waits for before it starts.

An op starts when its device is free and all inputs have arrived (rule 1 of the step-time
semantics). It waits for the last of three events: the finish of the op before it on its device; the
end of a copy that its device makes itself (``sender_busy``); the arrival of a tensor from another
device. Seconds between that event and the start are overheads of messages.
Complexity: O(n + consumptions + transfers).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.problem import Problem
from gnnplace.simulation import Simulation


@dataclass(frozen=True)
class Cause:
    """The reason why an op does not start earlier.

    Attributes:
        end: seconds at which it lets go.
        op: the op before it on its device, or the one that makes what is sent.
        transfer: the transfer that it waits for, -1 if it waits for the op itself.
        copies: the transfer is a copy that the op's own device makes for another one.
    """

    end: float
    op: int
    transfer: int = -1
    copies: bool = False


@dataclass(frozen=True, eq=False)
class Causes:
    """The causes of one simulated step.

    Attributes:
        problem: what was placed.
        simulation: the step; it must run.
    """

    problem: Problem
    simulation: Simulation

    @cached_property
    def sequences(self) -> list[IntArray]:
        """Return the ops of each device in the order in which they run. [D]"""
        s = self.simulation
        placed = s.device[s.order]
        return [s.order[placed == d] for d in range(self.problem.num_devices)]

    @cached_property
    def before(self) -> IntArray:
        """Return the op that runs before each op on its device, -1 for the first. [n]"""
        previous = np.full(self.problem.num_ops, -1, dtype=np.int32)
        for ops in self.sequences:
            previous[ops[1:]] = ops[:-1]
        return previous

    @cached_property
    def producer(self) -> IntArray:
        """Return the op whose tensor each transfer sends. [K]"""
        return self.problem.graph.producer[self.simulation.transfers.tensor]

    @cached_property
    def incoming(self) -> list[list[int]]:
        """Return the transfers that bring an op's inputs. [n]"""
        graph = self.problem.graph
        transfers = self.simulation.transfers
        ends = zip(transfers.tensor.tolist(), transfers.target.tolist(), strict=True)
        at = {end: i for i, end in enumerate(ends)}
        by_op: list[list[int]] = [[] for _ in range(graph.num_ops)]
        device = self.simulation.device.tolist()
        tensors = graph.consumption_tensor.tolist()
        for tensor, op in zip(tensors, graph.consumer.tolist(), strict=True):
            transfer = at.get((tensor, device[op]))
            if transfer is not None:
                by_op[op].append(transfer)
        return by_op

    @cached_property
    def copies(self) -> list[list[int]]:
        """Return the transfers that each device copies itself, by when they end. [D]"""
        transfers = self.simulation.transfers
        busy = self.problem.cluster.sender_busy
        by_device: list[list[int]] = [[] for _ in range(self.problem.num_devices)]
        for k in np.argsort(transfers.end, kind="stable").tolist():
            if busy[transfers.source[k], transfers.target[k]]:
                by_device[transfers.source[k]].append(k)
        return by_device

    def of(self, op: int) -> Cause | None:
        """Return what an op waits for; None for one that nothing comes before.

        Of several that let go at one instant it is the op before, then a copy, then an arrival.
        """
        transfers = self.simulation.transfers
        candidates = []
        for k in self.incoming[op]:
            candidates.append(
                (
                    float(transfers.arrival[k]),
                    0,
                    Cause(float(transfers.arrival[k]), -1, k),
                )
            )
        copy = self._copy_before(op)
        if copy >= 0:
            candidates.append(
                (
                    float(transfers.end[copy]),
                    1,
                    Cause(float(transfers.end[copy]), -1, copy, True),
                )
            )
        if self.before[op] >= 0:
            end = float(self.simulation.finish[self.before[op]])
            candidates.append((end, 2, Cause(end, int(self.before[op]))))
        if not candidates:
            return None
        cause = max(candidates, key=lambda entry: entry[:2])[2]
        if cause.transfer < 0:
            return cause
        return Cause(
            cause.end, int(self.producer[cause.transfer]), cause.transfer, cause.copies
        )

    def _copy_before(self, op: int) -> int:
        """Return the last copy that the op's device makes of what comes before it there, or -1."""
        place = int(self._place[op])
        device = int(self.simulation.device[op])
        start = float(self.simulation.start[op])
        last = int(np.searchsorted(self._copy_ends[device], start, side="right")) - 1
        for k in reversed(self.copies[device][: last + 1]):
            if self._place[self.producer[k]] < place:
                return k
        return -1

    @cached_property
    def _place(self) -> IntArray:
        """Place of each op in the order of all. [n]"""
        place = np.empty(self.problem.num_ops, dtype=np.int32)
        place[self.simulation.order] = np.arange(self.problem.num_ops)
        return place

    @cached_property
    def _copy_ends(self) -> list[FloatArray]:
        return [self.simulation.transfers.end[copies] for copies in self.copies]
