"""`execute`: runs a placed program on workers and measures it.

With several hosts, every host except the first publishes the ticks of its workers. The first host
converts them to its own clock and copies them to where its own workers' ticks are. If a host fails,
it reports the error and all hosts end.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gnnplace.costs import program_digest
from gnnplace.errors import ExecutionError, InfeasibleError, InputError
from gnnplace.problem import Placement, Problem, list_faults
from gnnplace.run.placed.clock import EVERY, Observer, StepStream
from gnnplace.run.placed.options import AUTO, ExecutionOptions
from gnnplace.run.placed.plan import ExecutionPlan, plan_execution
from gnnplace.run.placed.result import (
    Execution,
    SavedValues,
    list_computed_values,
    state_values,
)
from gnnplace.run.placed.setting import (
    RunSetting,
    adapt_to_devices,
    execution_mode,
    list_emulated_kinds,
)
from gnnplace.run.placed.source import TICKS
from gnnplace.run.placed.worker import DeviceWorker, Records
from gnnplace.run.workers import (
    DONE,
    LOST,
    OFFSET,
    TRANSPORTS,
    Board,
    Hosts,
    Task,
    run_tasks,
)
from gnnplace.simulation import Simulator, finish_placement
from gnnplace.tracing import Program

FAILED, ENDED, DONE_KEY, ROWS = "failed", "ended", "done", "rows"
LOOK = 0.5
"""Seconds between two looks whether another host has failed."""
PATIENCE = 1.5
"""Seconds in which the host that was lost may say why."""
GRACE = 3.0
"""Seconds in which the first host waits for what others publish when they end."""
MODES = ("measured", "emulated")


class HostExchange:
    """One host's side of a run on several.

    Args:
        hosts: All hosts of the run.
        host_of: Host of each worker.
        records: The records of every worker; those of other hosts are filled in on the first.
        board: The board of every worker, filled in on the first host.
    """

    def __init__(
        self,
        hosts: Hosts,
        host_of: Sequence[int],
        records: Sequence[Records],
        board: Board,
    ) -> None:
        self._hosts, self._host_of = hosts, host_of
        self._records, self._board = records, board
        self._published = 0
        self._collected = [0] * hosts.count
        self._looked = self._updated = time.monotonic()

    def _workers(self, host: int) -> list[int]:
        return [w for w, worker_host in enumerate(self._host_of) if worker_host == host]

    def now_and_then(self) -> None:
        """Look for failures, and publish or collect, each at most once an interval. Called often.

        Raises:
            ExecutionError: another host has failed; says what happened there.
        """
        seconds = time.monotonic()
        if seconds - self._looked > LOOK:
            self._looked = seconds
            self._look()
        if seconds - self._updated > EVERY:
            self._updated = seconds
            self.update()

    def _look(self) -> None:
        for rank in range(self._hosts.count):
            why = self._failure(rank)
            if rank != self._hosts.rank and why and LOST not in why:
                raise ExecutionError(f"host {rank} failed: {why}")

    def cause(self, error: BaseException) -> BaseException:
        """Return why a run failed: of a lost connection what the lost host said, if anything."""
        deadline = time.monotonic() + PATIENCE
        while LOST in str(error) and time.monotonic() < deadline:
            for rank in range(self._hosts.count):
                why = self._failure(rank)
                if rank != self._hosts.rank and why and LOST not in why:
                    return ExecutionError(f"host {rank} failed: {why}")
            time.sleep(0.05)
        return error

    def _failure(self, rank: int) -> str:
        """Return what a host said of its failure; empty if it said nothing."""
        try:
            key = f"{FAILED}/{rank}"
            return (
                self._hosts.store.get(key).decode()
                if self._hosts.store.check([key])
                else ""
            )
        except RuntimeError:  # the store's host is gone
            return ""

    def update(self) -> None:
        """Publish or collect what is new."""
        if not self._hosts.first:
            self._publish()
            return
        for rank in range(1, self._hosts.count):
            self._collect(rank)

    def end(self, error: BaseException | None) -> None:
        """Tell all hosts that this host's run is over; the first host waits for all.

        Args:
            error: Why it failed, if it did.
        """
        store, rank = self._hosts.store, self._hosts.rank
        try:
            if error is not None:
                store.set(
                    f"{FAILED}/{rank}",
                    " ".join(str(error).split()) or type(error).__name__,
                )
            if not self._hosts.first:
                self._publish()
            store.set(f"{ENDED}/{rank}", "")
            if self._hosts.first:
                self._wait()
                self.update()
        except RuntimeError:  # the store's host is gone: nobody is left to tell
            return

    def _wait(self) -> None:
        keys = [f"{ENDED}/{rank}" for rank in range(1, self._hosts.count)]
        deadline = time.monotonic() + GRACE
        while not self._hosts.store.check(keys) and time.monotonic() < deadline:
            time.sleep(0.02)

    def _publish(self) -> None:
        workers, store = self._workers(self._hosts.rank), self._hosts.store
        num_done = min((self._board.get(w, DONE) for w in workers), default=0)
        if num_done <= self._published:
            return
        first = self._published
        for w in workers:
            record = self._records[w]
            words = record.words[first * record.row : num_done * record.row]
            store.set(f"{ROWS}/{w}/{first}", words.tobytes())  # type: ignore[arg-type]
        offsets = {w: self._board.get(w, OFFSET) for w in workers}
        message = {"done": num_done, "offsets": offsets}
        store.set(f"{DONE_KEY}/{self._hosts.rank}/{first}", json.dumps(message))
        self._published = num_done

    def _collect(self, rank: int) -> None:
        store = self._hosts.store
        while store.check([f"{DONE_KEY}/{rank}/{self._collected[rank]}"]):
            first = self._collected[rank]
            message = json.loads(store.get(f"{DONE_KEY}/{rank}/{first}"))
            for w in self._workers(rank):
                data = memoryview(store.get(f"{ROWS}/{w}/{first}")).cast("q")
                self._fill(self._records[w], first, data, message["offsets"][str(w)])
                self._board.put(w, DONE, message["done"])
            self._collected[rank] = message["done"]

    def _fill(self, record: Records, first: int, data: memoryview, offset: int) -> None:
        """Copy rows, with their wall clocks brought to that of worker 0."""
        base = first * record.row
        record.words[base : base + len(data)] = data
        for row in range(len(data) // record.row):
            at = base + row * record.row
            for tick in range(record.num_ticks):
                record.words[at + TICKS * tick] += offset


def execute(
    program: Program,
    problem: Problem,
    placement: Placement,
    options: ExecutionOptions | None = None,
    *,
    observer: Observer | None = None,
) -> Execution:
    """Run several steps of `program` on one worker process for each device in use.

    Args:
        program: The captured program, with its initial tensors.
        problem: Its problem: names the devices and groups the ops.
        placement: Where the ops go, and in which order.
        options: How workers run it; the defaults of `ExecutionOptions` without it.
        observer: Handed the steps after the warm-up as they are completed, and what is left of
            them before an error of the run is raised.

    Raises:
        InputError: an argument out of range, or a program captured without tensors.
        InfeasibleError: the placement is impossible on the problem's cluster.
        UnsupportedError: fewer cores than devices in use, without emulation.
        MismatchError, DeadlockError: see `plan_execution`.
        ExecutionError: a worker died, failed or hung.
    """
    options = options or ExecutionOptions()
    steps, warmup, hosts = options.steps, options.warmup, options.hosts
    if steps < 1 or warmup < 0:
        raise InputError(
            f"steps={steps}, warmup={warmup}: at least one step and no less than none"
        )
    mode = execution_mode(placement, problem) if options.mode == AUTO else options.mode
    options = replace(options, mode=mode)
    check_runnable(program, problem, placement, mode, options.transport)
    placement = with_sequences(problem, placement)
    plan = plan_execution(
        adapt_to_devices(program, problem, placement, mode), problem, placement
    )
    if hosts is not None:
        hosts.agree("run", _digest(plan, steps, warmup, mode))
    run = _WorkerRun(plan, options)
    stream = StepStream(run, placement, warmup, observer)
    reports = run.start(options.timeout, stream)
    names = [device.name for device in problem.cluster.devices]
    return Execution(
        mode=mode,
        transport=options.transport,
        devices=tuple(names[d] for d in plan.devices),
        steps=tuple(stream.timings),
        first=run.saved.values() if run.saved and options.reports else None,
        memory={
            run.name(w): r["memory"] for w, r in zip(run.workers, reports, strict=True)
        },
        played=list_emulated_kinds(problem, plan.devices, mode),
    )


def _digest(plan: ExecutionPlan, steps: int, warmup: int, mode: str) -> str:
    """Return a digest of what hosts must agree on: program, placement, number of steps."""
    parts = (program_digest(plan.program), plan.segments, steps, warmup, mode)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def check_runnable(
    program: Program, problem: Problem, placement: Placement, mode: str, transport: str
) -> None:
    """Check that a placed program can be run at all.

    Raises:
        InputError: an unknown mode or transport, or a program captured without tensors.
        InfeasibleError: the placement is impossible on the problem's cluster.
    """
    if mode not in MODES:
        raise InputError(f"mode {mode!r}: must be one of {', '.join(MODES)}")
    if transport not in TRANSPORTS:
        raise InputError(
            f"transport {transport!r}: must be one of {', '.join(TRANSPORTS)}"
        )
    missing = [name for name in program.inputs if name not in program.initial]
    if missing:
        raise InputError(
            f"program {program.name!r}: input {missing[0]!r} has no tensor (captured under fake "
            "tensors?); capture the model with real ones to execute it"
        )
    check_possible(problem, placement)


def check_possible(problem: Problem, placement: Placement) -> None:
    """Check that a placement is possible on the problem's cluster.

    Raises:
        InfeasibleError: it is not; names the first fault.
    """
    wrong = list_faults(problem, placement.device)
    if wrong:
        raise InfeasibleError(f"placement: {wrong[0]} ({len(wrong)} faults)")


class _WorkerRun(RunSetting):
    """Everything that parent and workers share in one run; made before forking."""

    def __init__(self, plan: ExecutionPlan, options: ExecutionOptions) -> None:
        computed, state = list_computed_values(plan.program), state_values(plan.program)
        num_steps, hosts, outputs = (
            options.steps + options.warmup,
            options.hosts,
            options.outputs,
        )
        super().__init__(
            plan,
            options.mode,
            options.transport,
            num_steps,
            computed if outputs else (),
            hosts,
        )
        self.exchange = (
            HostExchange(hosts, self.host_of, self.records, self.board)
            if hosts is not None
            else None
        )
        self.num_steps = num_steps
        self.saved = SavedValues(plan.program, [*computed, *state]) if outputs else None
        for name in set(state) - plan.holders.keys():  # read by no op: no worker has it
            if self.saved is not None:
                self.saved.save(name, plan.program.initial[name])

    def start(self, timeout: float, stream: StepStream) -> list[Any]:
        """Run all steps. Whatever happens, `stream` has the steps that were complete."""
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
        return DeviceWorker(
            **self.worker_arguments(number), saved=self.saved, num_steps=self.num_steps
        )


def with_sequences(problem: Problem, placement: Placement) -> Placement:
    """Return the placement, with sequences by list scheduling, as in `simulate`, if it has none."""
    if placement.sequence is not None:
        return placement
    order = Simulator(problem).complete(placement.device)
    return finish_placement(problem, placement.device, order)
