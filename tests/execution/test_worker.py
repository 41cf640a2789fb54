"""What a worker binds its program to: devices among the arguments of ops become its own."""

from __future__ import annotations

import torch

from gnnplace.execution.device_clock import DeviceClock
from gnnplace.execution.plan import plan_execution
from gnnplace.execution.setting import Setting
from gnnplace.execution.source import DeviceProgram
from gnnplace.execution.worker import DeviceWorker
from tests.execution.programs import ProgramBuilder, aten, problem_of, random_placement


def program():
    """Ops that say where what they make shall live, as captured ones do."""
    b = ProgramBuilder()
    x = b.input("x", "input", 4, 4)
    made = b.op("zeros", aten.zeros.default, [4, 4], device=torch.device("cpu"))
    arange = b.op("arange", aten.arange.default, 4, device=torch.device("cpu"))
    total = b.op("add", aten.add.Tensor, x, made)
    b.loss = b.op("loss", aten.mean.default, b.op("more", aten.add.Tensor, total, arange))
    return b.program()


def test_ops_make_tensors_on_the_workers_device(monkeypatch):
    """A stand-in for a GPU: "meta" tensors live nowhere, but ops know them."""
    captured = program()
    problem = problem_of(captured, 1)
    plan = plan_execution(captured, problem, random_placement(problem, 0))
    setting = Setting(plan, "measured", "shm", 1, ())
    given = setting.of_worker(0) | {"torch_device": torch.device("meta")}
    worker = DeviceWorker(**given, saved=None, num_steps=1)
    bound = {}
    monkeypatch.setattr(DeviceProgram, "bind", lambda self, names: bound.update(names))
    worker._bind({}, DeviceClock())
    constants = setting.programs[0].constants
    devices = [name for name, value in constants.items() if isinstance(value, torch.device)]
    assert len(devices) == 2
    assert all(bound[name] == torch.device("meta") for name in devices)
    setting.transport.dispose()
