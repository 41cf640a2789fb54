"""Hands measured steps on while a run goes on, so that what was measured outlives the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gnnplace.execution.clock import StepClock, step_timing
from gnnplace.execution.plan import ExecutionPlan
from gnnplace.execution.result import StepTiming
from gnnplace.execution.source import DeviceProgram
from gnnplace.execution.worker import Records
from gnnplace.problem.placement import Placement
from gnnplace.runtime.board import DONE, Board

Observer = Callable[[int, Sequence[StepTiming]], None]
"""`observer(first, timings)`: steps `first`, `first + 1`, … after the warm-up are complete."""
EVERY = 2.0
"""Seconds between two hand-overs: whoever works on the steps takes a core from a worker."""


class StepStream:
    """The steps of a run after its warm-up, in order, as soon as every worker has done them.

    Args:
        plan: What runs.
        programs: The programs of every worker.
        records: Where the workers note their clocks.
        board: Where they say which steps they have done.
        mode: "measured" or "emulated".
        placement: With its sequences.
        warmup: Steps that are left out.
        observer: Handed the steps; None if nobody wants them before the end.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        programs: Sequence[DeviceProgram],
        records: Sequence[Records],
        board: Board,
        mode: str,
        placement: Placement,
        warmup: int,
        observer: Observer | None,
    ) -> None:
        self.timings: list[StepTiming] = []
        self._about = (plan, programs, records)
        self._board, self._mode, self._placement = board, mode, placement
        self._warmup, self._observer = warmup, observer
        self._last = time.monotonic()

    def now_and_then(self) -> None:
        """Hands over what is complete, if somebody wants it and the last time is a while ago."""
        if self._observer is not None and time.monotonic() - self._last > EVERY:
            self.flush()

    def flush(self) -> None:
        """Hands over what is complete."""
        first = len(self.timings)
        done = min(self._board.get(w, DONE) for w in range(self._board.num_workers))
        for step in range(self._warmup + first, done):
            clock = StepClock(*self._about, step)
            self.timings.append(step_timing(clock, self._mode, self._placement))
        if self._observer is not None and len(self.timings) > first:
            self._observer(first, self.timings[first:])
        self._last = time.monotonic()
