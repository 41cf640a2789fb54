"""A larger budget with the same seed is never worse: budgets are looks at the clock here."""

from __future__ import annotations

import itertools

import pytest

import gnnplace
from gnnplace.bench.suite import dataset_problem
from gnnplace.placers import SearchSpace, contract
from gnnplace.placers.search.space import count_looks
from gnnplace.placing.roster import make_placer
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.train.data.captured import open_shipped_store
from gnnplace.train.data.random_families import RandomDraws, random_problem

LOOKS = (1, 2, 4, 10, 40, 160, 400)
PLACERS = (
    "learned",
    "gnn",
    "best",
    "annealing",
    "portfolio",
    "coarse-annealing",
    "contiguous",
    "interleaved",
    "min-cut",
    "random",
    "random-search",
)


def seconds_by_looks(space, name, looks, seed=0):
    """Step times after so many looks at the clock each."""
    times = []
    for budget in looks:
        with count_looks():
            placer = make_placer(name)
            times.append(
                placer.place(space.problem, budget=budget, seed=seed, space=space)
            )
    return [result.step_time for result in times]


def never_rises(times):
    return all(after <= before for before, after in itertools.pairwise(times))


@pytest.mark.parametrize("name", PLACERS)
@pytest.mark.parametrize("family", ["inception", "transformer"])
def test_a_larger_budget_is_never_worse(name, family):
    problem = random_problem(family, 5, RandomDraws(ops=(60, 120), microbatches=(2,)))
    times = seconds_by_looks(SearchSpace(problem), name, LOOKS)
    assert never_rises(times), times
    if name in ("learned", "best", "annealing", "portfolio"):
        assert times[-1] < times[0]


@pytest.mark.parametrize("name", ["best", "annealing", "coarse-annealing"])
def test_a_larger_budget_is_never_worse_with_groups_and_micro_batches(name):
    problem = with_microbatches(
        contract.training_chain(num_layers=40, num_devices=3), 4
    )
    times = seconds_by_looks(SearchSpace(problem), name, (5, 20, 60, 120))
    assert never_rises(times), times


@pytest.mark.parametrize("name", ["narrow", "learned", "best"])
def test_a_larger_budget_is_never_worse_on_narrow_groups(name):
    graph, cluster = (
        open_shipped_store().graph("vit-base"),
        gnnplace.resolve_cluster("pcie-v100-4"),
    )
    problem = dataset_problem(graph, cluster, microbatches=4, groups=None)
    looks = (3, 30, 60, 90, 400) if name == "learned" else (3, 30, 60, 90)
    times = seconds_by_looks(SearchSpace(problem), name, looks)
    assert never_rises(times), times
    assert times[-1] < times[0]
