from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from torch_geometric.nn import GATv2Conv, MessagePassing, SAGEConv

from gnnplace.errors import InputError
from gnnplace.placers import SearchSpace
from gnnplace.policy.gnn import pyg
from gnnplace.policy.gnn.encoder import NUM_BUCKETS, Encoder
from gnnplace.policy.gnn.network import load_gnn
from gnnplace.policy.gnn.pyg import (
    BothWays,
    Gine,
    Gps,
    convert_to_message_passing,
    make_graph_batch,
)
from gnnplace.policy.gnn.rollouts import Episodes
from gnnplace.train.data.random_families import random_problem
from tests.policy.gnn.test_encoder import random_graph

torch.set_num_threads(1)


class Fresh(MessagePassing):
    def message(self, x_j):
        return x_j


@pytest.fixture(scope="module")
def inputs():
    """What the shipped encoder takes of four problems."""
    problems = [
        random_problem(family, 1)
        for family in ("nas", "inception", "mixture", "layered")
    ]
    return [Episodes(SearchSpace(one), "upward-rank").inputs for one in problems]


def test_message_passing_gives_what_plain_torch_gives(inputs):
    """The shipped network's states to the last bit, gradients to 1e-6 of the largest."""
    plain = load_gnn().encoder
    assert isinstance(plain, Encoder)
    passing = convert_to_message_passing(plain)
    assert isinstance(passing.layers[0].producers, MessagePassing)
    assert list(passing.state_dict()) == list(plain.state_dict())
    batch = make_graph_batch(inputs)
    states = [encoder(batch) for encoder in (plain, passing)]
    assert torch.equal(*states)
    weight = torch.randn(states[0].shape, generator=torch.Generator().manual_seed(0))
    found = [
        torch.autograd.grad((s * weight).sum(), list(e.parameters()))
        for s, e in zip(states, (plain, passing), strict=True)
    ]
    largest = max(float(one.abs().max()) for one in found[0])
    for mine, other in zip(*found, strict=True):
        assert torch.allclose(mine, other, rtol=0, atol=1e-6 * largest)


@torch.no_grad()
def test_graphs_of_a_batch_do_not_see_each_other():
    encoder, graphs = Encoder(6, 8, 2), [random_graph(n, seed=n) for n in (7, 5, 9)]
    together = encoder(make_graph_batch(graphs))
    alone = torch.cat([encoder(one) for one in graphs])
    assert torch.allclose(together, alone, atol=1e-5)


def test_a_batch_numbers_buckets_and_clusters_over_all_graphs():
    graphs = [random_graph(n, seed=n) for n in (7, 5)]
    batch = make_graph_batch(graphs)
    assert torch.equal(batch.bucket[7:], graphs[1].bucket + NUM_BUCKETS)
    first = graphs[0].clusters.amax(dim=1, keepdim=True) + 1
    assert torch.equal(
        batch.clusters, torch.cat([graphs[0].clusters, graphs[1].clusters + first], 1)
    )
    assert torch.equal(batch.edge_index[:, 20:], graphs[1].edge_index + 7)


@pytest.mark.parametrize(
    ("make", "close"),
    [
        (
            lambda: BothWays(
                6, lambda i, o: GATv2Conv(i, o, edge_dim=1), hidden=8, layers=2
            ),
            1e-5,
        ),
        (lambda: BothWays(6, Gine, hidden=8, layers=2), 1e-5),
        (lambda: BothWays(6, SAGEConv, hidden=8, layers=2, edges=False), 1e-5),
        (lambda: Gps(6, hidden=8), 1e-5),
        # Sums the padding's kernel.
        (lambda: Gps(6, hidden=8, attn_type="performer"), 1e-3),
    ],
)
def test_layers_of_others_see_producers_and_consumers_of_their_graph_alone(make, close):
    """An op's state changes with what is before it and behind it, and with no other graph."""
    torch.manual_seed(0)
    encoder = make().eval()
    chain = random_graph(3)._replace(
        edge_index=torch.tensor([[0, 1], [1, 2]]), edge_attr=torch.ones(2, 1)
    )
    other = random_graph(5, seed=4)
    with torch.no_grad():
        alone, both = (
            encoder(make_graph_batch([chain])),
            encoder(make_graph_batch([chain, other])),
        )
        assert torch.allclose(alone, both[:3], atol=close)
        for end in (0, 2):
            x = chain.x.clone()
            x[end] += 1.0
            assert not torch.allclose(
                encoder(make_graph_batch([chain._replace(x=x)]))[1], alone[1]
            )


def test_full_attention_refuses_what_is_too_large(monkeypatch):
    monkeypatch.setattr(pyg, "MOST_ATTENDED", 8)
    Gps(6, hidden=8)(make_graph_batch([random_graph(8), random_graph(8)]))
    with pytest.raises(
        InputError, match="a graph of 9 ops, full attention takes at most 8"
    ):
        Gps(6, hidden=8)(make_graph_batch([random_graph(9)]))


def test_layers_leave_no_file_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    with pyg.without_generated_files():
        made = Fresh()
    assert "Fresh_propagate" in made.propagate.__module__  # generated code
    assert tempfile.tempdir == str(tmp_path)
    assert not list(Path(tmp_path).iterdir())
