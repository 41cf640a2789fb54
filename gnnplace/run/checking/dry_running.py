"""`dry_run`: a placed program walked on tensors that claim to be on GPUs, without any GPU.

Every worker does the same as under `execute` and `compile`: the same source of its device program,
the same binding of devices, the same tensors at the same places, messages in the same order. Only
kernels, clocks and the memory of messages are stand-ins (`gnnplace.tracing.Claims`). So an op that
mixes devices, a tensor that was not sent, and state in the wrong place are found without a GPU.
Numbers, seconds, memory and drivers can only be checked on the hardware.

Workers are threads of which one runs at a time: a worker that waits for a message lets another run.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch

from gnnplace.errors import InputError
from gnnplace.problem import Placement, Problem
from gnnplace.run.placed import (
    TICKS,
    DeviceClock,
    DeviceWorker,
    ExecutionPlan,
    Records,
    SavedValues,
    StepFunction,
    check_possible,
    device_program,
    plan_execution,
    with_sequences,
)
from gnnplace.run.training import PUBLISH, TAKE, StandingWorker
from gnnplace.run.workers import (
    Board,
    Message,
    Receive,
    Send,
    Transport,
    WorkerFailure,
    make_shared_words,
)
from gnnplace.tracing import (
    Claims,
    DeviceFault,
    DeviceWatch,
    Program,
    make_claimed_tensor,
    move_to_cuda,
    operations,
)

CLAIM = re.compile(r"cuda:([1-9]\d*)")
CPU = torch.device("cpu")
PATIENCE = 600.0
"""Seconds after which nobody is expected to send a message any more."""


@dataclass(frozen=True)
class Fault:
    """An error that a worker on a device would meet.

    Attributes:
        device: The claimed device, such as "cuda:1".
        op: Op of the program that raises it; None if none does.
        reason: What would go wrong, in one line.
    """

    device: str
    op: str | None
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.device}: " + (f"op {self.op!r}: " if self.op else "") + self.reason
        )


@dataclass(frozen=True)
class DryRun:
    """The findings of a dry run under claimed devices.

    Attributes:
        devices: Claimed, and used by the placement.
        ops: Calls of ATen that were looked at, of all workers.
        messages: The number of tensors that travelled.
        faults: The first of every worker that has one.
    """

    devices: tuple[str, ...]
    ops: int
    messages: int
    faults: tuple[Fault, ...]

    @property
    def passed(self) -> bool:
        """Return whether no fault was found."""
        return not self.faults

    def summary(self) -> str:
        """Return one line for people, or one for each fault."""
        if self.faults:
            return "\n".join(str(fault) for fault in self.faults)
        return (
            f"dry run on {', '.join(self.devices)}: {self.ops} ATen calls and {self.messages} "
            "messages, every tensor on its worker's device; no number was computed"
        )


def parse_claimed_count(claim: str) -> int:
    """Return the number of GPUs that a claim such as "cuda:4" speaks of.

    Raises:
        InputError: no such claim.
    """
    match = CLAIM.fullmatch(claim)
    if match is None:
        raise InputError(
            f"dry run on {claim!r}: give cuda:N, as in cuda:4 for cuda:0 to cuda:3"
        )
    return int(match[1])


def dry_run(
    program: Program,
    problem: Problem,
    placement: Placement,
    *,
    claim: str = "cuda:4",
    standing: bool = False,
) -> DryRun:
    """Walk a placed program as workers on GPUs would, without any GPU.

    Args:
        program: Cut into the problem's micro-batches; it may be captured without tensors.
        problem: Its problem; its device d becomes "cuda:d", whatever it is called.
        placement: A placement of the problem.
        claim: "cuda:N": the GPUs that are claimed.
        standing: The workers of `compile`, which stay, instead of those of `execute`.

    Raises:
        InputError: the placement uses more devices than are claimed.
        InfeasibleError, MismatchError, DeadlockError: see `execute`.
    """
    count = parse_claimed_count(claim)
    check_possible(problem, placement)
    plan = plan_execution(
        move_to_cuda(program), problem, with_sequences(problem, placement)
    )
    if plan.devices[-1] >= count:
        raise InputError(
            f"dry run on {claim!r}: the placement uses device {plan.devices[-1]}; claim "
            f"cuda:{plan.devices[-1] + 1}"
        )
    return walk(plan, standing=standing)


def walk(plan: ExecutionPlan, *, standing: bool = False) -> DryRun:
    """Walk a plan, whose device d is claimed as "cuda:d".

    Args:
        plan: The plan of a program with or without tensors, whose values are not read.
        standing: The workers of `compile`, which stay, instead of those of `execute`.
    """
    claims = Claims()
    mail = _Mail()
    with claims.made():
        tensors = {
            name: make_claimed_tensor(entry.info, CPU)
            for name, entry in plan.program.inputs.items()
        }
    plan = replace(plan, program=replace(plan.program, initial=tensors))
    numbers = range(len(plan.devices))
    walkers = [_Walker(plan, number, claims, mail, standing) for number in numbers]
    watches: dict[int, DeviceWatch] = {}  # by the thread that a walker has
    threads = [
        threading.Thread(target=walker.walk, args=(watches,)) for walker in walkers
    ]

    def drawing(device: torch.device, seed: int) -> object:
        return watches[threading.get_ident()].drawing(device, seed)

    with patch.object(operations, "drawing", drawing):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return DryRun(
        tuple(str(walker.device) for walker in walkers),
        sum(walker.watch.ops for walker in walkers),
        len(plan.transfers),
        tuple(walker.fault for walker in walkers if walker.fault is not None),
    )


class _Mail:
    """Layouts of messages that were sent, and the turn of the one worker that runs."""

    def __init__(self) -> None:
        self.baton = threading.Condition()
        self.strides: dict[int, tuple[int, ...] | None] = {}

    def post(self, message: int, stride: tuple[int, ...] | None) -> None:
        """Note the strides of a message; None: it will never be sent."""
        self.strides[message] = stride
        self.baton.notify_all()

    def wait(self, message: int) -> tuple[int, ...]:
        """Let the other walkers run until a message has been sent, and return its strides."""
        self.baton.wait_for(lambda: message in self.strides, PATIENCE)
        stride = self.strides.get(message)
        if stride is None:
            raise DeviceFault(f"message {message} is received there but never sent")
        return stride


class ClaimedTransport(Transport):
    """One worker's messages: what is sent is looked at, what arrives is made anew on its device.

    Args:
        messages: All messages of the run.
        mail: What all workers have sent so far.
        watch: The watch over this worker's ops.
    """

    def __init__(
        self, messages: tuple[Message, ...], mail: _Mail, watch: DeviceWatch
    ) -> None:
        self._messages = messages
        self._mail = mail
        self._watch = watch

    def open(self, worker: int, device: torch.device) -> None:
        """Do nothing: a dry run has one process."""

    def barrier(self, worker: int, meeting: int) -> None:
        """Do nothing: a dry run has one step."""

    def held(self, worker: int) -> float:
        """Return 0: a dry run keeps no buffers."""
        return 0.0

    def sender(self, message: int) -> Send:
        """Return a function that checks the device and the form of what is sent."""
        form = self._messages[message]
        device = self._watch.device

        def send(tensor: torch.Tensor, turn: int) -> None:
            if tensor.device != device:
                raise DeviceFault(
                    f"a message from {device} has its tensor on {tensor.device}"
                )
            if (tuple(tensor.shape), tensor.dtype) != (form.shape, form.dtype):
                raise DeviceFault(
                    f"a message of {_form(form.shape, form.dtype)} is "
                    f"{_form(tuple(tensor.shape), tensor.dtype)}"
                )
            self._mail.post(message, form.find_strides(tensor))

        return send

    def receiver(self, message: int) -> Receive:
        """Return a function that waits for the sender and copies from the host to the device."""
        form = self._messages[message]
        watch = self._watch

        def receive(turn: int) -> torch.Tensor:
            stride = self._mail.wait(message)
            with watch.off():
                staged = torch.empty_strided(
                    form.shape, stride, dtype=form.dtype, device=CPU
                )
                return staged.to(watch.device)

        return receive


class _Results(SavedValues):
    """Looks at every result and at the state after the step, where a run keeps their numbers."""

    def __init__(self, program: Program, device: torch.device) -> None:
        super().__init__(program, ())
        self._about = program
        self._device = device

    def save(self, name: str, tensor: torch.Tensor) -> None:
        """Compare a value's device and form with what was captured."""
        info = self._about.values[name]
        entry = self._about.inputs.get(name)
        if entry:
            home = entry.home(self._device)
        else:
            home = self._device
        if tensor.device != home:
            raise DeviceFault(f"value {name!r} is on {tensor.device}, not {home}")
        if (tuple(tensor.shape), tensor.dtype) != (info.shape, info.dtype):
            raise DeviceFault(
                f"value {name!r} is {_form(tuple(tensor.shape), tensor.dtype)}; "
                f"{_form(info.shape, info.dtype)} was captured"
            )


