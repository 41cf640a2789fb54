"""Presets and published figures."""

from __future__ import annotations

import pytest

from gnnplace import zoo
from gnnplace.plans.hybrid.presets import FAMILIES, PRESETS, preset_of
from gnnplace.plans.hybrid.published import PUBLISHED, published_gain


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("inception?batch=4", "images"),
        ("zoo:gnmt", "translation"),
        ("rnn_lm", "language"),
        ("mine:model", "any"),
    ],
)
def test_models_have_their_family(model: str, family: str) -> None:
    """By name, whatever stands around it."""
    assert preset_of(model) is PRESETS[family]


def test_every_preset_says_where_it_comes_from() -> None:
    """A source, or "assumed"."""
    for preset in PRESETS.values():
        assert preset.examples_source
        assert "assumed" in preset.convergence.source


def test_published_gains_stand_beside_models_that_exist() -> None:
    """Three, as the abstract has them."""
    assert {row.model: row.gain for row in PUBLISHED} == {
        "Inception-V3": 0.265,
        "GNMT": 0.08,
        "BigLSTM": 0.22,
    }
    assert all(any(name in zoo.names() for name in row.ours) for row in PUBLISHED)
    assert published_gain("inception?batch=4") is PUBLISHED[0]
    assert published_gain("mlp") is None
    assert set(FAMILIES) < set(PRESETS)
