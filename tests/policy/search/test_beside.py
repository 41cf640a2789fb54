from __future__ import annotations

import numpy as np
import pytest
import torch

from gnnplace.placers import SearchSpace
from gnnplace.policy.learned import LearnedPlacer
from gnnplace.policy.search import beside
from gnnplace.train.data.random_families import random_problem
from tests.policy.problems import trained_like

torch.set_num_threads(1)
LATER = 1e12  # of any clock


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
    for _ in range(12):
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
