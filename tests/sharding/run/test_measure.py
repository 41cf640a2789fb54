from __future__ import annotations

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from gnnplace import tracing
from gnnplace.sharding.run.measure import clear_gradients, layer_seconds, measure_machine
from gnnplace.sharding.run.planning import layer_graph
from tests.sharding.mesh_processes import on_processes


@pytest.fixture(scope="module")
def layers():
    torch.set_num_threads(1)
    workload = tracing.load("mlp?depth=2")
    return layer_graph(workload.model, workload.inputs, workload.loss, "mlp")


def test_large_layers_take_most_of_the_time(layers):
    seconds = layer_seconds(layers.step, layers.calls, layers.rules)
    assert len(seconds) == len(layers.calls.calls)
    assert min(seconds) >= 0
    products = sum(
        t for t, rule in zip(seconds, layers.rules, strict=True) if rule.kind == "linear"
    )
    assert products > 0.5 * sum(seconds)


def test_gradients_are_forgotten(layers):
    layers.step(*layers.step.inputs()).backward()
    clear_gradients(layers.step)
    assert all(p.grad is None for p in layers.step.parameters())


def test_all_processes_have_the_same_figures():
    def work(rank):
        found = measure_machine(init_device_mesh("cpu", (2,)))
        return found.flops, found.bandwidth, found.latency, found.overhead

    first, second = on_processes(2, work)
    assert first == second
    assert min(first) > 0
    assert first[2] < 0.1
