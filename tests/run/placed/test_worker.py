"""What a worker binds its program to: devices among the arguments of ops become its own."""

from __future__ import annotations

import time

import pytest
import torch

from gnnplace.run.placed.plan import plan_execution
from gnnplace.run.placed.setting import RunSetting
from gnnplace.run.placed.source import DeviceProgram
from gnnplace.run.placed.worker import (
    CudaClock,
    DeviceClock,
    DeviceWorker,
    device_clock,
)
from tests.run.programs import ProgramBuilder, aten, problem_of, random_placement


def program():
    """Ops that say where what they make shall live, as captured ones do."""
    b = ProgramBuilder()
    x = b.input("x", "input", 4, 4)
    made = b.op("zeros", aten.zeros.default, [4, 4], device=torch.device("cpu"))
    arange = b.op("arange", aten.arange.default, 4, device=torch.device("cpu"))
    total = b.op("add", aten.add.Tensor, x, made)
    b.loss = b.op(
        "loss", aten.mean.default, b.op("more", aten.add.Tensor, total, arange)
    )
    return b.program()


def test_ops_make_tensors_on_the_workers_device(monkeypatch):
    """A stand-in for a GPU: "meta" tensors live nowhere, but ops know them."""
    captured = program()
    problem = problem_of(captured, 1)
    plan = plan_execution(captured, problem, random_placement(problem, 0))
    setting = RunSetting(plan, "measured", "shm", 1, ())
    given = setting.worker_arguments(0) | {"torch_device": torch.device("meta")}
    worker = DeviceWorker(**given, saved=None, num_steps=1)
    bound = {}
    monkeypatch.setattr(DeviceProgram, "bind", lambda self, names: bound.update(names))
    worker._bind({}, DeviceClock())
    constants = setting.programs[0].constants
    devices = [
        name for name, value in constants.items() if isinstance(value, torch.device)
    ]
    assert len(devices) == 2
    assert all(bound[name] == torch.device("meta") for name in devices)
    setting.transport.dispose()


class FakeStream:
    """Every event is one millisecond after the one before."""

    def __init__(self) -> None:
        self.now, self.waited = 0, 0

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def synchronize(self) -> None:
        self.waited += 1


class FakeEvent:
    def __init__(self, stream: FakeStream) -> None:
        self.stream, self.at = stream, -1

    def record(self) -> None:
        self.stream.now += 1
        self.at = self.stream.now

    def elapsed_time(self, other: FakeEvent) -> float:
        return float(other.at - self.at)


def test_events_become_ticks_on_the_hosts_clock(monkeypatch):
    stream = FakeStream()
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: stream.event())
    monkeypatch.setattr(torch.cuda, "synchronize", stream.synchronize)
    clock = CudaClock()
    for base in (0, 6):
        ticks = memoryview(bytearray(8 * 12)).cast("q")
        before = time.perf_counter_ns()
        clock.begin()
        wall, cpu = clock.functions()["wall"], clock.functions()["cpu"]
        for tick in range(3):
            ticks[base + 2 * tick], ticks[base + 2 * tick + 1] = wall(), cpu()
        clock.finish(ticks, base, 3)
        times = list(ticks[base : base + 6])
        assert times[0::2] == times[1::2]
        assert [b - a for a, b in zip(times[0::2], times[2::2], strict=False)] == [
            10**6,
            10**6,
        ]
        assert before + 10**6 <= times[0] <= time.perf_counter_ns() + 10**6
    assert stream.waited == 4


def test_cpu_clocks_are_the_hosts_and_the_threads():
    clock = device_clock(torch.device("cpu"))
    assert type(clock) is DeviceClock
    wall, cpu = clock.functions()["wall"], clock.functions()["cpu"]
    before = wall(), cpu()
    time.sleep(0.02)
    after = wall(), cpu()
    assert after[0] - before[0] >= 2e7
    assert after[1] - before[1] < 1e7


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="no CUDA device here")
def test_a_gpu_ticks():
    from gnnplace.run.workers.tasks import Task, run_tasks

    def tick() -> list[int]:
        clock = device_clock(torch.device("cuda", 0))
        clock.begin()
        wall = clock.functions()["wall"]
        wall()
        torch.ones(1000, 1000, device="cuda").mm(torch.ones(1000, 1000, device="cuda"))
        wall()
        ticks = memoryview(bytearray(32)).cast("q")
        clock.finish(ticks, 0, 2)
        return list(ticks)

    ticks = run_tasks([Task("gpu", tick)])[0]
    assert ticks[2] > ticks[0]
