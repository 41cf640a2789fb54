"""At most k devices: which sub-clusters are tried, and what is placed on them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings

from gnnplace.errors import InfeasibleError
from gnnplace.placers.contract import branches, training_chain
from gnnplace.placers.few_devices import make_subproblem, subclusters
from gnnplace.placing.roster import place
from gnnplace.problem.constraints import Constraints, ConstraintWords
from gnnplace.simulation import simulate
from tests.random_problems import random_problem, seeds


def test_devices_that_are_alike_are_one_sub_cluster():
    """Three fast devices and a slow one make two sorts of pairs."""
    found = subclusters(branches(), 2)
    assert found.sets == ((0, 1), (0, 3))
    assert found.complete


@settings(max_examples=15, deadline=None)
@given(seeds)
def test_sub_clusters_stand_for_all(seed):
    """The optimum over the sub-clusters that are tried is the one over all sets of devices."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 4, 3, plain=True, complete=False)

    def best(sets):
        found = []
        for devices in sets:
            try:
                made = make_subproblem(problem, tuple(devices))
                found.append(place(made, placer="exact").step_time)
            except InfeasibleError:
                continue
        return min(found, default=None)

    assert best(subclusters(problem, 2).sets) == best(combinations(range(3), 2))


def test_few_devices_are_used_and_pinned_ones_among_them():
    """The placement is one of the whole cluster, on two devices, one of them pinned."""
    problem = training_chain(num_devices=4)
    asked = ConstraintWords(pin=["f2=d3"], max_devices=2).constraints()
    result = place(problem, placer="heft", constraints=asked)
    used = set(result.placement.device.tolist())
    assert len(used) <= 2
    assert result.placement.device[problem.graph.index["f2"]] == 3
    assert simulate(problem, result.placement).step_time == result.step_time
    assert result.lower_bound <= result.step_time
    assert "d3" in result.note


def test_more_budget_is_never_worse_on_few_devices():
    """A search on the chosen sub-cluster begins where the choice was made."""
    problem = branches()
    few = Constraints(max_devices=3)
    first = place(problem, placer="annealing", constraints=few)
    more = place(problem, placer="annealing", constraints=few, budget=0.2)
    assert more.step_time <= first.step_time


def test_pins_to_more_devices_than_may_be_used_are_refused():
    """The error says what needs more."""
    asked = ConstraintWords(pin=["f0=d0", "f1=d1"], max_devices=1).constraints()
    with pytest.raises(InfeasibleError, match="max-devices 1"):
        place(training_chain(), placer="heft", constraints=asked)
