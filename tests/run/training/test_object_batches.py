"""A loop whose loader yields objects: compiled and planned, beside plain PyTorch."""

import dataclasses
from functools import partial

import pytest
import torch
from torch import nn, optim
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import gnnplace
from gnnplace.costs.profiling.profiler import profile
from gnnplace.errors import InputError, MismatchError
from gnnplace.tracing.models import capture
from gnnplace.zoo import Workload
from tests.run.planned.toys import plan_for
from tests.run.programs import cpu_cluster, random_placement


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    edge_index: torch.Tensor
    y: torch.Tensor
    scale: float = 1.0


class Network(nn.Module):
    """Two layers of messages, which add up in place, and a loss."""

    def __init__(self):
        super().__init__()
        self.first, self.second = SAGEConv(4, 8), SAGEConv(8, 3)

    def forward(self, graph):
        hidden = functional.relu(
            self.first(graph.x * getattr(graph, "scale", 1.0), graph.edge_index)
        )
        return functional.cross_entropy(self.second(hidden, graph.edge_index), graph.y)


def graph(kind, seed, nodes=8, **more):
    generator = torch.Generator().manual_seed(seed)
    return kind(
        x=torch.randn(nodes, 4, generator=generator),
        edge_index=torch.randint(nodes, (2, 20), generator=generator),
        y=torch.randint(3, (nodes,), generator=generator),
        **more,
    )


def network():
    torch.manual_seed(0)
    return Network()


def trained(model, parameters, loss, kind):
    """Losses of three steps, each on a new object."""
    optimizer, losses = optim.SGD(parameters, lr=0.5), []
    for seed in range(3):
        optimizer.zero_grad()
        value = loss(graph(kind, seed))
        if value.requires_grad:
            value.backward()
        losses.append(float(value))
        optimizer.step()
    return losses


@pytest.mark.parametrize("kind", [Data, Record])
def test_a_compiled_loop_trains_on_a_new_object_every_step(kind):
    model = network()
    expected = trained(model, model.parameters(), model, kind)
    model = network()
    program = capture(model, graph(kind, 0))
    problem = profile(program, cpu_cluster(2))
    placement = random_placement(problem, 0)
    made = partial(gnnplace.compile, model, placement, None, problem=problem)
    with made(inputs=graph(kind, 0)) as step:
        assert trained(model, model.parameters(), step.loss, kind) == pytest.approx(
            expected
        )
        with pytest.raises(
            InputError, match=r"x has shape \(9, 4\).* pad the nodes and edges"
        ):
            step.loss(graph(kind, 0, nodes=9))
        if kind is Record:
            with pytest.raises(
                MismatchError, match=r"input \[0\].scale is 2.0, and was 1.0"
            ):
                step.loss(graph(kind, 0, scale=2.0))


@pytest.mark.parametrize("kind", [Data, Record])
def test_a_plan_trains_on_a_new_object_every_step(kind):
    model = network()
    expected = trained(model, model.parameters(), model, kind)
    workload = Workload("Network", network(), (graph(kind, 0),), None)
    runner = plan_for(workload, "pp=1,microbatch_size=8", 1).apply(
        workload.model, workload.inputs, loss=workload.loss
    )
    assert trained(model, runner.parameters(), runner.step, kind) == pytest.approx(
        expected
    )
