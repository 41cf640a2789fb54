"""`PlacedStep`: a placed program on workers that stay, one step a call.

Parameters, buffers, optimizer state and inputs live in memory that the workers and this process
share, so that a new batch is one copy and looking at a parameter costs nothing. On a GPU they live
on the device and are copied before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from gnnplace.problem import Placement, Problem
from gnnplace.run.placed import (
    STATEFUL,
    DeviceClock,
    DeviceWorker,
    RunSetting,
    SavedValues,
    StepClock,
    StepFunction,
    StepTiming,
    adapt_to_devices,
    check_runnable,
    device_clock,
    plan_execution,
    step_timing,
    with_sequences,
)
from gnnplace.run.training.updates import LiveUpdate
from gnnplace.run.workers import Crew, Task, WorkerFailure, describe, shared_copies
from gnnplace.tracing import GIVEN, Program

PUBLISH = "publish"
TAKE = "take"
UPDATE = "update"
Request = str | tuple[int, int]
"""`PUBLISH`, `TAKE` or `UPDATE`; or a step, as its turn and its number."""


class PlacedStep:
    """One training step after the other, on the devices of a placement.

    Args:
        program: The program with its initial tensors, which stay as they are.
        problem: The problem of the program.
        placement: The placement of the problem.
        mode: "measured" or "emulated"; see `execute`.
        transport: "shm" or "gloo".
        timeout: Seconds without progress after which a step is given up.

    Raises:
        InputError, InfeasibleError, UnsupportedError, MismatchError, DeadlockError: see `execute`.
        ExecutionError: a worker could not get ready.
    """

    def __init__(
        self,
        program: Program,
        problem: Problem,
        placement: Placement,
        *,
        mode: str = "measured",
        transport: str = "shm",
        timeout: float = 120.0,
    ) -> None:
        check_runnable(program, problem, placement, mode, transport)
        self._placement = with_sequences(problem, placement)
        self._mode = mode
        adapted = adapt_to_devices(program, problem, placement, mode)
        plan = plan_execution(adapted, problem, self._placement)
        self.program = program
        self.tensors = shared_copies(program.initial)
        self._losses = SavedValues(program, program.losses)
        self._setting = RunSetting(plan, mode, transport, 1, program.losses)
        self._turn = 0
        self._open = True
        self._far = any(d.type != "cpu" for d in self._setting.kinds.values())
        self._crew = Crew(
            [
                Task(self._setting.name(w), self._worker(w), core)
                for w, core in enumerate(self._setting.cores)
            ],
            timeout=timeout,
            progress=self._setting.board.snapshot,
            doing=self._setting.doing,
            suspect=self._setting.suspect,
        )

    def _worker(self, number: int) -> Callable[[], Callable[[Request], None]]:
        arguments = self._setting.worker_arguments(number)
        return StandingWorker(
            **arguments, saved=self._losses, num_steps=1, shared=self.tensors
        )

    def step(self, number: int) -> float:
        """Run a step on the inputs that are in `tensors` now and return its loss.

        Args:
            number: The number of the step; random ops depend on it.

        Raises:
            ExecutionError: a worker died, failed or hung, now or before.
        """
        self._turn += 1
        self._crew.ask((self._turn, number))
        return self._losses.loss()

    def update(self) -> None:
        """Run the updates alone, with the gradients that are stored."""
        self._crew.ask(UPDATE)

    def publish(self) -> None:
        """Bring `tensors` up to date; there is nothing to do if they live on the CPU."""
        if self._far:
            self._crew.ask(PUBLISH)

    def take(self) -> None:
        """Have the workers begin the next step from what is in `tensors` now."""
        if self._far:
            self._crew.ask(TAKE)

    @property
    def running(self) -> bool:
        """Return whether the workers can take requests."""
        return self._crew.running

    def state(self) -> dict[str, torch.Tensor]:
        """Return parameters, buffers and optimizer state in shared memory, by value name."""
        kinds = {name: self.program.inputs[name].kind for name in self.tensors}
        return {n: t for n, t in self.tensors.items() if kinds[n] in STATEFUL}

    def states(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return optimizer state in shared memory, by parameter and label."""
        states: dict[str, dict[str, torch.Tensor]] = {}
        for name, entry in self.program.inputs.items():
            if entry.kind == "optimizer":
                parameter, _, label = entry.source.rpartition(":")
                states.setdefault(parameter, {})[label] = self.tensors[name]
        return states

    def timing(self) -> StepTiming:
        """Return clocks and timeline of the last step."""
        setting = self._setting
        clock = StepClock(setting.plan, setting.programs, setting.records, 0)
        return step_timing(clock, self._mode, self._placement)

    def close(self) -> None:
        """End the workers; `tensors` stays. May be called again."""
        self._crew.close()
        if self._open:
            self._setting.transport.dispose()
        self._open = False


@dataclass(frozen=True)
class StandingWorker(DeviceWorker):
    """A worker that runs a step whenever it is asked to.

    Attributes:
        shared: Every program input, in shared memory.
    """

    shared: Mapping[str, torch.Tensor]

    def __call__(self) -> Callable[[Request], None]:  # type: ignore[override]
        """Get ready; return what answers requests."""
        self.transport.open(self.number, self.torch_device)
        with torch.inference_mode():
            clock = device_clock(self.torch_device)
            function, tensors = self.ready(clock)

        def answer(request: Request) -> None:
            with torch.inference_mode():
                self.answer(request, function, tensors, clock)

        return answer

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {
            name: self.shared[value].to(self.home(value))
            for value, name in self.program.inputs.items()
        }

    def _save(self, name: str, tensor: torch.Tensor) -> None:
        if self.saved is not None:
            self.saved.save(name, tensor)

    def answer(
        self,
        request: Request,
        function: StepFunction,
        tensors: dict[str, torch.Tensor],
        clock: DeviceClock,
    ) -> None:
        """Do what is requested: a step (turn, number), `UPDATE`, `PUBLISH` or `TAKE`.

        Raises:
            WorkerFailure: an op raised; names it.
        """
        try:
            if request == PUBLISH:
                self._copy(tensors, STATEFUL, out=True)
            elif request == TAKE:
                self._copy(tensors, (*STATEFUL, "constant"))
            elif isinstance(request, str):
                self._update(tensors)
            else:
                self._copy(tensors, ("input", GIVEN))
                turn, step = request
                self.once(turn, step, function, clock)
        except Exception as error:
            raise WorkerFailure(f"{self._where(error)}{describe(error)}") from error

    def _update(self, tensors: dict[str, torch.Tensor]) -> None:
        """Run the updates of this device one by one; each touches one parameter alone."""
        for segment in self.plan.segments[self.device]:
            for op in (self.plan.program.ops[i] for i in segment.ops):
                if isinstance(op.target, LiveUpdate):
                    parameter, _, *state = op.args
                    refs = (parameter, *state)
                    op.target.update_with_stored(
                        *(tensors[self.program.inputs[ref.name]] for ref in refs)
                    )

    def _copy(
        self,
        tensors: dict[str, torch.Tensor],
        kinds: tuple[str, ...],
        out: bool = False,
    ) -> None:
        """Copy between the device and the shared memory; on the CPU they are one."""
        if self.torch_device.type == "cpu":
            return
        for value, name in self.program.inputs.items():
            if self.plan.program.inputs[value].kind not in kinds:
                continue
            if not out:
                tensors[name].copy_(self.shared[value])
            elif self.plan.holders[value][0] == self.device:
                self.shared[value].copy_(tensors[name])
