from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from gnnplace.placers import Found, SearchSpace
from gnnplace.placers.search.annealing import Habit, anneal_moves, back_to_best
from gnnplace.placers.search.coarse_problem import groups_take_all_time
from gnnplace.placers.search.moves import neighbourhood, seed_kernel
from gnnplace.placers.search.space import NO_BUDGET
from gnnplace.policy import search as policy_search
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.learned import LearnedPlacer
from gnnplace.policy.refine.passes import RefiningPasses
from gnnplace.policy.search import KINDS, SHARE, Anytime, NarrowBeside, search_from
from gnnplace.train.data.captured import (
    CapturedDraws,
    draw_captured_problem,
    open_shipped_store,
)
from gnnplace.train.data.random_families import RandomDraws, random_problem
from tests import random_problems
from tests.policy.problems import trained_like

torch.set_num_threads(1)
POLICY = trained_like()
LATER = 1e12  # of any clock


def start_of(seed, microbatches=1):
    rng = np.random.default_rng(seed)
    problem = random_problems.random_problem(
        rng,
        int(rng.integers(4, 25)),
        int(rng.integers(2, 5)),
        microbatches=microbatches,
    )
    space = SearchSpace(problem)
    rollouts = Rollouts(space, POLICY)
    first = rollouts.greedy()[0]
    seed_kernel(seed % 1000)
    return space, search_from(space, first)


def searched(seed, habit, moves, heat=0.01):
    space, s = start_of(seed, 1 + seed % 2)
    before = float(s.score[0])
    anneal_moves(space, neighbourhood(space), habit, s, heat * before, moves)
    return space, s, before


@settings(max_examples=25, deadline=None)
@given(seed=random_problems.seeds)
def test_the_state_is_what_it_says_and_never_gets_worse(seed):
    space, s, before = searched(seed, Habit(0.2, 0.1), 60)
    assert s.score[0] == pytest.approx(space.score(s.device, s.order), rel=1e-9)
    assert s.score[1] == pytest.approx(
        space.score(s.best_device, s.best_order), rel=1e-9
    )
    assert s.score[1] <= before
    np.testing.assert_array_equal(space.spread(s.unit_device), s.device)
    assert sorted(s.order.tolist()) == list(range(len(s.order)))


def test_it_finds_better_placements():
    better = 0
    for seed in range(10):
        _, s, before = searched(seed, Habit(0.2, 0.1), 400)
        better += s.score[1] < before * 0.999
    assert better >= 4


def test_back_to_best_is_the_best_state():
    space, s, _ = searched(3, Habit(0.2, 0.1), 200, heat=1.0)
    back_to_best(space, s)
    assert s.score[0] == s.score[1]
    assert s.score[0] == pytest.approx(space.score(s.device, s.order), rel=1e-9)
    np.testing.assert_array_equal(space.spread(s.unit_device), s.device)


def anytime_of(family, seed, **options):
    """A search from the best decode, and what that takes."""
    rollouts = Rollouts(
        SearchSpace(random_problem(family, seed, RandomDraws(**options))), POLICY
    )
    first = rollouts.greedy()[0]
    return first, Anytime(RefiningPasses(rollouts), first, np.random.default_rng(0))


@pytest.mark.timed
def test_it_is_back_at_the_deadline_with_something_better():
    anytime_of("inception", 5, ops=(60, 120))[1].cycle(NO_BUDGET)  # compiles
    first, anytime = anytime_of("inception", 5, ops=(60, 120))
    begin = time.perf_counter()
    while time.perf_counter() < begin + 0.4:
        anytime.cycle(begin + 0.4)
    assert time.perf_counter() - begin < 1.2
    assert anytime.cycles > 0
    state = anytime.state
    assert state.score[1] < first.score
    again = anytime.space.score(state.best_device, state.best_order)
    assert again == pytest.approx(state.score[1], rel=1e-9)


def test_short_cycles_are_cold_and_cycles_grow():
    _, anytime = anytime_of("layered", 1, ops=(60, 120))
    units = anytime.space.problem.num_units
    anytime.length = 5.0 * units
    assert anytime._kinds() == [KINDS[0]]
    anytime.length = 1e6 * units
    assert anytime._kinds() == list(KINDS)
    anytime.length = 20.0
    anytime.cycle(NO_BUDGET)
    assert anytime.length > 20.0
    assert anytime.moves == 20


def test_few_units_are_melted():
    """The best known is a device's worth of units away, five percent uphill: exact finds it too."""
    given = {"ops": (30, 30), "microbatches": (4,), "clusters": ("mixed",)}
    _, anytime = anytime_of("grid", 355843, **given)
    while anytime.cycles < 12:
        anytime.cycle(NO_BUDGET)
    assert anytime.state.score[1] == pytest.approx(0.00749677, rel=1e-5)


def test_what_is_offered_counts_if_it_is_better():
    first, anytime = anytime_of("inception", 5, ops=(60, 120))
    device = anytime.space.spread(first.unit_device)
    anytime.offer(Found(device, first.order), 2.0 * first.score)
    assert anytime.state.score[1] == pytest.approx(first.score)
    anytime.offer(Found(device, first.order), 0.5 * first.score)
    assert anytime.state.score[1] == 0.5 * first.score


@pytest.fixture
def searches(monkeypatch):
    """A search on ops and one on groups, of a problem of some hundred ops."""
    for name, value in {"LEAST_OPS": 100, "GROUPS": 20, "BEGUN": 20_000}.items():
        monkeypatch.setattr(policy_search, name, value)
    placer = LearnedPlacer(trained_like())
    space = SearchSpace(
        random_problem("layered", 2, RandomDraws(ops=(150, 200), microbatches=(1,)))
    )
    rng = np.random.default_rng(0)
    return placer.first_choice(space, 0.0).search(rng), placer.beside(space, rng)


def test_groups_wait_until_the_ops_have_had_their_time(searches):
    local, groups = searches
    groups.turn(local, LATER)
    assert groups.groups is None
    while local.ops < policy_search.BEGUN:
        local.cycle(LATER)
    local.cycle(LATER)
    groups.turn(local, LATER)
    coarse, search = groups.groups
    assert coarse.problem.num_ops <= 40
    assert search.ops >= groups.share * (local.ops - policy_search.BEGUN) > 0
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
    while local.ops < 2 * policy_search.BEGUN:
        local.cycle(LATER)
    lead = local.state.score[1]
    local.state.score[1] = np.inf
    groups.turn(local, LATER)
    assert groups.share == policy_search.LEADING
    assert local.state.score[1] < np.inf
    local.state.score[1], groups.shown = lead * 1e-3, np.inf
    while groups.share == policy_search.LEADING:
        local.cycle(LATER)
        groups.turn(local, LATER)
    assert groups.share == policy_search.FOLLOWING


def test_small_problems_and_wholes_have_no_groups():
    space = SearchSpace(random_problem("layered", 2, RandomDraws(ops=(60, 80))))
    assert not policy_search.worth_it(space)
    rng = np.random.default_rng(0)
    assert not LearnedPlacer(trained_like(), on_groups=False).beside(space, rng).open


def made(memory: str, on_groups: bool = True):
    """A captured problem of a thousand ops, and what is searched beside them."""
    problem = draw_captured_problem(
        open_shipped_store(),
        "two-tower-deep",
        4008,
        CapturedDraws(groups=None, microbatches=(4,), memory=(memory,)),
    )
    placer, space = (
        LearnedPlacer(trained_like(), on_groups=on_groups),
        SearchSpace(problem),
    )
    assert problem.num_ops >= 1_000
    assert not groups_take_all_time(space)
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
