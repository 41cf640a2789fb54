from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from gnnplace import tracing
from gnnplace.errors import ExecutionError, MismatchError
from gnnplace.sharding.captured.costs import MeshMachine
from gnnplace.sharding.captured.layout import REPLICATED
from gnnplace.sharding.run.plan import ShardPlan
from gnnplace.sharding.run.planning import layer_graph, plan_for
from gnnplace.sharding.run.sharded import run_sharded
from gnnplace.zoo import Workload

SPLITTING = MeshMachine(flops=1e6, bandwidth=1e6)


def planned(spec: str, mesh: tuple[int, ...]) -> ShardPlan:
    workload = tracing.load(spec)
    layers = layer_graph(workload.model, workload.inputs, workload.loss, workload.name)
    return plan_for(layers, mesh, SPLITTING).plan


def test_the_best_plan_here_is_found_run_checked_and_timed():
    run = run_sharded(lambda: tracing.load("mlp?depth=2&batch=16"), 2, steps=2, timeout=60)
    assert run.verification.passed
    assert run.verification.tensors == 15
    assert min(run.sharded, run.ddp, run.one) > 0
    assert len(run.steps["sharded"]) == 2
    assert 0 < run.plan.predicted.total < 1


@pytest.mark.parametrize(
    ("spec", "mesh"),
    [
        ("mlp?depth=1&width=64&batch=8", (2, 2)),
        ("two_tower?batch=16&width=16&hidden=32&depth=1&vocabulary=64", (2,)),
        ("moe?batch=16&width=16&hidden=32&depth=1", (2,)),
        ("small_resnet?batch=4", (2,)),
        ("gpt2?layers=1&width=32&heads=4&vocabulary=64&length=8&dropout=0.1", (2,)),
    ],
)
def test_zoo_models_split_like_one_device(spec, mesh):
    plan = planned(spec, mesh)
    assert any("over" in layer.words for layer in plan.layers)
    count = 1
    for size in mesh:
        count *= size
    run = run_sharded(lambda: tracing.load(spec), count, plan=plan, steps=1, timeout=100)
    assert run.verification.passed, run.verification.summary()


def test_a_batch_that_cannot_be_cut_has_no_ddp():
    def make() -> Workload:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 8))
        return Workload("odd", model, (torch.randn(3, 8), torch.randn(3, 8)), functional.mse_loss)

    run = run_sharded(make, 2, steps=1, timeout=60)
    assert run.ddp is None
    assert run.verification.passed


def test_a_wrong_gradient_is_seen(monkeypatch):
    from gnnplace.sharding.run import gradients as shard_gradients

    monkeypatch.setattr(shard_gradients.Gradients, "_all_reduce", lambda *_: None)
    plan = planned("mlp?depth=1&width=64&batch=8", (2,))
    parallel = replace(plan, layers=tuple(_along_the_batch(x) for x in plan.layers))
    whole = {n: replace(p, home=(REPLICATED,)) for n, p in plan.parameters.items()}
    parallel = replace(parallel, parameters=whole)
    spec = "mlp?depth=1&width=64&batch=8"
    run = run_sharded(lambda: tracing.load(spec), 2, plan=parallel, steps=1, timeout=60)
    assert not run.verification.passed
    assert "NOT within" in run.verification.summary()


def _along_the_batch(layer):
    return replace(layer, split=("0",), words="batch over 2")


def test_another_models_plan_is_refused():
    plan = planned("mlp?depth=1&width=64&batch=8", (2,))
    with pytest.raises((MismatchError, ExecutionError), match="parameter"):
        run_sharded(lambda: tracing.load("moe?batch=16"), 2, plan=plan, steps=1, timeout=60)
