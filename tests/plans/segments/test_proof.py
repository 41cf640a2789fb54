"""Losses that a cut batch keeps, those that it does not, and what plans make of them."""

import pytest
import torch
from torch import nn

from gnnplace.cli.main import run
from gnnplace.errors import InputError
from gnnplace.plans.answers import find_plans, given_plan
from gnnplace.plans.segments.chains import chain_of
from gnnplace.plans.segments.proof import EVEN, shortened
from gnnplace.problem.cluster.presets import preset
from gnnplace.tracing.loading import load

CLUSTER = preset("nvlink-a100-8")


def network():
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))


def chain(loss, **options):
    return chain_of(network(), CLUSTER, torch.zeros(8, 16), loss=loss, **options)


def test_a_mean_may_be_cut():
    found = chain(lambda y: y.square().mean())
    assert (found.mixes, found.notices) == ("", ())


def test_a_mean_over_counts_is_noticed():
    model = "gpt2?layers=3&width=64&heads=4&vocabulary=128&length=32&batch=8"
    found = chain_of(model, CLUSTER)
    assert (found.mixes, found.notices) == ("", (EVEN,))


def pairs(y):
    return (y @ y.T).logsumexp(1).mean()


@pytest.mark.parametrize(
    ("loss", "told"), [(lambda y: y.square().sum(), "sum over the examples"), (pairs, "matmul")]
)
def test_what_is_no_mean_keeps_its_batch(loss, told):
    found = chain(loss)
    assert told in found.mixes
    plan = find_plans(found, CLUSTER, budget=0.0)[0]
    assert plan.microbatches == 1
    assert all(len(stage.devices) == 1 for stage in plan.file.stages)
    assert any("the batch stays whole" in notice for notice in plan.notices)
    with pytest.raises(InputError, match="accept-other-loss"):
        given_plan(found, CLUSTER, "dp=2")


def test_one_may_know_better():
    found = chain(pairs, accept_other_loss=True)
    assert found.mixes == ""
    assert found.notices[0].startswith("accepted although")
    assert given_plan(found, CLUSTER, "dp=2").feasible


def test_lists_of_modules_are_shortened_and_come_back():
    model = load("gpt2?layers=6&width=64&heads=4&vocabulary=128", fake=True).model
    before = list(model.state_dict())
    with shortened(model):
        assert len(model.transformer.h) == 2
    assert list(model.state_dict()) == before


MODULE = """
import torch

def model(batch=8):
    return torch.nn.Linear(16, 16), (torch.zeros(batch, 16),), lambda y: (y @ y.T).amax(1).mean()
"""


def test_a_loss_over_pairs_is_refused_on_the_command_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "pairing.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    arguments = ["plan", "pairing:model", "--cluster", "nvlink-a100-8", "--given", "dp=2"]
    assert run(arguments) == 2
    assert "the batch cannot be cut" in capsys.readouterr().err
    assert run([*arguments, "--accept-other-loss"]) == 0
