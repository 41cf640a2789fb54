"""Decodes of the graph network among the starts of the learned placer."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.gnn import starts
from gnnplace.policy.gnn.network import load_gnn
from gnnplace.policy.gnn.rollouts import Episodes
from gnnplace.policy.gnn.starts import DRAWS, LEAST_OPS, NAME, network_decodes, worth_asking
from gnnplace.policy.learned import FEWER_AIMS, LearnedPlacer, load_policy, untrained
from gnnplace.train.data.random_families import random_problem


@pytest.fixture(scope="module")
def rollouts():
    problem = random_problem("layered", 3, ops=(1_000, 1_100), devices=(4, 4), microbatches=(1,))
    return Rollouts(SearchSpace(problem), load_policy())


def decodes(rollouts, deadline=np.inf):
    return network_decodes(rollouts, load_gnn(), rollouts.aims[0], deadline)


def test_the_first_is_greedy_the_others_are_drawn_and_all_have_their_own_score(rollouts):
    found, space = decodes(rollouts), rollouts.space
    episodes = Episodes(space, load_gnn().order)
    greedy = episodes.greedy(episodes.network(load_gnn()))
    assert len(found) == 1 + DRAWS
    assert np.array_equal(found[0].unit_device, greedy)
    assert len({one.unit_device.tobytes() for one in found}) > DRAWS // 2
    for one in found:
        assert space.score(space.spread(one.unit_device), one.order) == pytest.approx(one.score)
        assert one.aim.order == NAME


def test_they_are_the_same_each_time(rollouts):
    one, other = decodes(rollouts), decodes(rollouts)
    assert [d.score for d in one] == [d.score for d in other]


def test_none_begins_after_the_deadline(rollouts, monkeypatch):
    everything = decodes(rollouts)
    for looks in (0, 1, 3):
        clock = itertools.count()
        monkeypatch.setattr(starts, "now", lambda clock=clock: float(next(clock)))
        some = decodes(rollouts, float(looks))
        assert [d.score for d in some] == [d.score for d in everything[:looks]]


def test_only_large_problems_on_several_devices_are_worth_it(rollouts):
    assert worth_asking(rollouts.space.problem)
    small = random_problem("layered", 3, ops=(100, 110), devices=(4, 4), microbatches=(1,))
    alone = random_problem("layered", 3, ops=(1_000, 1_100), devices=(1, 1), microbatches=(1,))
    assert small.num_ops < LEAST_OPS <= alone.num_ops
    assert not worth_asking(small)
    assert not worth_asking(alone)


def test_the_learned_placer_has_them_beside_fewer_of_its_own(rollouts):
    found = LearnedPlacer().decodes(rollouts, np.inf)
    own = [one for one in found if one.aim.order != NAME]
    assert len(found) - len(own) == 1 + DRAWS
    assert {one.aim for one in own} == set(rollouts.aims[:FEWER_AIMS])
    assert [one.score for one in found] == sorted(one.score for one in found)


@pytest.mark.parametrize("placer", [untrained(), LearnedPlacer(orders=("upward-rank",))])
def test_the_control_and_given_orders_have_none(rollouts, placer):
    assert all(one.aim.order != NAME for one in placer.decodes(rollouts, np.inf))
