"""`PlacedStep`: runs a placed program on workers that stay alive, one training step for each call.

Parameters, buffers, optimizer state and inputs live in memory that the workers and this process
share. So a new batch costs one copy, and reading a parameter costs nothing. On a GPU they live on
the device: each step copies its inputs there, `take` copies the state there and `publish` copies it
back.
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
from gnnplace.run.workers import Crew, Task, WorkerFailure, copy_to_shared, describe
from gnnplace.tracing import GIVEN, Program

PUBLISH = "publish"
"""Request to copy the state from the devices to the shared memory."""
TAKE = "take"
"""Request to copy the state from the shared memory to the devices."""
UPDATE = "update"
"""Request to run the updates alone."""
Request = str | tuple[int, int]
"""One of these; or a step, as the count of steps so far (its turn) and its number."""


class PlacedStep:
    """A placed program whose workers run a training step whenever they are asked to.

    Args:
        program: The program with its initial tensors, which are copied and not changed.
        problem: The problem that the program became.
        placement: The placement of that problem.
        mode: "measured" or "emulated"; see `execute`.
        transport: "shm" or "gloo".
        timeout: Seconds without progress after which a step is given up.

    Raises:
        InputError, InfeasibleError, UnsupportedError, MismatchError, DeadlockError: See `execute`.
        ExecutionError: If a worker could not get ready.
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
        self.tensors = copy_to_shared(program.initial)
        self._losses = SavedValues(program, program.losses)
        self._setting = RunSetting(plan, mode, transport, 1, program.losses)
        self._turn = 0
        self._open = True
        # A device with memory of its own has copies of the shared tensors.
        kinds = self._setting.kinds.values()
        self._has_copies = any(kind.type != "cpu" for kind in kinds)
        tasks = [
            Task(self._setting.name(worker), self._make_worker(worker), core)
            for worker, core in enumerate(self._setting.cores)
        ]
        self._crew = Crew(
            tasks,
            timeout=timeout,
            progress=self._setting.board.snapshot,
            doing=self._setting.doing,
            suspect=self._setting.suspect,
        )

    def _make_worker(self, number: int) -> Callable[[], Callable[[Request], None]]:
        """Return what a worker process runs to get ready."""
        arguments = self._setting.worker_arguments(number)
        return StandingWorker(
            **arguments, saved=self._losses, num_steps=1, shared=self.tensors
        )

    def step(self, number: int) -> float:
        """Run a step on the inputs that are in `tensors` now, and return its loss.

        Args:
            number: The number of the step, which seeds random ops.

        Raises:
            ExecutionError: If a worker died, failed or hung, in this step or before.
        """
        self._turn += 1
        self._crew.ask((self._turn, number))
        return self._losses.loss()

    def update(self) -> None:
        """Run the optimizer's updates alone, with the stored gradients."""
        self._crew.ask(UPDATE)

    def publish(self) -> None:
        """Copy the state from the devices to `tensors`. CPUs work on `tensors` themselves."""
        if self._has_copies:
            self._crew.ask(PUBLISH)

    def take(self) -> None:
        """Copy the state in `tensors` to the devices, so that the next step begins from it."""
        if self._has_copies:
            self._crew.ask(TAKE)

    @property
    def running(self) -> bool:
        """Return whether the workers can take requests."""
        return self._crew.running

    def state(self) -> dict[str, torch.Tensor]:
        """Return parameters, buffers and optimizer state in shared memory, by value name."""
        kinds = {name: self.program.inputs[name].kind for name in self.tensors}
        return {
            name: tensor
            for name, tensor in self.tensors.items()
            if kinds[name] in STATEFUL
        }

    def states(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return optimizer state in shared memory, by parameter and by label such as "exp_avg"."""
        states: dict[str, dict[str, torch.Tensor]] = {}
        for name, entry in self.program.inputs.items():
            if entry.kind == "optimizer":
                parameter, _, label = entry.source.rpartition(":")
                states.setdefault(parameter, {})[label] = self.tensors[name]
        return states

    def timing(self) -> StepTiming:
        """Return the clocks and the timeline of the last step."""
        setting = self._setting
        clock = StepClock(setting.plan, setting.programs, setting.records, 0)
        return step_timing(clock, self._mode, self._placement)

    def close(self) -> None:
        """End the workers. `tensors` can still be read. A second call does nothing."""
        self._crew.close()
        if self._open:
            self._setting.transport.dispose()
        self._open = False


@dataclass(frozen=True)
class StandingWorker(DeviceWorker):
    """A worker process that answers requests until it is ended.

    Attributes:
        shared: Every input of the program, in shared memory.
    """

    shared: Mapping[str, torch.Tensor]

    def __call__(self) -> Callable[[Request], None]:  # type: ignore[override]
        """Get ready, and return the function that answers requests."""
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
        """Do what is requested.

        Args:
            request: What to do.
            function: The function of a step.
            tensors: Inputs of this device's program, by name.
            clock: The device's clock.

        Raises:
            WorkerFailure: If an op raises; the message names the op.
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
        """Run the updates of this device in any order: each changes one parameter only."""
        for segment in self.plan.segments[self.device]:
            for i in segment.ops:
                op = self.plan.program.ops[i]
                if not isinstance(op.target, LiveUpdate):
                    continue
                # The gradient among the arguments is left out: the update has the stored one.
                parameter, _, *state = op.args
                arguments = [
                    tensors[self.program.inputs[ref.name]]
                    for ref in (parameter, *state)
                ]
                op.target.update_with_stored(*arguments)

    def _copy(
        self,
        tensors: dict[str, torch.Tensor],
        kinds: tuple[str, ...],
        out: bool = False,
    ) -> None:
        """Copy inputs of the program between the device and the shared memory.

        On the CPU the worker's tensors are the shared ones, and nothing is copied.

        Args:
            tensors: The worker's tensors.
            kinds: Kinds of the inputs to copy.
            out: Whether to copy from the device. Of several devices that have a tensor, its first
                holder writes it.
        """
        if self.torch_device.type == "cpu":
            return
        for value, name in self.program.inputs.items():
            if self.plan.program.inputs[value].kind not in kinds:
                continue
            if not out:
                tensors[name].copy_(self.shared[value])
            elif self.plan.holders[value][0] == self.device:
                self.shared[value].copy_(tensors[name])
