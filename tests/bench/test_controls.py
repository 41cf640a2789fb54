"""The learned placer beside its controls: paired by problem, bootstrapped over families."""

from __future__ import annotations

import pytest

from gnnplace.bench.standings import merge_best_known
from gnnplace.bench.tables import controls, tables
from tests.bench.rows import row


def rows_of(ratios):
    """Rows of `learned` and its controls on two problems of each family; seeds differ a little."""
    rows = []
    for family, ratio in ratios.items():
        for i in range(2):
            more = {"family": family, "budget": 1.0}
            problem = f"{family}-{i}"
            for seed in (0, 1):
                rows.append(row(problem, "learned", ratio, seed=seed, **more))
                rows.append(row(problem, "learned-untrained", 1.0, seed=seed, **more))
            rows.append(row(problem, "gnn", 2.0, family=family))
    return rows


def test_every_family_counts_alike_and_is_drawn_whole():
    rows = rows_of({"a": 0.9, "b": 1.0, "c": 1.1})
    rows += [row(f"a-{i}", "learned", 0.9, family="a", budget=1.0) for i in range(2, 9)]
    rows += [
        row(f"a-{i}", "learned-untrained", 1.0, family="a", budget=1.0)
        for i in range(2, 9)
    ]
    network, untrained = controls(rows)
    assert (untrained.control, untrained.budget, untrained.control_budget) == (
        "learned-untrained",
        1.0,
        1.0,
    )
    assert untrained.families == 3
    assert untrained.ratio.mean == pytest.approx((0.9 * 1.0 * 1.1) ** (1 / 3))
    assert untrained.ratio.low < 0.95 < 1.05 < untrained.ratio.high
    assert (network.control, network.control_budget) == ("gnn", 0.0)
    assert network.ratio.mean == pytest.approx(untrained.ratio.mean / 2)


def test_a_summary_that_shows_the_learned_placer_shows_its_controls():
    rows = rows_of({"a": 0.9, "b": 1.0})
    titles = [
        grid.title
        for grid in tables(rows, merge_best_known({}, rows), "annealing", "title")
    ]
    assert "Beside the controls, paired and bootstrapped over families" in titles
    others = [r for r in rows if r["placer"] == "learned"]
    titles = [
        grid.title
        for grid in tables(others, merge_best_known({}, rows), "annealing", "title")
    ]
    assert "Beside the controls, paired and bootstrapped over families" not in titles


def test_other_budgets_are_no_pairs():
    rows = [
        row("p", "learned", 1.0, budget=1.0),
        row("p", "learned-untrained", 1.0, budget=2.0),
    ]
    assert controls(rows) == []
