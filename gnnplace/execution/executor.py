"""`execute`: runs a placed program on workers and measures it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gnnplace.errors import InfeasibleError, InputError, UnsupportedError
from gnnplace.execution.plan import ExecutionPlan, plan_execution
from gnnplace.execution.result import Execution
from gnnplace.execution.saving import SavedValues, made_values, state_values
from gnnplace.execution.source import TICKS, DeviceProgram, device_program
from gnnplace.execution.stream import Observer, StepStream
from gnnplace.execution.worker import DeviceWorker, Records
from gnnplace.placement import Placement, faults
from gnnplace.problem import Problem
from gnnplace.runtime.board import ARRIVED, SEGMENT, STEP, WAITING, Board
from gnnplace.runtime.memory import shared_words
from gnnplace.runtime.transports import TRANSPORTS, make_transport
from gnnplace.runtime.workers import Task, available_cores, run_tasks
from gnnplace.simulation import Simulator, finished_placement
from gnnplace.tracing.program import Program

MODES = ("measured", "emulated")


def execute(
    program: Program,
    problem: Problem,
    placement: Placement,
    *,
    steps: int = 5,
    warmup: int = 2,
    mode: str = "measured",
    transport: str = "shm",
    timeout: float = 120.0,
    outputs: bool = True,
    observer: Observer | None = None,
) -> Execution:
    """Runs several steps of `program` on one worker process for each device in use.

    Args:
        program: The captured program, with its initial tensors.
        problem: Its problem: names the devices and groups the ops.
        placement: Where the ops go, and in which order.
        steps: Steps that are timed; parameters go on from step to step.
        warmup: Steps before them.
        mode: "measured": a core for each worker, wall clock. "emulated": workers may share cores;
            each worker's own CPU time and the problem's links make a virtual clock.
        transport: "shm" (shared memory) or "gloo" (`torch.distributed`).
        timeout: Seconds without progress after which the run is given up.
        outputs: Whether to bring the numbers of the first step back.
        observer: Handed the steps after the warm-up as they are completed, and what is left of
            them before an error of the run is raised.

    Raises:
        InputError: an argument out of range, or a program captured without tensors.
        InfeasibleError: the placement is impossible on the problem's cluster.
        UnsupportedError: fewer cores than devices in use, without emulation.
        MismatchError, DeadlockError: see `plan_execution`.
        ExecutionError: a worker died, failed or hung.
    """
    _check(program, problem, placement, steps, warmup, mode, transport)
    placement = with_sequences(problem, placement)
    plan = plan_execution(program, problem, placement)
    run = _Run(plan, steps + warmup, mode, transport, outputs)
    stream = StepStream(
        plan, run.programs, run.records, run.board, mode, placement, warmup, observer
    )
    try:
        reports = run.start(timeout, stream.now_and_then)
    finally:
        stream.flush()
    names = [device.name for device in problem.cluster.devices]
    peaks = {names[d]: r["peak_memory"] for d, r in zip(plan.devices, reports, strict=True)}
    return Execution(
        mode=mode,
        transport=transport,
        devices=tuple(names[d] for d in plan.devices),
        steps=tuple(stream.timings),
        first=run.saved.values() if run.saved is not None else None,
        peak_memory={name: peak for name, peak in peaks.items() if peak is not None},
    )


def _check(
    program: Program,
    problem: Problem,
    placement: Placement,
    steps: int,
    warmup: int,
    mode: str,
    transport: str,
) -> None:
    if steps < 1 or warmup < 0:
        raise InputError(f"steps={steps}, warmup={warmup}: at least one step and no less than none")
    if mode not in MODES:
        raise InputError(f"mode {mode!r}: must be one of {', '.join(MODES)}")
    if transport not in TRANSPORTS:
        raise InputError(f"transport {transport!r}: must be one of {', '.join(TRANSPORTS)}")
    missing = [name for name in program.inputs if name not in program.initial]
    if missing:
        raise InputError(
            f"program {program.name!r}: input {missing[0]!r} has no tensor (captured under fake "
            "tensors?); capture the model with real ones to execute it"
        )
    wrong = faults(problem, placement.device)
    if wrong:
        raise InfeasibleError(f"placement: {wrong[0]} ({len(wrong)} faults)")


class _Run:
    """Everything that parent and workers share in one run; made before forking."""

    def __init__(
        self, plan: ExecutionPlan, num_steps: int, mode: str, transport: str, outputs: bool
    ) -> None:
        self.plan, self.num_steps = plan, num_steps
        self.kinds = [torch_device(plan.problem, device, mode) for device in plan.devices]
        self.cores = assign_cores(self.kinds, mode)
        made, state = made_values(plan.program), state_values(plan.program)
        self.saved = SavedValues(plan.program, [*made, *state]) if outputs else None
        for name in set(state) - plan.holders.keys():  # read by no op: no worker has it
            if self.saved is not None:
                self.saved.save(name, plan.program.initial[name])
        self.programs: list[DeviceProgram] = [
            device_program(plan, device, made if outputs else ()) for device in plan.devices
        ]
        self.board = Board(len(plan.devices), crowded=len(set(self.cores)) < len(self.cores))
        self.transport = make_transport(transport, plan.messages, self.board)
        self.records = [
            Records(shared_words(num_steps * (TICKS * p.num_ticks + 1)), p.num_ticks)
            for p in self.programs
        ]

    def start(self, timeout: float, idle: Callable[[], None]) -> list[Any]:
        tasks = [Task(self._name(w), self._worker(w), core) for w, core in enumerate(self.cores)]
        try:
            return run_tasks(
                tasks,
                timeout=timeout,
                progress=self.board.snapshot,
                doing=self._doing,
                suspect=self._suspect,
                idle=idle,
            )
        finally:
            self.transport.dispose()

    def _worker(self, number: int) -> Callable[[], dict[str, Any]]:
        return DeviceWorker(
            number=number,
            device=self.plan.devices[number],
            plan=self.plan,
            program=self.programs[number],
            transport=self.transport,
            board=self.board,
            records=self.records[number],
            saved=self.saved,
            num_steps=self.num_steps,
            torch_device=self.kinds[number],
        )

    def _name(self, number: int) -> str:
        return self.plan.problem.cluster.devices[self.plan.devices[number]].name

    def _doing(self, number: int) -> str:
        step = self.board.get(number, STEP)
        if step == 0:
            return " before its first step"
        segment = self.plan.segments[self.plan.devices[number]][self.board.get(number, SEGMENT)]
        return f" in op {self.plan.problem.graph.names[segment.op]!r}, step {step - 1}"

    def _suspect(self) -> int | None:
        """A worker that neither waits for a message nor for the others at the barrier."""
        board = self.board
        workers = range(board.num_workers)
        last = min(board.get(w, ARRIVED) for w in workers)
        for w in workers:
            if board.get(w, ARRIVED) == last and not board.get(w, WAITING):
                return w
        return None


def with_sequences(problem: Problem, placement: Placement) -> Placement:
    """The placement itself, or completed by list scheduling as `simulate` completes it."""
    if placement.sequence is not None:
        return placement
    order = Simulator(problem).complete(placement.device)
    return finished_placement(problem, placement.device, order)


def torch_device(problem: Problem, device: int, mode: str) -> torch.device:
    """Where the tensors of a device live: "cuda:N" is that GPU, devices of kind "cpu" the CPU.

    Emulated devices all live on the CPU.

    Raises:
        UnsupportedError: there is no such device here.
    """
    about = problem.cluster.devices[device]
    if mode == "emulated" or about.kind == "cpu":
        return torch.device("cpu")
    kind, _, number = about.name.partition(":")
    here = torch.cuda.device_count()
    if kind != "cuda" or not number.isdecimal() or int(number) >= here:
        raise UnsupportedError(
            f"device {about.name!r} ({about.kind}) is not on this machine, which has {here} CUDA "
            "devices: profile the model for a cluster that is, or execute with mode='emulated'"
        )
    return torch.device("cuda", int(number))


def assign_cores(devices: list[torch.device], mode: str) -> list[int]:
    """A core for every worker; only emulated workers may share one.

    Raises:
        UnsupportedError: more workers than cores.
    """
    cores = available_cores()
    if len(devices) > len(cores) and mode != "emulated":
        raise UnsupportedError(
            f"{len(devices)} devices are in use but there are {len(cores)} cores: place on fewer "
            "devices, or execute with mode='emulated'"
        )
    return [cores[w % len(cores)] for w in range(len(devices))]
