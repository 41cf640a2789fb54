"""A machine that is made up, to measure placements on: what a placement takes is known exactly.

For `measured.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gnnplace.measurements.calibration import Calibration, Forward
from gnnplace.measurements.objective import Measured, StepObjective
from gnnplace.problem import Problem
from gnnplace.problem.placement import Placement


class MadeUp(StepObjective):
    """A machine that differs from the profile in ways that are drawn.

    Every op takes another share (8 % more on average, 12 % scatter), a message 25 us more, ops 6 %
    more for another device at work; a measurement is off by its hour (3 %, all ops alike) and by
    itself (2 %), an op in it by 5 %.
    """

    SLOWER, SCATTER, NOISE, HOUR, OP_NOISE = 0.08, 0.12, 0.02, 0.03, 0.05
    COSTS = Calibration(send_overhead=1.5e-5, receive_overhead=1e-5, contention=0.06)

    def __init__(self, problem: Problem, machine: int, seed: int) -> None:
        self._problem, self._rng = problem, np.random.default_rng([machine, seed])
        drawn = np.random.default_rng(machine).normal(
            self.SLOWER, self.SCATTER, problem.num_ops
        )
        time = {kind: seconds * np.exp(drawn) for kind, seconds in problem.time.items()}
        self._true = replace(problem, time=time)

    @property
    def problem(self) -> Problem:
        return self._problem

    def seconds(self, placement: Placement) -> float:
        """What a placement really takes."""
        return Forward(self._true, placement).seconds(self.COSTS)

    def measure(self, placements: Sequence[Placement]) -> list[Measured]:
        return [self._measured(placement) for placement in placements]

    def _measured(self, placement: Placement) -> Measured:
        hour = float(np.exp(self._rng.normal(0, self.HOUR)))
        seconds = (
            self.seconds(placement)
            * hour
            * float(np.exp(self._rng.normal(0, self.NOISE)))
        )
        beside = 1 + self.COSTS.contention * Forward(self._true, placement).overlap
        ops = self._true.time["cpu"] * beside * hour
        ops *= np.exp(self._rng.normal(0, self.OP_NOISE, len(ops)))
        return Measured(
            seconds, ops=dict(zip(self._true.graph.names, ops.tolist(), strict=True))
        )

    def keep(self, path: str, placement: Placement) -> None:
        """Nobody reads it."""
