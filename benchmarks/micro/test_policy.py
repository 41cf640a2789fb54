"""Features, encoder and decoder of the learned placer: against networkx, PyG and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.nn import GCNConv

from benchmarks.micro.references import against, problem, upward_rank
from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.policy.gnn.clusters import build_clusters
from gnnplace.policy.gnn.features import STATIC, static_features
from gnnplace.policy.gnn.network import load_gnn
from gnnplace.policy.gnn.rollouts import Episodes
from gnnplace.policy.learned import load_policy
from tests.policy.decode import torch_walk

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def policy():
    return load_policy()


@pytest.mark.parametrize("num_ops", [300, 3_000])
def test_features_against_one_rank_in_networkx(benchmark, num_ops):
    """All static features of ours, clusters too; one of them (the upward rank) of theirs."""
    made = problem(num_ops)
    cost, edge_cost = made.times[:, 0], made.graph.edges[2] / 1e9

    def ours():
        graph = WalkGraph(SearchSpace(made))
        return static_features(graph, build_clusters(graph))

    found, _ = against(
        benchmark,
        ours,
        lambda: upward_rank(made.graph, cost, edge_cost),
    )
    assert found.shape == (num_ops, len(STATIC))


@pytest.mark.parametrize("num_ops", [300, 3_000])
@torch.no_grad()
def test_encoder_against_plain_convolutions(benchmark, num_ops):
    """As many layers as wide of PyG's GCNConv, both ways along the edges: what attention to
    buckets, edge features and the whole graph cost beside it.
    """
    episodes, network = (
        Episodes(SearchSpace(problem(num_ops)), "upward-rank"),
        load_gnn(),
    )
    graph, encoder, inputs = episodes.graph, network.encoder, episodes.inputs
    hidden = network.states([inputs]).shape[1]
    depth = sum(1 for name, _ in encoder.named_modules() if name.endswith(".norm"))
    layers = [GCNConv(hidden, hidden) for _ in range(2 * max(1, depth))]
    source, target, _ = graph.graph.edges
    edges = torch.from_numpy(np.stack([source, target]).astype(np.int64))
    x = torch.zeros(num_ops, hidden)

    @torch.no_grad()
    def plain():
        states = x
        for forth, back in zip(layers[::2], layers[1::2], strict=True):
            states = torch.relu(forth(states, edges) + back(states, edges.flip(0)))
        return states

    found, expected = against(benchmark, lambda: network.states([inputs]), plain)
    assert found.shape == expected.shape
    assert torch.isfinite(found).all()


@torch.no_grad()
def test_decoder_against_torch(benchmark, policy):
    made = Rollouts(SearchSpace(problem(300)), policy)
    aim = made.aims[0]
    arguments = (made.graph.walk(aim.order), made.order(aim.order), made.goal(aim))
    found, expected = against(
        benchmark,
        lambda: made.walk(aim, margin=0.0).unit_device,
        lambda: torch_walk.decode(policy.decoder, *arguments),
    )
    assert len(found) == len(expected)
    assert (found >= 0).all()
