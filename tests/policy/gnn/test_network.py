from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from gnnplace.errors import FormatError, InputError, MismatchError
from gnnplace.placers import SearchSpace
from gnnplace.policy.gnn.network import GNN_CHECKPOINT, GnnPolicy, read_gnn
from gnnplace.policy.gnn.rollouts import Episodes
from gnnplace.train.data.random_families import random_problem
from tests.policy.gnn.test_decoder import greedily_seen, random_network

torch.set_num_threads(1)


def test_checkpoint_round_trip(tmp_path):
    policy = random_network()
    policy.save_pretrained(tmp_path)
    episodes = Episodes(SearchSpace(random_problem("inception", 1)), policy.order)
    for again in (read_gnn(tmp_path), GnnPolicy.from_pretrained(tmp_path)):
        for mine, other in zip(
            episodes.network(policy), episodes.network(again), strict=True
        ):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"feature_version": "99"}, MismatchError, "feature_version 99"),
        (
            {"order": "sideways"},
            InputError,
            "order 'sideways': unknown; orders: coordinate",
        ),
        ({"order": "posix:getcwd"}, InputError, "code outside of this folder"),
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
    assert (GNN_CHECKPOINT / "model.safetensors").stat().st_size < 2e6
    assert isinstance(read_gnn(GNN_CHECKPOINT), GnnPolicy)


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
        torch.from_numpy(seen.device).long(),
    )
    counts = policy.count(states, len(episodes.devices))
    (torch.log_softmax(scores, dim=-1)[..., 0].mean() + counts[0]).backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