class _Walker:
    """One worker on a claimed device, in a thread."""

    def __init__(
        self,
        plan: ExecutionPlan,
        number: int,
        claims: Claims,
        mail: _Mail,
        standing: bool,
    ) -> None:
        device = plan.devices[number]
        self.plan = plan
        self.number = number
        self.claims = claims
        self.mail = mail
        self.device = torch.device("cuda", device)
        self.watch = DeviceWatch(self.device)
        self.fault: Fault | None = None
        self.program = device_program(plan, device, plan.program.producer)
        words = make_shared_words(TICKS * self.program.num_ticks + 1)
        arguments: dict[str, Any] = {
            "number": number,
            "device": device,
            "plan": plan,
            "program": self.program,
            "transport": ClaimedTransport(plan.messages, mail, self.watch),
            "board": Board(len(plan.devices)),
            "records": Records(words, self.program.num_ticks),
            "saved": _Results(plan.program, self.device),
            "num_steps": 1,
            "torch_device": self.device,
        }
        self.worker: DeviceWorker = (
            StandingWorker(**arguments, shared=plan.program.initial)
            if standing
            else DeviceWorker(**arguments)
        )

    def walk(self, watches: dict[int, DeviceWatch]) -> None:
        """Do what the worker does; note the first fault."""
        watches[threading.get_ident()] = self.watch
        with self.mail.baton:
            try:
                with self.claims.made(), torch.inference_mode():
                    self._step()
            except Exception as error:
                if isinstance(error, WorkerFailure):
                    cause = error.__cause__
                else:
                    cause = error
                self.fault = self._fault(cause or error)
            finally:
                self._post_remaining()

    def _step(self) -> None:
        clock = DeviceClock()
        function, tensors = self.worker.ready(clock)
        watched = self._watch(function)
        if isinstance(self.worker, StandingWorker):
            for request in (TAKE, (1, 0), PUBLISH):
                self.worker.answer(request, watched, tensors, clock)
        else:
            self.worker.run(watched, tensors, clock)

    def _watch(self, function: StepFunction) -> StepFunction:
        def step(turn: int, ticks: memoryview, base: int) -> None:
            with self.watch:
                function(turn, ticks, base)

        return step

    def _fault(self, error: BaseException) -> Fault:
        lines = str(error).splitlines()
        reason = lines[0] if lines else type(error).__name__
        if isinstance(error, NameError):
            reason = self._missing(reason)
        return Fault(str(self.device), self.worker.culprit(error), reason)

    def _missing(self, reason: str) -> str:
        """Return which value the source reads without a binding, from a NameError's message."""
        match = re.search(r"'(\w+)'", reason)
        if match:
            value = self.program.values.get(match[1])
        else:
            value = None
        if value:
            return f"value {value!r} is neither made there nor sent there"
        return reason

    def _post_remaining(self) -> None:
        """Post all messages that were not sent, so that the other walkers go on to their faults."""
        for k, form in enumerate(self.plan.messages):
            if form.source == self.number and k not in self.mail.strides:
                self.mail.post(k, form.stride if self.fault else None)


def _form(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
