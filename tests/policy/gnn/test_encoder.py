from __future__ import annotations

import pytest
import torch
from torch_geometric.utils import scatter

from gnnplace.policy.gnn.encoder import NUM_BUCKETS, NUM_POOLED, Encoder, MessageLayer, aggregated


def batch(sizes=(7, 5), hidden=6, seed=0):
    """States, edges, their features, buckets, graphs and clusters of a batch of random graphs."""
    generator = torch.Generator().manual_seed(seed)
    n = sum(sizes)
    of = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    ends = torch.randint(0, n, (2, 40), generator=generator)
    edges = ends[:, of[ends[0]] == of[ends[1]]]
    attr = torch.rand(edges.shape[1], 1, generator=generator)
    bucket = torch.randint(0, NUM_BUCKETS, (n,), generator=generator)
    x = torch.randn(n, hidden, generator=generator)
    clusters = 3 * of + torch.randint(0, 3, (NUM_POOLED, n), generator=generator)
    return x, edges, attr, bucket + NUM_BUCKETS * of, of, clusters


@torch.no_grad()
def test_what_is_multiplied_once_a_bucket_is_the_same():
    """The layer as its text says it: one matrix on all five parts side by side."""
    layer = MessageLayer(6)
    x, edges, attr, place, of, clusters = batch()
    y = layer.norm(x)
    pooled = scatter(y, place, dim=0, dim_size=2 * NUM_BUCKETS, reduce="mean")
    whole = scatter(y, of, dim=0, dim_size=2, reduce="mean")
    lanes = pooled.view(2, NUM_BUCKETS, -1).transpose(1, 2)
    along = torch.relu(layer.along(lanes)).transpose(1, 2).reshape(pooled.shape)
    before = layer.producers(y, edges, attr)
    behind = layer.consumers(y, edges.flip(0), attr)
    means = [scatter(y, one, dim=0, dim_size=6, reduce="mean")[one] for one in clusters]
    parts = torch.cat([y, before, behind, along[place], whole[of], *means], dim=1)
    found = layer(x, edges, attr, place, of, clusters)
    assert torch.allclose(found, x + layer.update(parts), atol=1e-5)


@torch.no_grad()
def test_graphs_of_a_batch_do_not_see_each_other():
    encoder = Encoder(6, 8, 2)
    x, edges, attr, place, of, clusters = batch()
    mine = (of == 0).nonzero()[:, 0]
    kept = of[edges[0]] == 0
    own = (place[mine], of[mine], clusters[:, mine])
    alone = encoder(x[mine], edges[:, kept], attr[kept], *own)
    assert torch.allclose(encoder(x, edges, attr, place, of, clusters)[mine], alone, atol=1e-5)


@pytest.mark.parametrize("how", ["mean", "max"])
def test_groups_are_aggregated_as_pyg_does(how):
    """Empty groups and groups of negative numbers included."""
    generator = torch.Generator().manual_seed(1)
    values, index = torch.randn(30, 4, generator=generator), torch.randint(0, 9, (30,))
    index[index == 5] = 6
    expected = scatter(values, index, dim=0, dim_size=12, reduce=how)
    assert torch.allclose(aggregated(values, index, 12, how), expected)
