from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh

from gnnplace import tracing
from gnnplace.run.split.measure import measure_figures, measure_machine
from gnnplace.sharding.captured.split import layer_graph
from tests.sharding.mesh_processes import on_processes


def test_all_processes_have_the_same_figures():
    def work(rank):
        found = measure_machine(init_device_mesh("cpu", (2,)))
        return found.flops, found.bandwidth, found.latency, found.overhead

    first, second = on_processes(2, work)
    assert first == second
    assert min(first) > 0
    assert first[2] < 0.1


def layers_in(rank):
    torch.manual_seed(rank)
    workload = tracing.load("mlp?depth=2")
    layers = layer_graph(workload.model, workload.inputs, workload.loss, "mlp")
    before = {n: t.clone() for n, t in workload.model.state_dict().items()}
    _, seconds = measure_figures(layers, init_device_mesh("cpu", (2,)))
    assert all(p.grad is None for p in workload.model.parameters())
    assert all(
        torch.equal(t, before[n]) for n, t in workload.model.state_dict().items()
    )
    return seconds, [rule.kind for rule in layers.rules]


def test_large_layers_take_most_of_the_time_and_all_know_the_same():
    first, second = on_processes(2, layers_in)
    assert first == second
    seconds, kinds = first
    assert len(seconds) == len(kinds)
    assert min(seconds) >= 0
    products = sum(
        t for t, kind in zip(seconds, kinds, strict=True) if kind == "linear"
    )
    assert products > 0.5 * sum(seconds)
