from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from gnnplace.errors import FormatError, MismatchError
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
    for again in (read_policy(tmp_path), PlacementPolicy.from_pretrained(tmp_path)):
        for name, value in policy.state_dict().items():
            assert torch.equal(again.state_dict()[name], value)


def test_other_features_are_refused(tmp_path):
    trained_like().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"feature_version": "99"}))
    with pytest.raises(MismatchError, match="feature_version 99"):
        read_policy(tmp_path)
    with pytest.raises(MismatchError, match="feature_version 99"):
        PlacementPolicy.from_pretrained(tmp_path)


def test_broken_configurations_are_refused(tmp_path):
    trained_like().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"colour": 1}))
    with pytest.raises(FormatError, match=r"config\.json: colour: unknown key"):
        read_policy(tmp_path)


def test_parameters_of_other_sizes_are_refused(tmp_path):
    trained_like().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({**load_file(path), "decoder": torch.zeros(3)}, path)
    with pytest.raises(MismatchError, match="do not fit"):
        read_policy(tmp_path)


def test_missing_or_broken_parameters_are_refused(tmp_path):
    with pytest.raises(FormatError, match="cannot be read"):
        read_policy(tmp_path / "nowhere")
    trained_like().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(FormatError, match="cannot be read"):
        read_policy(tmp_path)


def test_shipped_checkpoint_is_small_and_loads():
    assert (CHECKPOINT / "model.safetensors").stat().st_size < 2e4
    assert isinstance(read_policy(CHECKPOINT), PlacementPolicy)


def test_the_policy_does_not_import_lightning():
    code = "import sys, gnnplace.policy; print('lightning' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
