"""A build of torch with CUDA on a machine without a GPU: what `pip install torch` brings on Linux.

Nothing that follows a model may touch CUDA there, nor register pretended GPUs, for which the next
backward pass starts threads; forked workers could not run a backward pass then.
"""

from __future__ import annotations

import os
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from gnnplace.errors import UnsupportedError
from gnnplace.run.planned.running import run_plan
from gnnplace.run.workers.rig import run_group
from gnnplace.tracing.loading import load
from gnnplace.tracing.models import capture
from gnnplace.tracing.recording.recorder import record_calls
from gnnplace.tracing.step import StepModule
from tests.run.planned.toys import plan_for, toy

FORBIDDEN = (
    (torch._C, "_ensureCUDADeviceGuardSet"),
    (torch._C, "_cuda_init"),
    (torch._C, "_cuda_getDevice"),
    (torch._C, "_cuda_setDevice"),
    (torch.cuda, "_lazy_init"),
    (torch.cuda, "init"),
    (torch.cuda, "synchronize"),
    (torch.cuda, "get_rng_state"),
)


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    """What was called that must not be; torch claims to be built with CUDA and to find no GPU."""
    names: list[str] = []
    for owner, name in FORBIDDEN:
        stand_in = lambda *_, name=name, **__: names.append(name)  # noqa: E731
        monkeypatch.setattr(owner, name, stand_in, raising=False)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return names


class Checkpointed(nn.Module):
    """A block whose activations are computed again, with dropout in it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        block = lambda y: functional.dropout(self.up(y).relu(), 0.1, self.training)  # noqa: E731
        return self.down(checkpoint(block, x, use_reentrant=False))


def capture_checkpointed() -> None:
    batch = (torch.randn(4, 8), torch.randn(4, 8))
    capture(Checkpointed(), batch, loss=functional.mse_loss)


def capture_without_memory() -> None:
    workload = load("mlp?depth=1", fake=True)
    capture(workload.model, workload.inputs, loss=workload.loss)


def record_for_shards() -> None:
    workload = toy()
    record_calls(StepModule(workload.model, workload.loss, workload.inputs), "toy")


def plan_shards() -> None:
    plan_for(toy(depth=1), "shards=2", count=2)


def num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


ROADS = (capture_checkpointed, capture_without_memory, record_for_shards, plan_shards)


@pytest.mark.parametrize("road", ROADS, ids=lambda road: road.__name__)
def test_nothing_touches_cuda_or_starts_threads(road, request) -> None:
    road()  # a build for CPUs alone starts what it needs
    threads = num_threads()
    calls = request.getfixturevalue("calls")
    road()
    assert calls == []
    assert num_threads() == threads
    assert not torch.cuda.is_initialized()


def test_the_mode_of_torch_itself_would_register_gpus(calls) -> None:
    """The test above can fail: torch registers its pretended GPUs in every mode of its own."""
    with torch._subclasses.fake_tensor.FakeTensorMode():
        pass
    assert calls == ["_ensureCUDADeviceGuardSet"]


def test_a_plan_runs_on_forked_workers(calls) -> None:
    workload = toy(depth=1)
    capture(workload.model, workload.inputs, loss=workload.loss)
    found = run_plan(
        plan_for(workload, "dp=2,microbatch_size=4", count=2),
        lambda: toy(depth=1),
        train=1,
        steps=1,
    )
    assert found.passed
    assert calls == []


def test_threads_of_a_backward_pass_are_named_before_anything_is_forked() -> None:
    """They are there once the user entered a mode of torch's own and ran a backward pass."""
    ready, over = threading.Event(), threading.Event()

    def stand_in() -> None:
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file:
            file.write("pt_autograd_0")
        ready.set()
        over.wait()

    thread = threading.Thread(target=stand_in)
    thread.start()
    ready.wait()
    try:
        with pytest.raises(
            UnsupportedError, match=r"threads of a backward pass .*fresh process"
        ):
            run_group(lambda rank: rank, ["a", "b"], timeout=30.0)
    finally:
        over.set()
        thread.join()
