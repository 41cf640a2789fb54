"""Real processes: results equal one process's, failures are told, nothing is left behind."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gnnplace.errors import (
    ExecutionError,
    InfeasibleError,
    InputError,
    UnsupportedError,
)
from gnnplace.problem.cluster import Cluster, Device
from gnnplace.problem.placement import Placement
from gnnplace.run.checking.verification import verify
from gnnplace.run.placed import executor
from gnnplace.run.placed.executor import HostExchange, execute
from gnnplace.run.placed.options import ExecutionOptions
from gnnplace.run.placed.setting import assign_cores, torch_device
from gnnplace.run.placed.worker import Records
from gnnplace.run.workers.board import DONE, OFFSET, Board
from gnnplace.run.workers.hosts import Hosts
from gnnplace.run.workers.memory import make_shared_words
from tests.leftovers import nothing_shared, workers
from tests.run.programs import (
    ProgramBuilder,
    problem_of,
    random_placement,
    random_program,
    two_towers,
)

PROGRAM = two_towers(width=16, batch=8, layers=3)
HOST_OF, TICKS, STEPS = (0, 1), 3, 6


@pytest.fixture(autouse=True)
def nothing_left():
    with nothing_shared():
        yield
        left = workers()
        assert left == [], [one.cmdline() for one in left]


@pytest.mark.parametrize("transport", ["shm", "gloo"])
@pytest.mark.parametrize("seed", [0, 1])
def test_two_workers_equal_one_process_bit_for_bit(transport, seed):
    problem = problem_of(PROGRAM, 2)
    placement = random_placement(problem, seed)
    execution = execute(
        PROGRAM,
        problem,
        placement,
        ExecutionOptions(transport=transport, timeout=30),
    )
    assert verify(PROGRAM, execution).bitwise
    assert len(execution.steps) == 5
    assert 0 < execution.step_time < 5


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), workers=st.integers(3, 4))
# A slice that begins in mid cache line is sent and multiplied.
@example(seed=1955, workers=3)
def test_random_programs_never_deadlock_and_equal_one_process(seed, workers):
    program = random_program(seed)
    problem = problem_of(program, workers)
    placement = random_placement(problem, seed)
    execution = execute(
        program,
        problem,
        placement,
        ExecutionOptions(steps=2, warmup=0, mode="emulated", timeout=20),
    )
    assert verify(program, execution).bitwise


class Descending:
    """The mean, checked to fall from call to call."""

    def __init__(self):
        self.losses = []

    def __call__(self, tensor):
        self.losses.append(float(tensor.mean()))
        if self.losses != sorted(set(self.losses), reverse=True):
            raise ValueError(f"no descent: {self.losses}")
        return tensor.mean()


@pytest.mark.parametrize("frozen", [False, True])
def test_updates_go_on_from_step_to_step(frozen):
    ops = [
        replace(o, target=Descending()) if o.name == "loss" else o for o in PROGRAM.ops
    ]
    if frozen:
        ops = [
            replace(o, target=lambda *_: None) if o.phase == "update" else o
            for o in ops
        ]
    program = replace(PROGRAM, ops=tuple(ops))
    problem = problem_of(program, 2)
    if frozen:
        with pytest.raises(
            ExecutionError, match="step 1: member 'loss': ValueError: no descent"
        ):
            execute(program, problem, random_placement(problem, 0))
    else:
        execute(
            program, problem, random_placement(problem, 0), ExecutionOptions(steps=4)
        )


def test_without_sequences_the_list_scheduler_gives_them():
    problem = problem_of(PROGRAM, 2)
    placement = Placement(random_placement(problem, 4).device)
    assert verify(
        PROGRAM, execute(PROGRAM, problem, placement, ExecutionOptions(steps=1))
    ).bitwise


def test_emulation_takes_more_devices_than_cores_and_says_so():
    problem = problem_of(PROGRAM, 6)
    placement = random_placement(problem, 0)
    execution = execute(
        PROGRAM,
        problem,
        placement,
        ExecutionOptions(mode="emulated", steps=3),
    )
    assert execution.mode == "emulated"
    assert execution.step_time == execution.virtual_step_time
    assert len(execution.timeline.ops) == problem.num_ops
    with pytest.raises(UnsupportedError, match="mode='emulated'"):
        assign_cores([torch.device("cpu")] * 1000, "measured")


def test_the_timeline_obeys_the_order_of_devices_and_messages():
    problem = problem_of(PROGRAM, 2)
    placement = random_placement(problem, 1)
    execution = execute(PROGRAM, problem, placement)
    timeline = execution.timeline
    start = {op.op: op.start for op in timeline.ops}
    finish = {op.op: op.finish for op in timeline.ops}
    assert min(start.values()) >= 0
    for sequence in placement.sequence or ():
        names = [problem.graph.names[i] for i in sequence]
        assert all(finish[a] <= start[b] for a, b in itertools.pairwise(names))
    for transfer in timeline.transfers:
        assert finish[transfer.producer] <= transfer.start <= transfer.finish
        op = PROGRAM.ops[PROGRAM.producer[transfer.value]]
        readers = [o.name for o in PROGRAM.ops if set(o.reads) & set(op.results)]
        there = [r for r in readers if _device(timeline, r) == transfer.target]
        assert there
        assert all(transfer.start <= start[r] for r in there)


def _device(timeline, op):
    return next(t.device for t in timeline.ops if t.op == op)


def failing_program(target):
    """Two towers whose second ends in `target`, in the middle of the run."""
    ops = tuple(
        replace(op, target=target, args=op.args[:1]) if op.name == "relu1.1" else op
        for op in PROGRAM.ops
    )
    return replace(PROGRAM, ops=ops)


def towers_apart(problem):
    device = np.array(
        [int("1." in name and name != "loss") for name in problem.graph.names], np.int32
    )
    return Placement(device)


class InStep:
    """Does something the `number`-th time it is called."""

    def __init__(self, number, action):
        self.number, self.action, self.calls = number, action, 0

    def __call__(self, tensor):
        self.calls += 1
        if self.calls == self.number:
            self.action()
        return torch.relu(tensor)


def kill_self():
    os.kill(os.getpid(), signal.SIGKILL)


def bad_shapes():
    torch.zeros(2) + torch.zeros(3)


@pytest.mark.parametrize(
    ("action", "timeout", "message"),
    [
        (
            kill_self,
            30,
            r"worker 'cpu:1' was killed by SIGKILL in op 'relu1.1', step 2",
        ),
        (
            bad_shapes,
            30,
            r"worker 'cpu:1' failed in op 'relu1.1', step 2: member 'relu1.1': RuntimeError: The s",
        ),
        (
            lambda: time.sleep(600),
            1.0,
            r"worker 'cpu:1' hangs in op 'relu1.1', step 2: no progress for 1 s",
        ),
    ],
)
@pytest.mark.parametrize("transport", ["shm", "gloo"])
def test_a_worker_that_fails_ends_the_run_and_is_named(
    action, timeout, message, transport
):
    program = failing_program(InStep(3, action))
    problem = problem_of(program, 2)
    start = time.monotonic()
    with pytest.raises(ExecutionError, match=message) as error:
        execute(
            program,
            problem,
            towers_apart(problem),
            ExecutionOptions(timeout=timeout, transport=transport),
        )
    assert "\n" not in str(error.value)
    assert time.monotonic() - start < 15


def test_a_worker_killed_from_outside_ends_the_run():
    problem = problem_of(PROGRAM, 2)

    def kill_one() -> None:
        while len(workers()) < 2:
            time.sleep(0.01)
        time.sleep(0.5)
        workers()[-1].kill()

    threading.Thread(target=kill_one).start()
    with pytest.raises(ExecutionError, match=r"worker 'cpu:\d' was killed by SIGKILL"):
        execute(
            PROGRAM,
            problem,
            towers_apart(problem),
            ExecutionOptions(steps=100_000, timeout=30),
        )


def test_bad_arguments_are_named():
    problem = problem_of(PROGRAM, 2)
    placement = random_placement(problem, 0)
    with pytest.raises(InputError, match="steps=0"):
        execute(PROGRAM, problem, placement, ExecutionOptions(steps=0))
    with pytest.raises(InputError, match="mode 'guessed'"):
        execute(PROGRAM, problem, placement, ExecutionOptions(mode="guessed"))
    with pytest.raises(InputError, match="transport 'pigeon'"):
        execute(PROGRAM, problem, placement, ExecutionOptions(transport="pigeon"))
    with pytest.raises(InputError, match="has no tensor"):
        execute(replace(PROGRAM, initial={}), problem, placement)
    split = placement.device.copy()
    split[problem.graph.names.index("update0.0")] ^= 1
    with pytest.raises(InfeasibleError, match="colocated"):
        execute(PROGRAM, problem, Placement(split))


def test_cuda_devices_need_their_gpu():
    cluster = Cluster((Device(name="cuda:99", kind="h200", memory=1e11),))
    problem = replace(
        problem_of(PROGRAM, 1),
        cluster=cluster,
        time={"h200": np.ones(len(PROGRAM.ops))},
    )
    assert torch_device(problem, 0, "emulated") == torch.device("cpu")
    with pytest.raises(
        UnsupportedError, match=r"'cuda:99' \(h200\) is not on this machine"
    ):
        torch_device(problem, 0, "measured")


def test_an_op_without_readers_and_an_unused_parameter_are_no_trouble():
    b = ProgramBuilder()
    x = b.input("x", "input", 3, 3)
    b.input("unused", "parameter", 2)
    b.op("nobody", torch.ops.aten.neg.default, x)
    b.loss = b.op("loss", torch.ops.aten.sum.default, x)
    program = b.program()
    problem = problem_of(program, 1)
    execution = execute(
        program,
        problem,
        Placement(np.zeros(2, np.int32)),
        ExecutionOptions(steps=1, warmup=0),
    )
    assert verify(program, execution).bitwise
    assert execution.first is not None
    assert torch.equal(
        execution.first.parameters["unused"], program.initial["parameter.unused"]
    )


@pytest.fixture
def pair():
    """Two hosts with a worker each: their boards, records and exchanges."""
    store, sides = dist.HashStore(), []
    for rank in (0, 1):
        hosts = Hosts(rank, 2, ("here", 1), "run", store)
        records = [
            Records(make_shared_words(STEPS * (2 * TICKS + 1)), TICKS) for _ in HOST_OF
        ]
        board = Board(2)
        sides.append((board, records, HostExchange(hosts, HOST_OF, records, board)))
    return sides


def work(side, worker, steps):
    """Fills in steps of a worker."""
    board, records, _ = side
    row = records[worker].row
    for step in range(board.get(worker, DONE), steps):
        for k in range(row):
            records[worker].words[step * row + k] = 1000 * step + k
    board.put(worker, DONE, steps)


def test_steps_of_another_host_arrive_by_this_host_s_clock(pair):
    first, second = pair
    second[0].put(1, OFFSET, 50)
    for steps in (2, 5):
        work(second, 1, steps)
        second[2].update()
        first[2].update()
        assert first[0].get(1, DONE) == steps
    record = first[1][1]
    assert record.tick(4, 1, 0) == 4000 + 2 + 50  # wall clocks are moved
    assert record.tick(4, 1, 1) == 4000 + 3  # CPU times are not
    assert record.switches(4) == 4000 + 6


def test_nothing_new_is_nothing_told(pair):
    first, second = pair
    second[2].update()
    first[2].update()
    assert first[0].get(1, DONE) == 0


def test_a_failure_ends_the_other_host_and_brings_what_was_done(pair, monkeypatch):
    first, second = pair
    monkeypatch.setattr(executor, "LOOK", -1.0)
    first[2].now_and_then()
    work(second, 1, 3)
    second[2].end(ExecutionError("worker 'cpu:1' was killed by SIGKILL"))
    with pytest.raises(ExecutionError, match="host 1 failed: worker 'cpu:1'"):
        first[2].now_and_then()
    first[2].end(None)
    assert first[0].get(1, DONE) == 3


def test_a_lost_connection_is_explained_by_the_host_that_was_lost(pair, monkeypatch):
    first, second = pair
    lost = ExecutionError("worker 'cpu:0' failed: the connection to host 1 is lost")
    monkeypatch.setattr(executor, "PATIENCE", 0.1)
    assert first[2].cause(lost) is lost
    other = ExecutionError("no memory")
    assert first[2].cause(other) is other
    second[2].end(ExecutionError("worker 'cpu:1' was killed by SIGKILL"))
    assert (
        str(first[2].cause(lost))
        == "host 1 failed: worker 'cpu:1' was killed by SIGKILL"
    )
    assert first[2].cause(other) is other


def test_the_first_host_does_not_wait_for_ever(pair, monkeypatch):
    monkeypatch.setattr(executor, "GRACE", 0.1)
    pair[0][2].end(None)
    assert pair[0][0].get(1, DONE) == 0
