from __future__ import annotations

import networkx as nx
import numpy as np
from hypothesis import given, settings

from gnnplace.graph import ComputationGraph
from gnnplace.graph.ranks import downward_rank, levels, levels_from_sinks, upward_rank
from tests.random_problems import random_graph, seeds

# The example of Topcuoglu et al. (2002), figure 2 and table 2: edges of the task graph.
EDGES = {
    (1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14, (2, 8): 19, (2, 9): 16, (3, 7): 23,
    (4, 8): 27, (4, 9): 23, (5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11, (9, 10): 13,
}  # fmt: skip
COSTS = [
    (14, 16, 9), (13, 19, 18), (11, 13, 19), (13, 8, 17), (12, 13, 10),
    (13, 16, 9), (7, 15, 11), (5, 11, 14), (18, 12, 20), (21, 7, 16),
]  # fmt: skip
PUBLISHED = [108.0, 77.0, 80.0, 80.0, 69.0, 63.333, 42.667, 35.667, 44.333, 14.667]


def test_upward_rank_of_the_published_example():
    tensors = [(a - 1, float(c), [b - 1]) for (a, b), c in EDGES.items()]
    graph = ComputationGraph.from_tensors([str(i + 1) for i in range(10)], tensors)
    rank = upward_rank(graph, np.mean(COSTS, axis=1), graph.edges[2])
    np.testing.assert_allclose(rank, PUBLISHED, atol=5e-4)


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_ranks_are_longest_paths(seed):
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, 9)
    cost, edge_cost = rng.random(9), rng.random(len(graph.edges[0]))
    view = nx.DiGraph()
    view.add_nodes_from(range(9))
    for a, b, w in zip(graph.edges[0], graph.edges[1], edge_cost, strict=True):
        view.add_edge(int(a), int(b), weight=float(w) + cost[a])
    up, down = upward_rank(graph, cost, edge_cost), downward_rank(graph, cost, edge_cost)
    longest = nx.dag_longest_path_length(view) if view.edges else 0.0
    ends = [op for op in view if view.out_degree(op) == 0]
    assert max(down[op] for op in range(9)) >= longest - 1e-9
    assert np.isclose(max(up), max(down[op] + cost[op] for op in ends))
    depth = levels(graph)
    assert all(depth[b] > depth[a] for a, b in view.edges)
    height = levels_from_sinks(graph)
    for op in range(9):
        after = graph.successors(op)
        assert height[op] == (height[after].max() + 1 if len(after) else 0)
