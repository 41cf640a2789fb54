from __future__ import annotations

import time

import numpy as np

from gnnplace.placers import SearchSpace, contract
from gnnplace.placers.coarse_annealing import GROUPS, has_time, project_placement
from gnnplace.placers.constructions import best_construction
from gnnplace.placers.search.coarse_problem import coarse_problem
from gnnplace.placers.search.space import NO_BUDGET
from gnnplace.placing.roster import make_placer as placer
from gnnplace.problem.microbatching import with_microbatches


def test_large_problems_are_grouped_and_come_out_whole():
    problem = with_microbatches(
        contract.training_chain(num_layers=60, num_devices=3), 4
    )
    result = placer("coarse-annealing").place(problem)
    assert coarse_problem(problem, GROUPS * 2) is not None
    assert result.simulation.feasible
    assert result.step_time < 0.8 * placer("single").place(problem).step_time


def test_small_problems_are_annealed_as_they_are():
    problem = contract.branches()
    result = placer("coarse-annealing").place(problem, seed=2)
    assert result.step_time == placer("annealing").place(problem, seed=2).step_time


def test_a_projection_puts_ops_where_their_groups_are():
    problem = with_microbatches(contract.training_chain(num_layers=40), 2)
    space, coarse = SearchSpace(problem), coarse_problem(problem, 50)
    assert coarse is not None
    found = best_construction(SearchSpace(coarse.problem), np.random.default_rng(0))
    fine = project_placement(space, coarse, found, NO_BUDGET)
    assert (fine.device == found.device[coarse.group]).all()
    own = coarse.fine_order(problem, found.order)
    assert space.score(fine.device, fine.order) <= space.score(fine.device, own)


def test_never_worse_than_the_constructions():
    for memory in (1e6, 1500.0):
        chain = contract.training_chain(num_layers=60, num_devices=3, memory=memory)
        problem = with_microbatches(chain, 2)
        result = placer("coarse-annealing").place(problem)
        assert result.step_time <= placer("portfolio").place(problem).step_time


def test_grouping_is_left_out_where_it_would_take_the_budget():
    space = SearchSpace(with_microbatches(contract.training_chain(num_layers=100), 8))
    now = time.perf_counter()
    assert has_time(space, NO_BUDGET)
    assert has_time(space, now + 60)
    assert not has_time(space, now + 0.003)
    assert (
        "groups"
        not in placer("coarse-annealing").place(space.problem, budget=0.003).note
    )
