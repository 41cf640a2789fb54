from __future__ import annotations

import json
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import mse_loss

import gnnplace
from gnnplace.errors import InfeasibleError, MismatchError
from gnnplace.run.planned.parameters import Parameters
from gnnplace.run.workers.transport import join_group, meeting_place
from gnnplace.sharding.answers import SplitOptions
from gnnplace.sharding.captured.costs import MeshMachine
from gnnplace.zoo import Workload

SPLITTING = MeshMachine(flops=1e6, bandwidth=1e6)


@pytest.fixture(scope="module")
def model():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))


@pytest.fixture(scope="module")
def plan(model):
    return gnnplace.shard(model, torch.ones(4, 64), 4)


def test_a_plan_is_saved_and_read(tmp_path, plan):
    plan.save(tmp_path / "plan.json")
    again = gnnplace.read_shard_plan(tmp_path / "plan.json")
    assert again.to_data() == plan.to_data()
    assert [x.name for x in tmp_path.iterdir()] == ["plan.json"]


def test_what_it_says(plan):
    assert plan.mesh == (2, 2)
    assert plan.file.stages[0].members == ["0", "1", "2"]
    assert plan.file.stages[0].modules == ["0", "1", "2"]
    assert plan.split.predicted.total <= plan.split.data_parallel.total
    assert sum(plan.file.parts.values()) == pytest.approx(plan.split.predicted.total)
    assert len(plan.split.lines()) == 3


def test_a_plan_of_training_is_no_forward_pass(tmp_path, plan):
    devices = [[["cpu:0", "cpu:1"]], [["cpu:2", "cpu:3"]]]
    stages = [{**plan.to_data()["stages"][0], "devices": devices, "placements": {}}]
    path = tmp_path / "plan.json"
    path.write_text(
        json.dumps({**plan.to_data(), "stages": stages, "microbatch_size": 2})
    )
    with pytest.raises(MismatchError, match="2 replicas"):
        gnnplace.read_shard_plan(path)


def test_memory_limits(model, plan):
    need = plan.split.predicted.memory
    tight = gnnplace.shard(model, torch.ones(4, 64), 4, memory_limit=need)
    assert tight.split.predicted.memory <= need
    with pytest.raises(InfeasibleError):
        gnnplace.shard(model, torch.ones(4, 64), 4, memory_limit=1.0)


def test_a_batch_without_equal_parts_is_told(model):
    plan = gnnplace.shard(model, torch.ones(3, 64), 2)
    assert "a batch of 3 has no 2 equal parts" in plan.split.words[0].reason
    assert all("equal parts" in line for line in plan.split.lines())


@pytest.mark.parametrize(
    ("spec", "devices"),
    [
        ("mlp?depth=1&width=64&batch=8", 4),
        ("two_tower?batch=16&width=16&hidden=32&depth=1&vocabulary=64", 2),
        ("moe?batch=16&width=16&hidden=32&depth=1", 2),
        ("small_resnet?batch=4", 2),
        ("gpt2?layers=1&width=32&heads=4&vocabulary=64&length=8&dropout=0.1", 2),
    ],
)
def test_zoo_models_train_split_as_on_one_device(spec, devices):
    """Ten seconds: processes of its own for every model."""
    plan = gnnplace.plan_shard(spec, SplitOptions(devices), machine=SPLITTING)
    assert any("over" in layer.words for layer in plan.split.words)
    run = gnnplace.run_plan(plan, spec, train=2, steps=1, beside=True)
    assert run.passed, run.verification.summary()
    assert set(run.beside) == {"data parallelism (DDP)", "one device"}
    assert all(min(times) > 0 for times in run.beside.values())


def test_a_batch_that_cannot_be_cut_has_no_ddp():
    def make():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 8))
        return Workload(
            "Sequential", model, (torch.randn(3, 8), torch.randn(3, 8)), mse_loss
        )

    own = make()
    plan = gnnplace.shard(own.model, own.inputs, 2, loss=own.loss, machine=SPLITTING)
    run = gnnplace.run_plan(plan, make, train=0, steps=1, beside=True)
    assert run.passed
    assert set(run.beside) == {"one device"}


def test_a_wrong_gradient_is_seen(monkeypatch):
    monkeypatch.setattr(Parameters, "_sum_over_shards", lambda *_: None)
    spec = "mlp?depth=1&width=64&batch=8"
    # Along the batch, which sums up gradients.
    fast = MeshMachine(flops=1.0, bandwidth=1e30)
    plan = gnnplace.plan_shard(spec, SplitOptions(2), machine=fast)
    run = gnnplace.run_plan(plan, spec, train=0, steps=1)
    assert not run.passed
    assert "NOT within" in run.verification.summary()


@pytest.fixture
def alone():
    """A process group of this process."""
    with meeting_place() as place:
        join_group(place, 0, 1, timedelta(seconds=30))
        yield
        dist.destroy_process_group()


def test_another_model_is_refused(alone):
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    plan = gnnplace.shard(model, torch.ones(4, 64), 1)
    deeper = nn.Sequential(*model, nn.Linear(64, 64))
    with pytest.raises(MismatchError, match=r"nothing.*'3'; make a plan for this one"):
        plan.apply(deeper)
    with pytest.raises(MismatchError, match="'1' where the model has 'nothing'"):
        plan.apply(nn.Sequential(nn.Linear(64, 256)))
    assert not any(isinstance(p.data, DTensor) for p in deeper.parameters())
    plan.apply(model)
    assert model(torch.ones(2, 64)).shape == (2, 64)
