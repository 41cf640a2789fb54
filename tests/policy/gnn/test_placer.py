from __future__ import annotations

import numpy as np
import pytest
import torch

from gnnplace.errors import InputError
from gnnplace.placers import SearchSpace, contract
from gnnplace.placing.roster import make_placer
from gnnplace.policy.decode.aims import Aim
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.gnn.decodes import FIRST_DRAWS, NetworkDecodes
from gnnplace.policy.gnn.network import load_gnn, read_gnn
from gnnplace.policy.gnn.placer import GnnPlacer
from gnnplace.policy.gnn.rollouts import Episodes
from gnnplace.policy.learned import load_policy
from gnnplace.train.data.random_families import RandomDraws, random_problem
from tests.policy.gnn.test_decoder import random_network
from tests.policy.problems import permuted_devices

torch.set_num_threads(1)
FAMILIES = ("inception", "transformer", "nas", "layered")


def spaces(count):
    return [
        SearchSpace(
            random_problem(
                FAMILIES[i % len(FAMILIES)],
                i,
                RandomDraws(devices=(4, 4), microbatches=(1,)),
            )
        )
        for i in range(count)
    ]


def mean_log(policy, problems):
    """Mean log step time of one greedy decode."""
    logs = []
    for space in problems:
        episodes = Episodes(space, policy.order)
        logs.append(np.log(episodes.seconds(episodes.greedy(episodes.network(policy)))))
    return float(np.mean(logs))


def test_the_shipped_network_is_better_than_one_whose_weights_are_shuffled():
    problems, shuffled = spaces(8), read_gnn(load_gnn.__wrapped__.__defaults__[0])
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in shuffled.parameters():
            flat = parameter.flatten()
            parameter.copy_(flat[torch.randperm(len(flat))].view_as(parameter))
    assert mean_log(load_gnn(), problems) < mean_log(shuffled, problems) - 0.2


def test_what_the_encoder_says_matters_to_the_shipped_network():
    problems, policy = spaces(8), load_gnn()
    changed = 0
    for space in problems:
        episodes = Episodes(space, policy.order)
        network = episodes.network(policy)
        silent = network._replace(context=np.zeros_like(network.context))
        changed += (episodes.greedy(network) != episodes.greedy(silent)).any()
    assert changed >= 6


def test_without_a_budget_it_is_one_decode_and_nothing_else():
    space = spaces(1)[0]
    policy = random_network()
    result = GnnPlacer(policy).place(space.problem, space=space)
    episodes = Episodes(space, policy.order)
    wanted = space.spread(episodes.greedy(episodes.network(policy)))
    np.testing.assert_array_equal(result.placement.device, wanted)
    assert "one decode" in result.note


def test_the_devices_do_not_depend_on_how_devices_are_listed():
    space, policy = spaces(1)[0], random_network()
    permutation = np.array([2, 0, 3, 1])
    other = SearchSpace(permuted_devices(space.problem, permutation))
    mine, theirs = (
        GnnPlacer(policy).place(s.problem, space=s).step_time for s in (space, other)
    )
    assert theirs == pytest.approx(mine, rel=0.2)


def test_pins_and_memory_are_kept():
    problem = contract.training_chain(memory=48.0)
    result = make_placer("gnn").place(problem)
    assert result.simulation.feasible


def test_options_choose_the_order_and_the_network(tmp_path):
    random_network().save_pretrained(tmp_path)
    placer = make_placer(f"gnn?checkpoint={tmp_path}&order=reverse-topological")
    assert "reverse-topological" in placer.place(contract.branches()).note
    with pytest.raises(InputError, match="order 'up'"):
        make_placer("gnn", order="up")


def test_a_budget_begins_with_decodes_for_each_number_of_devices_and_refines_them():
    space = spaces(2)[1]
    one = GnnPlacer().place(space.problem, space=space)
    first = GnnPlacer().place(space.problem, budget=0.3, space=space)
    assert first.step_time <= one.step_time
    assert "decodes" in first.note


def test_the_first_answer_has_a_decode_for_each_number_of_devices_and_draws():
    space, policy = spaces(1)[0], load_gnn()
    rollouts = Rollouts(space, load_policy())
    episodes = Episodes(space, policy.order, rollouts.graph)
    network = episodes.network(policy)
    decodes = NetworkDecodes(
        rollouts, episodes, network, Aim(episodes.name, network.limit)
    )
    answers = decodes.first_answers(np.inf)
    limits = {network.limit, 2, 4}
    assert len(answers) == len(limits) + FIRST_DRAWS
    np.testing.assert_array_equal(answers[0].unit_device, episodes.greedy(network))
    assert len(decodes.first_answers(-np.inf)) == 1
