"""The randomly wired network is the graph that it says it is."""

from __future__ import annotations

import networkx as nx
import pytest
import torch

from gnnplace import zoo
from gnnplace.bench.models.wired import NEIGHBOURS, REWIRED, Node, Stage


@pytest.mark.parametrize("nodes", [6, 16])
def test_a_stage_computes_its_random_graph(nodes: int) -> None:
    torch.manual_seed(0)
    graph = nx.connected_watts_strogatz_graph(nodes, NEIGHBOURS, REWIRED, seed=3)
    stage, x = Stage(graph, 4, 8).eval(), torch.randn(2, 4, 8, 8)
    directed = nx.DiGraph((min(edge), max(edge)) for edge in graph.edges)
    made: dict[int, torch.Tensor] = {}
    for i in nx.topological_sort(directed):
        sources = sorted(directed.predecessors(i))
        made[i] = stage.nodes[i]([made[j] for j in sources] or [x])
    ends = [made[i] for i in directed if not directed.out_degree(i)]
    torch.testing.assert_close(stage(x), torch.stack(ends).mean(0))
    assert stage(x).shape == (2, 8, 4, 4)


def test_inputs_of_a_node_are_weighed_by_sigmoids() -> None:
    torch.manual_seed(0)
    node, inputs = Node(3, 4, 4, 1).eval(), [torch.randn(1, 4, 5, 5) for _ in range(3)]
    node.weight.data.normal_()
    total = sum(torch.sigmoid(w) * x for w, x in zip(node.weight, inputs, strict=True))
    torch.testing.assert_close(node(inputs), node.convolution(total))


def test_architectures_are_other_graphs() -> None:
    first, same, other = (zoo.build("wired", architecture=i).model for i in (1, 1, 2))
    wiring = [
        [stage.before for stage in model.body[2:]] for model in (first, same, other)
    ]
    assert wiring[0] == wiring[1] != wiring[2]
    assert len(wiring[0]) == 3
