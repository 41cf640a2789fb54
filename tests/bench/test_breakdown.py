from __future__ import annotations

import pytest

from gnnplace.bench.best_known import merged
from gnnplace.bench.breakdown import breakdown
from tests.bench.rows import row


def test_every_family_has_its_own_mean_against_the_best_of_all():
    rows = [
        row("a", "mine", 2.0, family="cnn"),
        row("a", "best", 1.0, family="cnn"),
        row("b", "mine", 8.0, family="cnn"),
        row("b", "best", 1.0, family="cnn"),
        row("c", "mine", 3.0, family="rnn"),
        row("d", "mine", None, family="rnn"),
        row("old", "mine", 7.0),
    ]
    found = breakdown(rows, merged({}, rows), "family")
    assert list(found) == ["cnn", "rnn"]
    assert found["cnn"]["mine", 0.0].mean == pytest.approx(4.0)
    assert found["cnn"]["mine", 0.0].count == 2
    assert found["rnn"]["mine", 0.0].mean == pytest.approx(1.0)
    assert breakdown(rows, merged({}, rows), "cluster") == {}
