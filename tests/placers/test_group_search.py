from __future__ import annotations

import logging

import numpy as np
import optuna
import pytest

from gnnplace.placers import SearchSpace, contract
from gnnplace.placers.group_search import EVALUATIONS, GROUPS, GroupSearch, make_groups
from gnnplace.placing.roster import make_placer as placer
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.simulation import simulate
from gnnplace.train.data.random_families import RandomDraws, random_problem

NAMES = ("random-search", "optuna")


@pytest.fixture(scope="module")
def layered():
    return random_problem("layered", 5, RandomDraws(ops=(150, 160), devices=(4, 4)))


def test_groups_keep_units_whole_and_only_allowed_devices(layered):
    group, allowed = make_groups(layered)
    assert len(allowed) <= GROUPS
    assert set(group.tolist()) == set(range(len(allowed)))
    for unit in range(layered.num_units):
        assert len(set(group[layered.unit_of == unit].tolist())) == 1
        mine = group[np.argmax(layered.unit_of == unit)]
        assert (allowed[mine] <= layered.unit_allowed[unit]).all()


def test_micro_batches_share_their_groups():
    cut = with_microbatches(contract.training_chain(num_layers=30), 4)
    group, allowed = make_groups(cut)
    assert 1 < len(allowed) <= GROUPS
    index = cut.graph.index
    for layer in range(30):
        assert (
            len({int(group[index[f"{x}{layer}#{k}"]]) for x in "fb" for k in range(4)})
            == 1
        )


def test_an_evaluation_is_a_step_time_and_the_best_is_kept(layered):
    search = GroupSearch(SearchSpace(layered))
    rng = np.random.default_rng(0)
    count = len(search.allowed)
    choices = iter(
        [rng.integers(0, 4, count).astype(np.int32) for _ in range(EVALUATIONS)]
    )
    scores = []

    def propose():
        scores.append(search.score)
        return next(choices)

    found = search.run(propose, 0.0)
    assert scores == sorted(scores, reverse=True)
    assert simulate_time(search, found) == search.score <= scores[-1]


def simulate_time(search, found):
    return search.space.simulator.run(found.device, found.order).step_time


@pytest.mark.parametrize("name", NAMES)
def test_both_make_as_many_evaluations_of_the_same_groups(layered, name):
    result = placer(name).place(layered, seed=1)
    count = len(make_groups(layered)[1])
    assert result.note == f"{EVALUATIONS} evaluations, {count} groups"
    assert simulate(layered, result.placement).step_time == result.step_time


@pytest.mark.parametrize("name", NAMES)
def test_neither_is_worse_than_one_device(name):
    for seed in range(3):
        problem = random_problem("seq2seq", seed, RandomDraws(ops=(60, 80)))
        single = placer("single").place(problem).step_time
        assert placer(name).place(problem, seed=seed).step_time <= single * (1 + 1e-9)


def test_a_model_of_good_choices_beats_chance():
    """On a chain in micro-batches good choices have structure; more seeds than luck covers."""
    problem = with_microbatches(
        contract.training_chain(num_layers=12, num_devices=3), 4
    )
    ratios = [
        placer("optuna").place(problem, seed=seed).step_time
        / placer("random-search").place(problem, seed=seed).step_time
        for seed in range(5)
    ]
    assert np.exp(np.mean(np.log(ratios))) < 1.0


def test_optuna_is_silent_and_gives_the_verbosity_back(capfd):
    optuna.logging.set_verbosity(logging.INFO)
    placer("optuna").place(contract.branches())
    assert optuna.logging.get_verbosity() == logging.INFO
    assert capfd.readouterr() == ("", "")
