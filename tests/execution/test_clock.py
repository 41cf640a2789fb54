"""Ticks become timelines: the virtual clock on ticks made by hand, emulation against simulate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gnnplace.execution.clock import StepClock, emulated_step, measured_step, virtual_step_time
from gnnplace.execution.plan import plan_execution
from gnnplace.execution.source import TICKS, device_program
from gnnplace.execution.worker import Records
from gnnplace.problem.placement import Placement, sequence_from_order
from gnnplace.simulation import simulate
from tests.execution.programs import ProgramBuilder, aten, problem_of, random_placement, two_towers

MICRO = 1000


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
    step = measured_step(clock)
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
    assert measured_step(clock).interrupted


@pytest.mark.parametrize("seed", range(3))
def test_emulation_is_the_simulation_of_the_cpu_times(seed):
    program = two_towers()
    problem = problem_of(program, 3)
    placement = random_placement(problem, seed)
    plan = plan_execution(program, problem, placement)
    rng = np.random.default_rng(seed)
    ticks = [
        np.cumsum(rng.integers(1, 50, device_program(plan, d).num_ticks)) for d in plan.devices
    ]
    clock = clock_of(program, problem, placement, ticks, ticks)
    timed = replace(problem, time={"cpu": clock.op_seconds()})
    step, expected = emulated_step(clock, placement), simulate(timed, placement)
    assert step.virtual == pytest.approx(expected.step_time)
    assert max(op.finish for op in step.ops) == pytest.approx(step.virtual)
    assert len(step.transfers) == len(expected.transfers.tensor)
    assert clock.op_seconds().min() > 0
