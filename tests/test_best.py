from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from gnnplace.best import make_placer, placer_names
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.placers import PLACERS, contract
from tests.random_problems import random_problem, seeds


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ["learned", "best"])
def test_contract(name, check):
    check(make_placer(name))


@settings(max_examples=15, deadline=None)
@given(seed=seeds)
def test_best_is_never_worse_than_one_device_or_the_policy(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 15, 3, microbatches=int(rng.integers(1, 3)))
    best = make_placer("best").place(problem).step_time
    assert best <= make_placer("single").place(problem).step_time
    assert best <= make_placer("learned").place(problem).step_time


def test_best_says_who_found_it():
    result = make_placer("best").place(contract.branches())
    assert any(name in result.note for name in placer_names())


def test_best_says_so_when_nothing_fits():
    with pytest.raises(InfeasibleError, match="best"):
        make_placer("best").place(contract.training_chain(memory=8.0))


def test_every_order_decodes():
    from gnnplace.graph.orders import ORDERS

    for order in ORDERS:
        result = make_placer("learned", order).place(contract.branches())
        assert result.simulation.feasible
        assert result.note.startswith(order)


def test_names():
    assert set(PLACERS) < set(placer_names())
    with pytest.raises(InputError, match="only placers 'learned' and 'best'"):
        make_placer("heft", "random")
    with pytest.raises(InputError, match="unknown; placers"):
        make_placer("magic")
