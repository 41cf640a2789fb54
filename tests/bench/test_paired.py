from __future__ import annotations

import numpy as np
import pytest

from gnnplace.bench.paired import BETTER, NOISE, WORSE, pairings
from tests.bench.rows import row


def test_seeds_are_paired_and_the_rest_meets_the_mean():
    rows = [row("a", "annealing", t, seed=i) for i, t in enumerate((1.0, 4.0))]
    rows += [row("a", "mine", t, seed=i) for i, t in enumerate((2.0, 8.0))]
    rows += [row("a", "once", 2.0, seed=9)]
    found = {pairing.placer: pairing for pairing in pairings(rows)}
    assert found["mine"].ratio.mean == pytest.approx(2.0)
    assert found["mine"].ratio.low == found["mine"].ratio.high == pytest.approx(2.0)
    assert found["once"].ratio.mean == pytest.approx(1.0)


def test_only_the_same_budget_and_the_same_problem_are_compared():
    rows = [row("a", "annealing", 1.0, budget=1.0), row("b", "annealing", 1.0, budget=1.0)]
    rows += [row("a", "mine", 0.5, budget=1.0), row("c", "mine", 9.0, budget=1.0)]
    rows += [row("b", "mine", None, budget=1.0), row("a", "mine", 9.0, budget=2.0)]
    rows += [row("a", "mine", 9.0, budget=1.0, digest="changed")]
    (found,) = pairings(rows)
    assert (found.budget, found.ratio.mean, found.ratio.count) == (1.0, 0.5, 1)
    assert found.unpaired == 3  # b, c and the changed a


def test_the_verdict_is_what_the_interval_says():
    rng = np.random.default_rng(0)
    rows = []
    for i in range(40):
        rows.append(row(str(i), "annealing", 1.0))
        rows.append(row(str(i), "same", float(np.exp(rng.normal(0, 0.3)))))
        rows.append(row(str(i), "good", float(np.exp(rng.normal(-0.5, 0.3)))))
        rows.append(row(str(i), "bad", float(np.exp(rng.normal(0.5, 0.3)))))
    verdicts = {found.placer: found.verdict for found in pairings(rows)}
    assert verdicts == {"same": NOISE, "good": BETTER, "bad": WORSE}
    assert [found.placer for found in pairings(rows)] == ["good", "same", "bad"]
    assert pairings(rows, rival="nobody") == []
