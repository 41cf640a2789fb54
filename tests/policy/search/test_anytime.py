from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from gnnplace.data.random_families import random_problem
from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.refine.passes import Passes
from gnnplace.policy.search.anytime import KINDS, Anytime, candidates_for
from tests.policy.problems import trained_like

torch.set_num_threads(1)
POLICY = trained_like()


def anytime_of(family, seed, **options):
    rollouts = Rollouts(SearchSpace(random_problem(family, seed, **options)), POLICY)
    return rollouts, Anytime(rollouts, np.random.default_rng(0), Passes(rollouts))


@pytest.mark.timed
def test_it_is_back_at_the_deadline_with_something_better():
    rollouts, anytime = anytime_of("inception", 5, ops=(60, 120))
    first = rollouts.greedy()[0]
    anytime.passes.best([first])  # compiles, as the next line does
    anytime.search(first, time.perf_counter() + 0.05)
    begin = time.perf_counter()
    state, what = anytime.search(first, begin + 0.4)
    assert time.perf_counter() - begin < 1.2
    assert "cycles" in what
    assert state.score[1] < first.score
    again = rollouts.space.score(state.best_device, state.best_order)
    assert again == pytest.approx(state.score[1], rel=1e-9)


def test_small_budgets_afford_the_cold_kind_alone():
    _, anytime = anytime_of("layered", 1, ops=(60, 120))
    units = anytime.space.problem.num_units
    assert anytime._kinds(5.0 * units) == [KINDS[0]]
    assert anytime._kinds(1e6 * units) == list(KINDS)
    assert anytime._kinds(-1.0) == [KINDS[0]]


def test_proposals_are_chosen_from_more_moves_where_a_simulation_costs_more():
    counts = [candidates_for(n) for n in (10, 1_000, 100_000)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
