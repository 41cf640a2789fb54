from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch_geometric.utils import scatter

from gnnplace.errors import FormatError, MismatchError
from gnnplace.placers import SearchSpace
from gnnplace.policy.gnn.network import (
    CHECKPOINT,
    NUM_BUCKETS,
    NUM_POOLED,
    Encoder,
    GnnPolicy,
    MessageLayer,
    aggregated,
    read_gnn,
)
from gnnplace.policy.gnn.rollouts import Episodes
from gnnplace.train.data.random_families import random_problem
from tests.policy.gnn.test_decoder import greedily_seen, random_network

torch.set_num_threads(1)


def test_checkpoint_round_trip(tmp_path):
    policy = random_network()
    policy.save_pretrained(tmp_path)
    episodes = Episodes(SearchSpace(random_problem("inception", 1)), policy.order)
    for again in (read_gnn(tmp_path), GnnPolicy.from_pretrained(tmp_path)):
        for mine, other in zip(episodes.network(policy), episodes.network(again), strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"feature_version": "99"}, MismatchError, "feature_version 99"),
        ({"order": "sideways"}, MismatchError, "order sideways"),
        ({"hidden": 8}, MismatchError, "do not fit"),
        ({"memory": 0}, FormatError, "config.json: memory"),
        ({"colour": 1}, FormatError, "config.json: colour: unknown key"),
    ],
)
def test_broken_configurations_are_refused(tmp_path, change, error, message):
    random_network().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(error, match=message):
        read_gnn(tmp_path)


def test_shipped_checkpoint_is_small_and_loads():
    assert (CHECKPOINT / "model.safetensors").stat().st_size < 2e6
    assert isinstance(read_gnn(CHECKPOINT), GnnPolicy)


def test_a_batch_gives_what_single_graphs_give():
    policy = random_network()
    spaces = [SearchSpace(random_problem("nas", seed)) for seed in range(3)]
    inputs = [Episodes(space, policy.order).inputs for space in spaces]
    with torch.no_grad():
        together = policy.states(inputs)
        alone = torch.cat([policy.states([one]) for one in inputs])
    torch.testing.assert_close(together, alone, rtol=1e-3, atol=1e-4)


def test_gradients_reach_the_first_layer_of_the_encoder():
    policy = random_network()
    episodes = Episodes(SearchSpace(random_problem("inception", 1)), policy.order)
    network = episodes.network(policy)
    torch.nn.init.ones_(policy.count.last.weight)
    seen = greedily_seen(episodes, network)
    states = policy.states([episodes.inputs])
    scores = policy.decoder(
        states[torch.from_numpy(seen.step).long()],
        episodes.devices,
        torch.from_numpy(seen.features),
        torch.from_numpy(seen.allowed),
        torch.from_numpy(seen.chosen).long(),
    )
    counts = policy.count(states, len(episodes.devices))
    (torch.log_softmax(scores, dim=-1)[..., 0].mean() + counts[0]).backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


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
