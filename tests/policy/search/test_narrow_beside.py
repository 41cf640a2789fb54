from __future__ import annotations

import numpy as np
import pytest
import torch

from gnnplace.placers import SearchSpace
from gnnplace.placers.search.narrow_problem import searched_alone
from gnnplace.policy.learned import LearnedPlacer
from gnnplace.policy.search.narrow_beside import SHARE, NarrowBeside
from gnnplace.train.data.captured import captured_problem, shipped_store
from tests.policy.problems import trained_like

torch.set_num_threads(1)
LATER = 1e12  # of any clock


def made(memory: str, on_groups: bool = True):
    """A captured problem of a thousand ops, and what is searched beside them."""
    problem = captured_problem(
        shipped_store(), "two-tower-deep", 4008, groups=None, microbatches=(4,), memory=(memory,)
    )
    placer, space = LearnedPlacer(trained_like(), on_groups=on_groups), SearchSpace(problem)
    assert problem.num_ops >= 1_000
    assert not searched_alone(space)
    return placer, space, placer.beside(space, np.random.default_rng(0))


def test_groups_have_their_share_and_what_they_find_counts():
    placer, space, groups = made("tight")
    assert isinstance(groups, NarrowBeside)
    assert groups.note == ""
    local = placer.first_choice(space, 0.0).search(np.random.default_rng(1))
    before = np.inf
    for _ in range(3):
        local.cycle(LATER)
        groups.turn(local, LATER)
        state, search = local.state, groups.groups
        assert search.chunks.ops >= SHARE * local.ops
        assert state.score[1] <= min(before, search.expansion.score)
        before = float(state.score[1])
        assert space.score(state.best_device, state.best_order) == pytest.approx(before)
    assert "narrow groups" in groups.note


def test_no_turn_after_the_deadline():
    placer, space, groups = made("tight")
    local = placer.first_choice(space, 0.0).search(np.random.default_rng(1))
    groups.turn(local, 1e-9)
    assert groups.groups is None


def test_ample_memory_and_wholes_have_none():
    assert not isinstance(made("ample")[2], NarrowBeside)
    assert not isinstance(made("tight", on_groups=False)[2], NarrowBeside)
