"""`execute`: runs a placed program on workers and measures it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from gnnplace.costs.profiling.cache import program_digest
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.execution.exchange import Exchange
from gnnplace.execution.plan import ExecutionPlan, plan_execution
from gnnplace.execution.result import Execution
from gnnplace.execution.saving import SavedValues, made_values, state_values
from gnnplace.execution.setting import Setting, made_for, played_kinds
from gnnplace.execution.stream import Observer, StepStream
from gnnplace.execution.worker import DeviceWorker
from gnnplace.problem import Problem
from gnnplace.problem.placement import Placement, faults
from gnnplace.runtime.hosts import Hosts
from gnnplace.runtime.transport import TRANSPORTS
from gnnplace.runtime.workers import Task, run_tasks
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
    hosts: Hosts | None = None,
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
        hosts: Several hosts, each of which calls this with the same arguments; shared memory is
            used inside a host and gloo across, whatever `transport` says. The first one has the
            result; on the others there are neither steps nor numbers.

    Raises:
        InputError: an argument out of range, or a program captured without tensors.
        InfeasibleError: the placement is impossible on the problem's cluster.
        UnsupportedError: fewer cores than devices in use, without emulation.
        MismatchError, DeadlockError: see `plan_execution`.
        ExecutionError: a worker died, failed or hung.
    """
    if steps < 1 or warmup < 0:
        raise InputError(f"steps={steps}, warmup={warmup}: at least one step and no less than none")
    check_runnable(program, problem, placement, mode, transport)
    placement = with_sequences(problem, placement)
    plan = plan_execution(made_for(program, problem, placement, mode), problem, placement)
    if hosts is not None:
        hosts.agree("run", _digest(plan, steps, warmup, mode))
    run = _Run(plan, steps + warmup, mode, transport, outputs, hosts)
    stream = StepStream(
        plan, run.programs, run.records, run.board, mode, placement, warmup, observer
    )
    reports = run.start(timeout, stream)
    names = [device.name for device in problem.cluster.devices]
    return Execution(
        mode=mode,
        transport=transport,
        devices=tuple(names[d] for d in plan.devices),
        steps=tuple(stream.timings),
        first=run.saved.values() if run.saved and (hosts is None or hosts.first) else None,
        memory={run.name(w): r["memory"] for w, r in zip(run.workers, reports, strict=True)},
        played=played_kinds(problem, plan.devices, mode),
    )


def _digest(plan: ExecutionPlan, steps: int, warmup: int, mode: str) -> str:
    """What hosts must agree on: program, placement, and how often it runs."""
    parts = (program_digest(plan.program), plan.segments, steps, warmup, mode)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def check_runnable(
    program: Program, problem: Problem, placement: Placement, mode: str, transport: str
) -> None:
    """Whether a placed program can be run at all.

    Raises:
        InputError: an unknown mode or transport, or a program captured without tensors.
        InfeasibleError: the placement is impossible on the problem's cluster.
    """
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
    check_possible(problem, placement)


def check_possible(problem: Problem, placement: Placement) -> None:
    """Whether a placement is possible on the problem's cluster.

    Raises:
        InfeasibleError: it is not; names the first fault.
    """
    wrong = faults(problem, placement.device)
    if wrong:
        raise InfeasibleError(f"placement: {wrong[0]} ({len(wrong)} faults)")


class _Run(Setting):
    """Everything that parent and workers share in one run; made before forking."""

    def __init__(
        self,
        plan: ExecutionPlan,
        num_steps: int,
        mode: str,
        transport: str,
        outputs: bool,
        hosts: Hosts | None,
    ) -> None:
        made, state = made_values(plan.program), state_values(plan.program)
        super().__init__(plan, mode, transport, num_steps, made if outputs else (), hosts)
        self.exchange = (
            Exchange(hosts, self.host_of, self.records, self.board) if hosts is not None else None
        )
        self.num_steps = num_steps
        self.saved = SavedValues(plan.program, [*made, *state]) if outputs else None
        for name in set(state) - plan.holders.keys():  # read by no op: no worker has it
            if self.saved is not None:
                self.saved.save(name, plan.program.initial[name])

    def start(self, timeout: float, stream: StepStream) -> list[Any]:
        """Runs all steps; whatever happens, `stream` has the steps that were complete."""
        try:
            reports = self._run(timeout, lambda: self._idle(stream))
        except BaseException as error:
            cause = self.exchange.cause(error) if self.exchange is not None else error
            self._end(stream, error)
            raise cause from None
        self._end(stream, None)
        return reports

    def _idle(self, stream: StepStream) -> None:
        if self.exchange is not None:
            self.exchange.now_and_then()
        stream.now_and_then()

    def _end(self, stream: StepStream, error: BaseException | None) -> None:
        if self.exchange is not None:
            self.exchange.end(error)
        stream.flush()

    def _run(self, timeout: float, idle: Callable[[], None]) -> list[Any]:
        tasks = [
            Task(self.name(w), self._worker(w), core)
            for w, core in zip(self.workers, self.cores, strict=True)
        ]
        try:
            return run_tasks(
                tasks,
                timeout=timeout,
                progress=self.board.snapshot,
                doing=lambda k: self.doing(self.workers[k]),
                suspect=self._suspect,
                idle=idle,
            )
        finally:
            self.transport.dispose()

    def _suspect(self) -> int | None:
        worker = self.suspect()
        return None if worker is None else self.workers.index(worker)

    def _worker(self, number: int) -> Callable[[], dict[str, Any]]:
        return DeviceWorker(**self.of_worker(number), saved=self.saved, num_steps=self.num_steps)


def with_sequences(problem: Problem, placement: Placement) -> Placement:
    """The placement itself, or completed by list scheduling as `simulate` completes it."""
    if placement.sequence is not None:
        return placement
    order = Simulator(problem).complete(placement.device)
    return finished_placement(problem, placement.device, order)
