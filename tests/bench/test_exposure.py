"""What placers have seen follows from the cards of their checkpoints, and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.cards import stages
from benchmarks.derive import derived, suites
from gnnplace.bench.exposure import find_block, find_row_family, find_training
from gnnplace.bench.rows import read_rows
from gnnplace.policy import Exhibit, Exposure, TrainingCard, read_card, write_card
from gnnplace.policy.gnn.network import GNN_CHECKPOINT as NETWORK

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def card(**exposure):
    return TrainingCard(
        parameters=7, hours=0.5, trained=Exposure(**exposure), validated=Exposure()
    )


@pytest.mark.parametrize(
    ("exposure", "how"),
    [
        ({"families": ["unet"]}, "trained on family unet"),
        ({"graphs": {"abc": "unet-small"}}, "trained on graph unet-small"),
        ({"problems": {"1:d": "mine.json"}}, "trained on problem mine.json"),
        ({"families": ["random:unet"]}, ""),
        ({}, ""),
    ],
)
def test_a_problem_is_seen_by_its_digest_its_graph_or_its_family(
    exposure, how, tmp_path
):
    write_card(tmp_path, card(**exposure))
    columns = find_training(f"gnn?checkpoint={tmp_path}").make_seen_columns(
        Exhibit("1:d", "abc", "unet")
    )
    assert (columns["seen"], columns["seen_how"]) == (bool(how), how)
    find_training.cache_clear()


def test_weights_without_a_card_have_seen_nobody_knows_what(tmp_path):
    columns = find_training(f"learned?checkpoint={tmp_path}").make_seen_columns(
        Exhibit("1:d")
    )
    assert columns == {"seen": None, "seen_how": "undeclared", "seen_block": None}
    assert find_training("heft").make_seen_columns(Exhibit("1:d"))["seen"] is False
    assert find_training("heft").columns()["parameters"] == 0


class Foreign:
    """A placer's class of somebody else's, with the folder of a card."""

    training_card: str | None = None


def test_a_class_of_ones_own_says_what_it_was_trained_on(tmp_path, monkeypatch):
    name = f"{__name__}:Foreign"
    monkeypatch.setattr(
        "gnnplace.bench.exposure.find_placer", lambda _: (ForeignRow, {})
    )
    assert find_training.__wrapped__(name).columns()["trained_on"] == []
    write_card(tmp_path, card(families=["bert"]))
    monkeypatch.setattr(Foreign, "training_card", str(tmp_path))
    assert find_training.__wrapped__(name).columns()["trained_on"] == ["bert"]
    monkeypatch.delattr(Foreign, "training_card")
    assert find_training.__wrapped__(name).columns()["trained_on"] == "undeclared"


class ForeignRow:
    """The row of the class above."""

    @staticmethod
    def maker():
        return Foreign


def test_a_random_family_is_not_the_real_one_of_its_name():
    assert find_row_family("family=inception seed=1", "inception") == "random:inception"
    assert (
        find_row_family("dataset=store graph=inception-deep", "inception")
        == "inception"
    )
    assert (
        find_row_family("model=hf:bert-base-uncased?batch=16", "hf:bert-base-uncased")
        == "bert"
    )
    assert find_row_family("model=resnet50?batch=32", "resnet50") == "resnet"


def test_encoders_of_transformers_are_one_block_by_structure():
    assert (
        len({find_block(family) for family in ("bert", "electra", "mpnet", "vit")}) == 1
    )
    assert find_block("bert") != find_block("seq2seq")
    columns = find_training("learned").make_seen_columns(Exhibit("1:d", "", "electra"))
    assert (columns["seen"], columns["seen_block"]) == (
        False,
        True,
    )  # it learned from ViT


@pytest.mark.parametrize("suite", ["smoke", "scale"])
def test_committed_rows_say_what_follows_from_the_cards(suite):
    rows = read_rows(RESULTS / suite / f"{suite}.jsonl")
    assert json.dumps(derived(rows, suites())) == json.dumps(rows)


def test_the_card_of_the_network_has_what_its_stages_learned_from():
    card = read_card(NETWORK)
    assert card is not None
    assert {"densenet", "unet", "rnn_lm", "wired"} <= set(card.trained.families)
    assert "nasnet" in card.validated.families
    assert not {"fractal", "bert", "gnmt"} & set(card.trained.families)
    assert [stage["seed"] for stage in stages()[1:]] == [1, 1, 2, 3, 4]
