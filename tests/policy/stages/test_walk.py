from __future__ import annotations

import numpy as np
import pytest

from gnnplace.policy.stages.line import line_of
from gnnplace.policy.stages.walk import CANDIDATE_FEATURES, Style, Walk, style_of
from tests.policy.stages.problems import chain, grouped


@pytest.fixture(scope="module")
def line():
    return line_of(*grouped(chain(num_devices=4)))


def test_styles():
    assert style_of(np.array([2, 2, 0, 0, 2, 1], np.int32)) == Style(3, 4)


def test_devices_that_are_alike_have_equal_features(line):
    """Before anything is placed, three equal devices cannot be told apart; the slow one can."""
    seen = Walk(line, [Style(4, 4)]).candidates()[0]
    assert seen.shape == (4, CANDIDATE_FEATURES)
    assert np.isfinite(seen).all()
    assert (seen[0] == seen[1]).all()
    assert (seen[0] == seen[2]).all()
    assert (seen[0] != seen[3]).any()


def test_walks_do_not_depend_on_each_other_nor_on_names(line):
    rng = np.random.default_rng(0)
    devices = rng.integers(0, 3, (2, len(line.share)))
    swap = np.array([1, 0, 2, 3])
    together = Walk(line, [Style(3, 6)] * 2)
    alone, renamed = Walk(line, [Style(3, 6)]), Walk(line, [Style(3, 6)])
    for one, two in devices.T:
        seen = together.candidates()
        assert seen[1] == pytest.approx(alone.candidates()[0])
        assert seen[1][swap] == pytest.approx(renamed.candidates()[0], abs=1e-6)
        together.take(np.array([one, two]))
        alone.take(np.array([two]))
        renamed.take(np.array([swap[two]]))


def test_what_a_walk_remembers(line):
    walk = Walk(line, [Style(2, 3)])
    for device in (0, 0, 1, 0):
        walk.take(np.array([device]))
    assert walk.begun[0] == 3
    assert walk.used[0] == 2
    assert walk.chunks[0].tolist() == [2, 1, 0, 0]
    assert walk.load[0, 0] == pytest.approx(line.work[[0, 1, 3], 0].sum())
    assert walk.last_length[0, 0] == pytest.approx(line.share[:2].sum())
    assert walk.previous[0] == 1


def test_what_a_device_would_be(line):
    """Features of two devices after a walk, by their definitions."""
    walk, work, share = Walk(line, [Style(2, 3)]), line.work, line.share
    for device in (0, 0, 1):
        walk.take(np.array([device]))
    seen = walk.candidates()[0]
    load, done = work[:2, 0].sum() * 2 / 4, share[:3].sum()
    sent = np.log1p(10 * line.pace[1, 0] * line.crossing[3])
    back = [0, 1, load, load - done, 1 / 1.5, sent, 1 / 2, 0, 1, 1, share[:2].sum() * 4, 0]
    back += [share[2] * 3, line.speed[0], 1 / 3 - (1 - done), 0, 0, work[3, 0] * len(share) / 4]
    assert seen[0] == pytest.approx([*back, share[:2].sum() * 3, 0], abs=1e-6)
    new = [0, 0, 0, -done, 0, sent, 0, 0, 0, 0, 0, 0, share[2] * 3, line.speed[2]]
    new += [1 / 3 - (1 - done), 0, 1, work[3, 2] * len(share) / 4, share[:2].sum() * 3, -1]
    assert seen[2] == pytest.approx(new, abs=1e-6)
