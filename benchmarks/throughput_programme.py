"""The throughput objective as a constraint programme, for CP-SAT (ortools): optimum and bound.

Formulation, with the method of each constraint. Times are whole multiples of a time unit.

* a unit is on one of its allowed devices (``_assign``);
* a flow is sent from d to e if its unit is on d and a reader on e (``_send``); pairs without a
  link are forbidden;
* a device's load is its units' work and the cost of all flows it sends or receives; the interval is
  at least every load (``_load``); so is the mean of all loads, a cut that helps the bound;
* the state of a device's units fits its memory (``_remember``);
* equal devices are first used in the order they are listed (``_break_symmetry``).

Durations are rounded down, each loses less than ``1 / RESOLUTION`` of the horizon, so the solver's
bound holds for every placement; activations do not count here, which relaxes too.
Complexity: exponential; O(U D + F D^2) variables.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnplace.placers.exact.input import equal_devices, use_order
from gnnplace.placers.exact.solver import make_solver, solve
from gnnplace.placers.search.space import SearchSpace
from gnnplace.placers.throughput.load import Flows

IntArray = NDArray[np.int32]
RESOLUTION = 1e9  # Units in the horizon.
ROUNDING = 1e-9  # Of a duration: quotients a hair below a whole number count as it.
MOST_BYTES = 2.0**60


def model_size(flows: Flows) -> int:
    """Variables, about."""
    devices = len(flows.memory)
    return len(flows.work) * devices + len(flows.producer) * devices * (devices - 1)


class ThroughputModel:
    """A CP-SAT model of the placements that are better than a start.

    Args:
        space: the problem's search space.
        f: its flows.
        start: device of each unit, where the solver begins. [U]
        horizon: seconds that some placement that fits needs; nothing above is of interest.
        free: units that may leave the start's devices; all by default. [U]
    """

    def __init__(
        self,
        space: SearchSpace,
        flows: Flows,
        start: IntArray,
        horizon: float,
        free: NDArray[np.bool_] | None = None,
    ) -> None:
        # Imported late: it takes a second, and other placers do not need it.
        from ortools.sat.python import cp_model

        self.space, self.f, self.start, self.free = space, flows, start, free
        self.model = cp_model.CpModel()
        self.horizon = horizon
        self.unit = max(horizon, 1e-300) / RESOLUTION
        self._assign()
        self.terms: list[list[Any]] = [[] for _ in flows.memory]
        for k in range(len(flows.producer)):
            self._send(k)
        self._load()
        self._remember()
        if free is None:
            self._break_symmetry()
        self.model.minimize(self.most)

    def _down(self, seconds: float) -> int:
        return int(np.floor(seconds / self.unit * (1 + ROUNDING)))

    def bound(self, units: float) -> float:
        """Seconds that are certain if ``units`` are a lower bound of the model."""
        return max(0.0, units * self.unit * (1 - 2 * ROUNDING))

    def _assign(self) -> None:
        self.x: list[dict[int, Any]] = []
        for u, work in enumerate(self.f.work):
            devices = np.flatnonzero(np.isfinite(work)).tolist()
            if self.free is not None and not self.free[u]:
                devices = [int(self.start[u])]
            row = {d: self.model.new_bool_var(f"x{u},{d}") for d in devices}
            self.model.add_exactly_one(row.values())
            self.x.append(row)
            for d, here in row.items():
                self.model.add_hint(here, int(d == self.start[u]))

    def _send(self, index: int) -> None:
        f = self.f
        row, readers = (
            self.x[f.producer[index]],
            f.reader[f.offset[index] : f.offset[index + 1]],
        )
        for d, here in row.items():
            for e in range(len(f.memory)):
                there = [self.x[c][e] for c in readers if e in self.x[c]]
                if e == d or not there:
                    continue
                cost = f.tensors[index] * f.latency[d, e] + f.size[index] * f.pace[d, e]
                if not np.isfinite(cost):
                    for reader in there:
                        self.model.add_bool_or(~here, ~reader)
                elif self._down(cost) > 0:
                    sent = self.model.new_bool_var("")
                    for reader in there:
                        self.model.add_bool_or(~here, ~reader, sent)
                    self.terms[d].append(self._down(cost) * sent)
                    self.terms[e].append(self._down(cost) * sent)

    def _load(self) -> None:
        limit = self._down(self.horizon) + 1
        self.most = self.model.new_int_var(0, limit, "interval")
        for d, terms in enumerate(self.terms):
            terms += [
                self._down(self.f.work[u, d]) * row[d]
                for u, row in enumerate(self.x)
                if d in row
            ]
            self.model.add(sum(terms) <= self.most)
        everything = sum(sum(terms) for terms in self.terms)
        self.model.add(everything <= len(self.terms) * self.most)

    def _remember(self) -> None:
        if (self.f.state.sum() <= self.f.memory).all():
            return
        state = np.floor(self.f.state).astype(np.int64).tolist()
        limits = (
            np.ceil(np.minimum(self.f.memory, MOST_BYTES)).astype(np.int64).tolist()
        )
        for d, memory in enumerate(limits):
            here = [state[u] * row[d] for u, row in enumerate(self.x) if d in row]
            self.model.add(sum(here) <= memory)

    def _break_symmetry(self) -> None:
        for members in equal_devices(self.space.problem):
            for former, later in pairwise(members):
                before: list[Any] = []
                for u in use_order(self.space).tolist():
                    if later in self.x[u]:
                        self.model.add_bool_or(~self.x[u][later], *before)
                    if former in self.x[u]:
                        before.append(self.x[u][former])

    def solve(
        self, rng: np.random.Generator, seconds: float, workers: int = 1
    ) -> tuple[IntArray | None, float, str]:
        """Solves it.

        Args:
            rng: seeds the solver.
            seconds: at most; 0 or less: a fixed amount of the solver's own time.
            workers: threads.

        Returns:
            Device of each unit of the best solution or None, a bound in seconds, the status.
        """
        solver = make_solver(rng, seconds, workers)
        status = solve(solver, self.model)
        if status not in ("OPTIMAL", "FEASIBLE"):
            return None, 0.0, status
        device = [max(row, key=lambda d: solver.value(row[d])) for row in self.x]
        bound = self.bound(solver.best_objective_bound)
        return np.array(device, dtype=np.int32), bound, status
