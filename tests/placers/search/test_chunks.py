from __future__ import annotations

import numpy as np
import pytest

from gnnplace.graph.jit import kernel
from gnnplace.placers.search.chunks import (
    ALONE,
    ORDER,
    PRIOR,
    SLIDE,
    SWAP_DEVICES,
    Chunks,
    change,
    choose_kind,
    same,
)
from gnnplace.placers.search.moves import seed_kernel


def chunks(useful=None):
    """Twelve segments in three chunks on three devices, and two that stand alone."""
    unit_device = np.array([0] * 4 + [1] * 4 + [2] * 4 + [0, 1], np.int32)
    nothing = np.zeros(0)
    return Chunks(
        np.arange(12, dtype=np.int32),
        np.array([12, 13], np.int32),
        np.ones((14, 3)),
        unit_device,
        nothing,
        np.ones(1),
        unit_device.copy(),
        nothing,
        np.zeros(0, np.int32),
        np.ones(1),
        np.array(PRIOR),
        np.full(len(PRIOR), 0.1) if useful is None else useful,
    )


@kernel
def changed(state, kind):
    tried = state.unit_device.copy()
    change(state, tried, kind)
    return tried


@kernel
def kinds(state, count):
    drawn = np.zeros(len(state.prior))
    for _ in range(count):
        drawn[choose_kind(state)] += 1
    return drawn / count


@pytest.mark.parametrize("kind", range(len(PRIOR)))
def test_moves_change_what_they_say(kind):
    state, seen = chunks(), set()
    seed_kernel(3)
    for _ in range(200):
        tried = changed(state, kind)
        assert set(tried.tolist()) <= {0, 1, 2}
        alone = (tried[12:] != state.unit_device[12:]).any()
        assert not alone or kind in (ALONE, SWAP_DEVICES)
        seen.add(tuple(tried.tolist()))
    assert (len(seen) == 1) == (kind == ORDER)


def test_kinds_of_use_are_drawn_more_often_and_none_is_forgotten():
    seed_kernel(0)
    np.testing.assert_allclose(kinds(chunks(), 40_000), PRIOR, atol=0.02)
    useful = np.full(len(PRIOR), 1e-6)
    useful[SLIDE] = 0.3
    share = kinds(chunks(useful), 40_000)
    assert share[SLIDE] > 0.6
    assert (share > 0.2 * np.array(PRIOR)).all()


def test_arrays_are_compared_to_their_end():
    one = np.array([1, 2, 3], np.int32)
    assert same(one, one.copy())
    assert not same(one, np.array([1, 2, 4], np.int32))
