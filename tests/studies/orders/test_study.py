from __future__ import annotations

import json

import pytest

from benchmarks.studies.orders import study as orders
from benchmarks.studies.orders.decoding import OneOrder, start_weights
from benchmarks.studies.orders.problems import families
from benchmarks.studies.orders.study import FILE, UNTRAINED, Plan, Study
from gnnplace.errors import InputError, MismatchError
from gnnplace.placers import SearchSpace
from gnnplace.policy.learned import load_policy
from tests.bench.small_problems import drawn, few

PLAN = Plan(("upward-rank", "learned"), (0, 1), 2, ("seen",), 8)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(orders, "study_problems", few)
    monkeypatch.setattr(
        orders, "training_problems", lambda seed, count, family: drawn(seed, count)
    )


def test_every_cell_is_one_row_and_is_not_run_again(tmp_path):
    Study(tmp_path, lambda line: None).run(PLAN)
    text = (tmp_path / FILE).read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert len(rows) == 1 + 2 + 2 * 2 * 2  # problems, untrained, trained and evaluated
    assert all(row["commit"] and row["versions"] and row["machine"] for row in rows)
    Study(tmp_path, lambda line: None).run(PLAN)
    assert (tmp_path / FILE).read_text() == text


def test_a_row_says_what_decodes_take(tmp_path):
    study = Study(tmp_path, lambda line: None)
    study.run(PLAN)
    policy, problems = load_policy(), few("seen")
    row = study.find("seen", "upward-rank", UNTRAINED, 0)
    weights = start_weights("upward-rank", policy)
    for i, entry in enumerate(problems):
        one = OneOrder(SearchSpace(entry.problem), policy)
        assert row["one"][i] == pytest.approx(one.one("upward-rank", weights), rel=1e-5)
        assert row["best_size"][i] <= row["one"][i]
    described = study.find("seen", "", 0, 0)["problems"]
    assert [entry["family"] for entry in described] == [
        entry.family for entry in problems
    ]


def test_after_a_kill_it_goes_on_with_the_same_figures(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    Study(whole, lambda line: None).run(PLAN)
    text = (whole / FILE).read_text()
    cut.mkdir()
    (cut / FILE).write_text(text[: len(text) // 2])  # in the middle of a row
    Study(cut, lambda line: None).run(PLAN)

    def figures(folder):
        rows = [json.loads(line) for line in (folder / FILE).read_text().splitlines()]
        keys = ("problem", "placer", "seed", "budget", "weights", "one", "best_size")
        return sorted(json.dumps([row.get(key) for key in keys]) for row in rows)

    assert figures(cut) == figures(whole)


def test_weights_of_other_features_are_refused(tmp_path):
    Study(tmp_path, lambda line: None).run(PLAN)
    text = (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text(
        text.replace('"feature_version": "', '"feature_version": "9')
    )
    more = Plan(
        PLAN.orders, PLAN.seeds, PLAN.generations, ("seen", "held-out"), PLAN.pool
    )
    with pytest.raises(MismatchError, match="weights of feature_version 9"):
        Study(tmp_path, lambda line: None).run(more)


def test_mistakes_are_named(tmp_path):
    with pytest.raises(
        InputError, match="order 'sideways': unknown; orders: topological"
    ):
        Plan(("sideways",))
    with pytest.raises(InputError, match="give no less"):
        Plan(generations=0)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="study folder"):
        Study(tmp_path / "file", lambda line: None)


def test_a_training_on_one_family_is_used_for_that_family(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        orders,
        "training_problems",
        lambda seed, count, family: asked.append((count, family)) or drawn(seed, 8),
    )
    study = Study(tmp_path, lambda line: None)
    study.run(Plan(("upward-rank",), (0,), 2, ("own",), 40))
    assert [name for _, name in asked] == list(families("own"))
    assert {count for count, _ in asked} == {12}
    for name in families("own"):
        assert study.find(f"training {name}", "upward-rank", 0, 1) is not None
    assert len(study.find("own", "upward-rank", 0, 1)["one"]) == 4
