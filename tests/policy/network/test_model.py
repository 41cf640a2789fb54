from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from gnnplace.data.random_families import random_problem
from gnnplace.errors import FormatError, MismatchError
from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.policy.network.model import CHECKPOINT, PlacementPolicy, read_policy
from tests.policy.problems import trained_like

torch.set_num_threads(1)


def test_checkpoint_round_trip(tmp_path):
    policy = trained_like()
    policy.save_pretrained(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    graph = WalkGraph(SearchSpace(random_problem("inception", 1)))
    for again in (read_policy(tmp_path), PlacementPolicy.from_pretrained(tmp_path)):
        np.testing.assert_array_equal(again.embed(graph)[0], policy.embed(graph)[0])
        assert torch.equal(again.decoder.last, policy.decoder.last)


def test_other_features_are_refused(tmp_path):
    trained_like().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"feature_version": "99"}))
    with pytest.raises(MismatchError, match="feature_version 99"):
        read_policy(tmp_path)
    with pytest.raises(MismatchError, match="feature_version 99"):
        PlacementPolicy.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"hidden": 8}, MismatchError, "do not fit"),
        ({"hidden": -1}, FormatError, "config.json: hidden"),
        ({"colour": 1}, FormatError, "config.json: colour: unknown key"),
    ],
)
def test_broken_configurations_are_refused(tmp_path, change, error, message):
    trained_like().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(error, match=message):
        read_policy(tmp_path)


def test_missing_or_broken_parameters_are_refused(tmp_path):
    with pytest.raises(FormatError, match="cannot be read"):
        read_policy(tmp_path / "nowhere")
    trained_like().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(FormatError, match="cannot be read"):
        read_policy(tmp_path)


def test_shipped_checkpoint_is_small_and_loads():
    assert (CHECKPOINT / "model.safetensors").stat().st_size < 2e6
    assert isinstance(read_policy(CHECKPOINT), PlacementPolicy)


def test_a_batch_gives_what_single_graphs_give():
    policy = trained_like()
    graphs = [WalkGraph(SearchSpace(random_problem("nas", seed))) for seed in range(3)]
    with torch.no_grad():
        together = policy.states(graphs)
    alone = np.concatenate([policy.embed(graph) for graph in graphs])
    np.testing.assert_allclose(together.numpy(), alone, rtol=1e-3, atol=1e-4)


def test_the_policy_does_not_import_lightning():
    code = "import sys, gnnplace.policy; print('lightning' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
