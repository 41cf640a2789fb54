from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings

from gnnplace.errors import InfeasibleError, InputError
from gnnplace.placers import contract
from gnnplace.placers.registry import PLACERS
from gnnplace.placers.search.space import SearchSpace
from gnnplace.placing.roster import make_placer as placer
from gnnplace.simulation import simulate
from tests.random_problems import random_problem, seeds


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
def test_contract(placer_name, check):
    check(placer(placer_name))


@pytest.mark.parametrize(
    "name", sorted(set(PLACERS) - {"annealing", "coarse-annealing", "portfolio"})
)
def test_random_dags(name):
    @settings(max_examples=25, deadline=None)
    @given(seed=seeds)
    def check(seed):
        rng = np.random.default_rng(seed)
        problem = random_problem(
            rng,
            int(rng.integers(1, 25)),
            int(rng.integers(1, 5)),
            constrained=True,
            microbatches=int(rng.integers(1, 3)),
        )
        if placer(name).supports(problem) is not None:
            return
        result = placer(name).place(problem, seed=1)
        assert simulate(problem, result.placement).feasible
        assert result.lower_bound <= result.step_time

    check()


@settings(max_examples=15, deadline=None)
@given(seed=seeds)
def test_portfolio_is_never_worse_than_one_device(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 15, 3)
    best = placer("portfolio").place(problem).step_time
    assert best <= placer("single").place(problem).step_time
    assert (
        placer("annealing").place(problem).step_time
        <= placer("single").place(problem).step_time
    )


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_missing_links_are_respected_or_refused(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 12, 3, complete=False)
    for name in ("single", "heft", "contiguous", "portfolio"):
        try:
            result = placer(name).place(problem)
        except InfeasibleError:
            assert name not in {"single", "portfolio"}
            continue
        assert simulate(problem, result.placement).feasible


def test_an_unknown_placer_lists_the_known():
    with pytest.raises(InputError, match="heft-contention"):
        placer("heftt")


@pytest.mark.timed
@pytest.mark.parametrize("name", ["annealing", "random", "portfolio"])
def test_a_budget_is_kept(name):
    problem = contract.branches()
    placer(name).place(problem)
    begin = time.perf_counter()
    placer(name).place(problem, budget=0.5)
    assert 0.4 < time.perf_counter() - begin < 1.5


def test_microbatches_pipeline_a_chain():
    """Four micro-batches on three devices must beat one device by far, and one batch."""
    from gnnplace.problem.microbatching import with_microbatches

    chain = contract.training_chain(num_layers=12, num_devices=2)
    whole = placer("portfolio").place(chain).step_time
    cut = placer("contiguous").place(with_microbatches(chain, 4)).step_time
    assert cut < 0.85 * whole


def test_coordinates_put_backward_ops_with_their_layers():
    space = SearchSpace(contract.training_chain())
    index = space.problem.graph.index
    for i in range(6):
        assert space.coordinate[index[f"b{i}"]] == space.coordinate[index[f"f{i}"]]
        assert space.coordinate[index[f"u{i}"]] == space.coordinate[index[f"f{i}"]]
    assert (np.diff(space.unit_coordinate[space.unit_order]) >= 0).all()
