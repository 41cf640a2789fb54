from __future__ import annotations

import numpy as np
import pytest
import torch

from gnnplace.placers import SearchSpace
from gnnplace.placers.search.coarse_problem import searched_alone
from gnnplace.policy.learned import LearnedPlacer
from gnnplace.policy.search import beside
from gnnplace.policy.search.beside import SHARE, NarrowBeside
from gnnplace.train.data.captured import captured_problem, shipped_store
from gnnplace.train.data.random_families import random_problem
from tests.policy.problems import trained_like

torch.set_num_threads(1)
LATER = 1e12  # of any clock
torch.set_num_threads(1)


@pytest.fixture
def searches(monkeypatch):
    """A search on ops and one on groups, of a problem of some hundred ops."""
    for name, value in {"LEAST_OPS": 100, "GROUPS": 20, "BEGUN": 20_000}.items():
        monkeypatch.setattr(beside, name, value)
    placer = LearnedPlacer(trained_like())
    space = SearchSpace(random_problem("layered", 2, ops=(150, 200), microbatches=(1,)))
    rng = np.random.default_rng(0)
    return placer.first_choice(space, 0.0).search(rng), placer.beside(space, rng)


def test_groups_wait_until_the_ops_have_had_their_time(searches):
    local, groups = searches
    groups.turn(local, LATER)
    assert groups.groups is None
    while local.ops < beside.BEGUN:
        local.cycle(LATER)
    local.cycle(LATER)
    groups.turn(local, LATER)
    coarse, search = groups.groups
    assert coarse.problem.num_ops <= 40
    assert search.ops >= groups.share * (local.ops - beside.BEGUN) > 0
    assert "groups" in groups.note


def test_what_groups_find_counts_if_it_is_better(searches):
    local, groups = searches
    space, before = local.space, np.inf
    for _ in range(6):
        local.cycle(LATER)
        groups.turn(local, LATER)
        state = local.state
        assert state.score[1] <= before
        before = float(state.score[1])
        assert space.score(state.best_device, state.best_order) == pytest.approx(before)


def test_groups_that_lead_get_more_of_the_time(searches, monkeypatch):
    local, groups = searches
    while local.ops < 2 * beside.BEGUN:
        local.cycle(LATER)
    lead = local.state.score[1]
    local.state.score[1] = np.inf
    groups.turn(local, LATER)
    assert groups.share == beside.LEADING
    assert local.state.score[1] < np.inf
    local.state.score[1], groups.shown = lead * 1e-3, np.inf
    while groups.share == beside.LEADING:
        local.cycle(LATER)
        groups.turn(local, LATER)
    assert groups.share == beside.FOLLOWING


def test_small_problems_and_wholes_have_no_groups():
    space = SearchSpace(random_problem("layered", 2, ops=(60, 80)))
    assert not beside.worth_it(space)
    rng = np.random.default_rng(0)
    assert not LearnedPlacer(trained_like(), on_groups=False).beside(space, rng).open


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
