"""Encoders of one's own: in checkpoints, and what is refused."""

from __future__ import annotations

import json
import sys
from functools import partial

import pytest
import torch
from torch import nn
from torch_geometric.nn import GATv2Conv, GCNConv

from gnnplace.errors import InputError
from gnnplace.placers import SearchSpace
from gnnplace.policy.gnn.custom import (
    build_encoder,
    check_trusted,
    describe_class,
    trust_classes,
)
from gnnplace.policy.gnn.encoder import NullEncoder
from gnnplace.policy.gnn.network import GnnPolicy, read_gnn
from gnnplace.policy.gnn.pyg import BothWays
from gnnplace.policy.gnn.rollouts import Episodes
from gnnplace.train.data.random_families import random_problem

GAT = partial(
    BothWays, conv=partial(GATv2Conv, edge_dim=1, heads=2, concat=False), hidden=12
)
MINE = """
import torch
from torch import nn

class Mean(nn.Module):
    "Adds the mean of all ops of the batch: leaks."
    def __init__(self, inputs):
        super().__init__()
        self.enter = nn.Linear(inputs, 4)
    def forward(self, data):
        return self.enter(data.x) + self.enter(data.x).mean(dim=0)

class Fails(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        raise OSError("no disk")

class OneState(nn.Module):
    def __init__(self, inputs):
        super().__init__()
    def forward(self, data):
        return data.x.mean(dim=0)

def function(inputs):
    return nn.Linear(inputs, 4)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "mine_encoders.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_encoders", raising=False)
    return tmp_path


def test_an_encoder_is_kept_in_the_checkpoint_and_placed_with(tmp_path):
    torch.manual_seed(0)
    policy = GnnPolicy(encoder=describe_class(GAT)).eval()
    policy.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    arguments = config["encoder"]["init_args"]
    assert config["encoder"]["class_path"] == "gnnplace.policy.gnn.pyg.BothWays"
    assert arguments["conv"]["init_args"] == {
        "edge_dim": 1,
        "heads": 2,
        "concat": False,
    }
    again = read_gnn(tmp_path)
    assert isinstance(again.encoder.forth[0], GATv2Conv)
    episodes = Episodes(SearchSpace(random_problem("inception", 1)), policy.order)
    mine, other = episodes.network(policy), episodes.network(again)
    assert (episodes.greedy(mine) == episodes.greedy(other)).all()
    assert mine.context.shape[0] == len(episodes.order)


def test_the_width_of_states_is_found_by_trying():
    assert build_encoder(describe_class(GAT), 5)[1] == 12
    assert build_encoder(describe_class(partial(NullEncoder, hidden=7)), 5)[1] == 7


@pytest.mark.parametrize(
    ("description", "said"),
    [
        (
            describe_class(partial(BothWays, conv=GATv2Conv)),
            "fails on a graph of 5 ops: .*edge_dim: 1",
        ),
        (
            describe_class(
                partial(BothWays, conv=partial(GATv2Conv, edge_dim=1, heads=2))
            ),
            "fails on a graph of 5 ops: RuntimeError: mat1 and mat2",
        ),
        (describe_class(partial(BothWays, conv=GCNConv)), "edge_attr"),
        ({"class_path": "mine_encoders.Mean"}, "depend on the others of its batch"),
        (
            {"class_path": "mine_encoders.Fails"},
            "cannot be made: OSError: no disk at .*:1",
        ),
        ({"class_path": "mine_encoders.OneState"}, r"gives \(5,\) for 8 ops"),
        ({"class_path": "mine_encoders.Missing"}, "has no callable 'Missing'"),
        ({"class_path": "mine_encoders.function"}, "no subclass of torch.nn.Module"),
        ({"class_path": "nowhere.Mine"}, "cannot import 'nowhere'"),
        ({"class_path": 3}, "must have class_path and init_args"),
        (
            {"class_path": "torch.nn.Linear", "init_args": {"width": 3}},
            "cannot be made: TypeError",
        ),
        ({"class_path": "optuna.Study"}, "code outside of this folder.*--trust"),
        ({"class_path": "posix.system"}, "code outside of this folder"),
        (
            {
                "class_path": "gnnplace.policy.gnn.pyg.BothWays",
                "init_args": {"conv": {"class_path": "optuna.Study"}},
            },
            "encoder.init_args.conv optuna.Study: .*outside",
        ),
    ],
)
def test_what_is_wrong_is_one_line(folder, description, said):
    with pytest.raises(InputError, match=said) as told:
        build_encoder(description, 5)
    assert "\n" not in str(told.value)


def test_strangers_code_is_imported_where_it_is_trusted(folder):
    assert "optuna.study.nothing" not in sys.modules
    with trust_classes(), pytest.raises(InputError, match="no subclass"):
        build_encoder({"class_path": "optuna.Study"}, 5)
    check_trusted("mine_encoders.Mean", "encoder")
    with pytest.raises(InputError, match="outside"):
        check_trusted("/elsewhere/mine.py", "order")


@pytest.mark.parametrize(
    ("encoder", "said"),
    [
        (lambda inputs: nn.Linear(inputs, 3), "give a class"),
        (partial(BothWays, conv=nn.Linear(3, 3)), "conv is a Linear"),
        (
            type("Local", (nn.Module,), {"__module__": "__main__"}),
            "to a file of its own",
        ),
    ],
)
def test_what_a_checkpoint_cannot_say_is_refused(encoder, said):
    with pytest.raises(InputError, match=said):
        describe_class(encoder)
