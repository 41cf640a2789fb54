from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Batch
from torch_geometric.utils import scatter

from gnnplace.policy.gnn.encoder import (
    NUM_BUCKETS,
    NUM_POOLED,
    Encoder,
    EncoderInputs,
    MessageLayer,
    NullEncoder,
    aggregate_rows,
)

torch.set_num_threads(1)


def random_graph(ops: int, hidden: int = 6, seed: int = 0) -> EncoderInputs:
    generator = torch.Generator().manual_seed(seed)
    clusters = torch.randint(0, 3, (NUM_POOLED, ops), generator=generator)
    return EncoderInputs(
        torch.randn(ops, hidden, generator=generator),
        torch.randint(0, ops, (2, 20), generator=generator),
        torch.rand(20, 1, generator=generator),
        torch.randint(0, NUM_BUCKETS, (ops,), generator=generator),
        torch.unique(clusters, return_inverse=True)[1],
    )


@torch.no_grad()
def test_what_is_multiplied_once_a_bucket_is_the_same():
    """The layer as its text says it: one matrix on all parts side by side."""
    layer, data = MessageLayer(6), random_graph(9)
    y, whole = layer.norm(data.x), torch.zeros(9, dtype=torch.long)
    pooled = scatter(y, data.bucket, dim=0, dim_size=NUM_BUCKETS, reduce="mean")
    along = torch.relu(layer.along(pooled.T[None]))[0].T
    before = layer.producers(y, data.edge_index, data.edge_attr)
    behind = layer.consumers(y, data.edge_index.flip(0), data.edge_attr)
    means = [
        scatter(y, of, dim=0, dim_size=6, reduce="mean")[of] for of in data.clusters
    ]
    mean = scatter(y, whole, dim=0, reduce="mean")[whole]
    parts = torch.cat([y, before, behind, along[data.bucket], mean, *means], dim=1)
    assert torch.allclose(layer(data.x, data), data.x + layer.update(parts), atol=1e-5)


@pytest.mark.parametrize("how", ["mean", "max"])
def test_groups_are_aggregated_as_pyg_does(how):
    """Empty groups and groups of negative numbers included."""
    generator = torch.Generator().manual_seed(1)
    values, index = torch.randn(30, 4, generator=generator), torch.randint(0, 9, (30,))
    index[index == 5] = 6
    expected = scatter(values, index, dim=0, dim_size=12, reduce=how)
    assert torch.allclose(aggregate_rows(values, index, 12, how), expected)


@torch.no_grad()
def test_the_null_encoder_sees_no_graph():
    encoder, data = NullEncoder(6), random_graph(9)
    other = data._replace(
        edge_index=data.edge_index.flip(0), bucket=data.bucket.flip(0)
    )
    assert torch.equal(encoder(data), encoder(other))
    assert not torch.allclose(Encoder(6, 8, 1)(data), Encoder(6, 8, 1)(other))


def test_one_problem_has_the_names_of_a_batch():
    graph = random_graph(4)
    assert graph.num_graphs == 1
    assert graph.batch.tolist() == [0] * 4
    assert {*EncoderInputs._fields, "batch", "num_graphs"} <= {
        *dir(Batch()),
        *EncoderInputs._fields,
    }
