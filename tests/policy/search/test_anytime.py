from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from gnnplace.placers import SearchSpace
from gnnplace.placers.search.clock import NO_BUDGET
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.refine.passes import RefiningPasses
from gnnplace.policy.search.anytime import KINDS, Anytime
from gnnplace.train.data.random_families import random_problem
from tests.policy.problems import trained_like

torch.set_num_threads(1)
POLICY = trained_like()


def anytime_of(family, seed, **options):
    """A search from the best decode, and what that takes."""
    rollouts = Rollouts(SearchSpace(random_problem(family, seed, **options)), POLICY)
    first = rollouts.greedy()[0]
    start = first.unit_device, first.order
    return first, Anytime(rollouts, np.random.default_rng(0), RefiningPasses(rollouts), start)


@pytest.mark.timed
def test_it_is_back_at_the_deadline_with_something_better():
    anytime_of("inception", 5, ops=(60, 120))[1].search(time.perf_counter() + 0.05)  # compiles
    first, anytime = anytime_of("inception", 5, ops=(60, 120))
    begin = time.perf_counter()
    what = anytime.search(begin + 0.4)
    assert time.perf_counter() - begin < 1.2
    assert "cycles" in what
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
    anytime.offer(device, first.order, 2.0 * first.score)
    assert anytime.state.score[1] == pytest.approx(first.score)
    anytime.offer(device, first.order, 0.5 * first.score)
    assert anytime.state.score[1] == 0.5 * first.score
