from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import gnnplace
from gnnplace.errors import FormatError, InfeasibleError, MismatchError
from gnnplace.sharding.run.plan import plan_to_data


@pytest.fixture(scope="module")
def model():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))


@pytest.fixture(scope="module")
def plan(model):
    return gnnplace.shard(model, torch.ones(4, 64), 4)


def test_a_plan_is_saved_and_read(tmp_path, plan):
    plan.save(tmp_path / "plan.json")
    again = gnnplace.read_shard_plan(tmp_path / "plan.json")
    assert plan_to_data(again) == plan_to_data(plan)
    assert [x.name for x in tmp_path.iterdir()] == ["plan.json"]


def test_what_it_says(plan):
    assert plan.mesh == (2, 2)
    assert [layer.name for layer in plan.layers] == ["0", "1", "2"]
    assert set(plan.parameters) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert plan.predicted.total <= plan.data_parallel.total
    assert len(plan.lines()) == 3


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"version": 2}, "version"),
        ({"mesh": [0]}, "mesh"),
        ({"layers": [{"name": "x"}]}, "layers"),
        ({"more": 1}, "more"),
    ],
)
def test_a_broken_file_names_the_key(tmp_path, plan, change, key):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**plan_to_data(plan), **change}))
    with pytest.raises(FormatError, match=key):
        gnnplace.read_shard_plan(path)


def test_another_model_is_refused(plan):
    plan.check(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)))
    with pytest.raises(MismatchError, match=r"'2\.weight' has the shape"):
        plan.check(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 32)))
    with pytest.raises(MismatchError, match=r"no parameter '2\.weight'"):
        plan.check(nn.Sequential(nn.Linear(64, 256)))
    with pytest.raises(MismatchError, match=r"has no parameter '3\.weight'"):
        plan.check(
            nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.Linear(64, 64))
        )


def test_memory_limits(model, plan):
    need = plan.predicted.memory
    tight = gnnplace.shard(model, torch.ones(4, 64), 4, memory_limit=need)
    assert tight.predicted.memory <= need
    with pytest.raises(InfeasibleError):
        gnnplace.shard(model, torch.ones(4, 64), 4, memory_limit=1.0)


def test_a_batch_without_equal_parts_is_told(model):
    plan = gnnplace.shard(model, torch.ones(3, 64), 2)
    assert "a batch of 3 has no 2 equal parts" in plan.layers[0].reason
    assert all("equal parts" in line for line in plan.lines())
