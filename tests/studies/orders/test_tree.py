from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from gnnplace.errors import FormatError
from gnnplace.studies.orders.tree import Tree, best_orders, fit, read_tree, thresholds, write_tree

ORDERS = ("a", "b", "c")


def two_groups(rng, count=60):
    """Order a is right where x <= 3, order b elsewhere; y says nothing."""
    features = [{"x": float(rng.integers(7)), "y": float(rng.random())} for _ in range(count)]
    losses = np.array([[0.0, 0.1, 0.2] if f["x"] <= 3 else [0.1, 0.0, 0.2] for f in features])
    return features, losses


def test_a_tree_finds_the_feature_and_the_threshold():
    features, losses = two_groups(np.random.default_rng(0))
    tree = fit(features, losses, ORDERS, least=5)
    assert tree.feature == "x"
    assert 3 < tree.threshold < 4
    assert [tree.choose({"x": x, "y": 0.0}) for x in (3.0, 4.0)] == [("a",), ("b",)]
    assert "x <= 3.5:" in tree.lines()[0]


def test_there_is_no_split_without_worth_nor_below_the_least():
    features, losses = two_groups(np.random.default_rng(1))
    assert fit(features, np.full_like(losses, 0.1), ORDERS).feature == ""
    assert fit(features, losses, ORDERS, least=len(losses)).feature == ""
    assert fit(features, losses, ORDERS, depth=0).orders in (("a",), ("b",))


def test_a_leaf_of_several_orders_starts_with_the_best_and_adds_the_best_beside_it():
    rng = np.random.default_rng(2)
    for _ in range(20):
        losses = rng.random((30, 5))
        one, total = best_orders(losses, 1)
        assert one == [losses.sum(axis=0).argmin()]
        assert total == pytest.approx(losses.sum(axis=0).min())
        three, least = best_orders(losses, 3)
        assert three[0] == one[0]
        assert least == pytest.approx(losses[:, three].min(axis=1).sum())
        every = [losses[:, list(s)].min(axis=1).sum() for s in combinations(range(5), 3)]
        assert min(every) <= least <= sorted(every)[len(every) // 2]
    assert best_orders(losses, 9)[0] != []


def test_thresholds_part_values_and_are_few():
    assert thresholds(np.array([1.0, 1.0])).size == 0
    assert thresholds(np.array([2.0, 1.0])).tolist() == [1.5]
    many = thresholds(np.random.default_rng(0).random(1000))
    assert len(many) <= 24
    assert (np.diff(many) > 0).all()


def test_a_tree_comes_back_from_its_file(tmp_path):
    features, losses = two_groups(np.random.default_rng(3))
    tree = fit(features, losses, ORDERS, least=5, count=2)
    write_tree(tmp_path / "orders.json", tree, "a test")
    assert read_tree(tmp_path / "orders.json") == tree


@pytest.mark.parametrize("text", ["[]", '{"format": "gnnplace-orders", "version": 2}'])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "orders.json").write_text(text)
    with pytest.raises(FormatError, match="not a gnnplace-orders file of version 1"):
        read_tree(tmp_path / "orders.json")


def test_a_half_tree_is_refused(tmp_path):
    text = '{"format": "gnnplace-orders", "version": 1, "tree": {"orders": ["a"], "problems": 1,'
    (tmp_path / "orders.json").write_text(text + '"feature": "x", "threshold": 1}}')
    with pytest.raises(FormatError, match="tree: 'below' is missing"):
        read_tree(tmp_path / "orders.json")
    assert Tree(("a",), 1).choose({}) == ("a",)
