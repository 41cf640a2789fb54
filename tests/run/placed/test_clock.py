"""Ticks become timelines: the virtual clock on ticks made by hand, emulation against simulate."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest

from gnnplace.errors import ExecutionError
from gnnplace.problem.placement import Placement, sequence_from_order
from gnnplace.run.placed import clock as clocks
from gnnplace.run.placed.clock import (
    StepClock,
    emulate_step,
    make_measured_step,
    virtual_step_time,
)
from gnnplace.run.placed.executor import execute
from gnnplace.run.placed.options import ExecutionOptions
from gnnplace.run.placed.plan import plan_execution
from gnnplace.run.placed.source import TICKS, device_program
from gnnplace.run.placed.worker import Records
from gnnplace.simulation import simulate
from tests.run.programs import (
    ProgramBuilder,
    aten,
    problem_of,
    random_placement,
    two_towers,
)

MICRO = 1000
PROGRAM = two_towers(width=16, batch=8, layers=3)


def clock_of(program, problem, placement, cpu, wall):
    """A step whose worker w has the ticks cpu[w] and wall[w], in microseconds."""
    plan = plan_execution(program, problem, placement)
    programs = [device_program(plan, d) for d in plan.devices]
    records = []
    for w, written in enumerate(programs):
        assert written.num_ticks == len(cpu[w]) == len(wall[w])
        words = [0] * (TICKS * written.num_ticks + 1)
        words[0:-1:TICKS] = [t * MICRO for t in wall[w]]
        words[1::TICKS] = [t * MICRO for t in cpu[w]]
        records.append(Records(memoryview(np.array(words)), written.num_ticks))
    return StepClock(plan, programs, records, 0)


def ping_pong():
    """a on device 0, b on device 1, c on device 0; b meanwhile does nothing else."""
    b = ProgramBuilder()
    x = b.input("x", "input", 2, 2)
    b.op("a", aten.neg.default, x)
    b.op("b", aten.neg.default, "a")
    b.loss = b.op("c", aten.sum.default, "b")
    program = b.program()
    device = np.array([0, 1, 0], np.int32)
    sequence = sequence_from_order(device, np.arange(3, dtype=np.int32), 2)
    return program, problem_of(program, 2), Placement(device, sequence)


def test_the_virtual_clock_adds_cpu_times_copies_and_latencies():
    program, problem, placement = ping_pong()
    # Device 0: start, end of a, end of its send, start of c, end of c. Device 1: b likewise.
    cpu = [[0, 10, 13, 500, 504], [900, 920, 922]]
    wall = [[100, 110, 113, 1000, 1004], [120, 140, 999]]
    clock = clock_of(program, problem, placement, cpu, wall)
    latency = 5.0  # microseconds, of the test cluster
    expected = 10 + 3 + latency + 20 + 2 + latency + 4
    assert virtual_step_time(clock) == pytest.approx(expected * 1e-6)
    step = make_measured_step(clock)
    assert step.wall == pytest.approx((1004 - 100) * 1e-6)
    assert step.virtual == virtual_step_time(clock)
    assert [(op.op, op.device) for op in step.ops] == [
        ("a", "cpu:0"),
        ("c", "cpu:0"),
        ("b", "cpu:1"),
    ]
    assert step.ops[1].start == pytest.approx(900e-6)
    assert [(t.value, t.source, t.target) for t in step.transfers] == [
        ("a", "cpu:0", "cpu:1"),
        ("b", "cpu:1", "cpu:0"),
    ]
    assert step.transfers[0].start == pytest.approx(10e-6)
    assert not step.interrupted


def test_a_switch_marks_the_step():
    program, problem, placement = ping_pong()
    ticks = [[0, 1, 2, 3, 4], [0, 1, 2]]
    clock = clock_of(program, problem, placement, ticks, ticks)
    clock.records[1].words[clock.records[1].row - 1] = 2
    assert make_measured_step(clock).interrupted


@pytest.mark.parametrize("seed", range(3))
def test_emulation_is_the_simulation_of_the_cpu_times(seed):
    program = two_towers()
    problem = problem_of(program, 3)
    placement = random_placement(problem, seed)
    plan = plan_execution(program, problem, placement)
    rng = np.random.default_rng(seed)
    ticks = [
        np.cumsum(rng.integers(1, 50, device_program(plan, d).num_ticks))
        for d in plan.devices
    ]
    clock = clock_of(program, problem, placement, ticks, ticks)
    timed = replace(problem, time={"cpu": clock.op_seconds()})
    step, expected = emulate_step(clock, placement), simulate(timed, placement)
    assert step.virtual == pytest.approx(expected.step_time)
    assert max(op.finish for op in step.ops) == pytest.approx(step.virtual)
    assert len(step.transfers) == len(expected.transfers.tensor)
    assert clock.op_seconds().min() > 0


class Kept:
    """An observer."""

    def __init__(self):
        self.calls = []

    def __call__(self, first, timings):
        assert first == sum(len(c) for c in self.calls)
        self.calls.append(list(timings))

    @property
    def steps(self):
        return [timing for call in self.calls for timing in call]


class Dying:
    """The mean; at the n-th call its process is killed."""

    def __init__(self, last):
        self.last, self.calls = last, 0

    def __call__(self, tensor):
        self.calls += 1
        if self.calls > self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        return tensor.mean()


def with_loss(function):
    ops = [replace(o, target=function) if o.name == "loss" else o for o in PROGRAM.ops]
    return replace(PROGRAM, ops=tuple(ops))


@pytest.mark.parametrize("mode", ["measured", "emulated"])
def test_the_observer_gets_every_step_after_the_warm_up_once(mode):
    kept, problem = Kept(), problem_of(PROGRAM, 2)
    placement = random_placement(problem, 0)
    run = execute(
        PROGRAM,
        problem,
        placement,
        ExecutionOptions(steps=4, warmup=2, mode=mode, timeout=30),
        observer=kept,
    )
    assert kept.steps == list(run.steps)
    assert len(kept.steps) == 4


def test_steps_are_handed_over_while_the_run_goes_on(monkeypatch):
    monkeypatch.setattr(clocks, "EVERY", 0.0)
    kept, problem = Kept(), problem_of(PROGRAM, 2)
    program = with_loss(Slow())
    execute(
        program,
        problem,
        random_placement(problem, 0),
        ExecutionOptions(steps=6, timeout=30),
        observer=kept,
    )
    assert len(kept.calls) > 1
    assert len(kept.steps) == 6


class Slow:
    """The mean, after a while."""

    def __call__(self, tensor):
        end = time.monotonic() + 0.15
        while time.monotonic() < end:
            pass
        return tensor.mean()


@pytest.mark.parametrize("mode", ["measured", "emulated"])
def test_steps_complete_before_a_worker_is_killed_are_kept(mode):
    kept, problem = Kept(), problem_of(PROGRAM, 2)
    placement = random_placement(problem, 0)
    with pytest.raises(ExecutionError, match="SIGKILL"):
        execute(
            with_loss(Dying(5)),
            problem,
            placement,
            ExecutionOptions(steps=9, warmup=2, mode=mode, timeout=30),
            observer=kept,
        )
    assert len(kept.steps) == 3
    assert all(0 < step.wall < 5 and 0 < step.virtual < 5 for step in kept.steps)
