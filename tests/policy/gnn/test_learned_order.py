from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from gnnplace.errors import InputError
from gnnplace.graph import ComputationGraph
from gnnplace.graph.orders import COORDINATE, LEARNED
from gnnplace.placers import SearchSpace, contract
from gnnplace.policy.gnn.learned_order import (
    draw_order,
    order_gradient,
    priority_order,
)
from gnnplace.policy.gnn.network import GnnPolicy
from gnnplace.policy.gnn.placer import GnnPlacer
from gnnplace.policy.gnn.rollouts import Episodes
from tests.policy.gnn.test_decoder import greedily_seen, random_network
from tests.policy.problems import constrained_problem
from tests.random_problems import random_problem, seeds

torch.set_num_threads(1)
POLICY = random_network(2, order=LEARNED)


def log_probability(
    graph: ComputationGraph, order, priority: torch.Tensor
) -> torch.Tensor:
    """Log-probability of an order, step by step over the ready ops."""
    source, target, _ = graph.edges
    done, total = set(), torch.zeros((), dtype=priority.dtype)
    for chosen in order:
        ready = [
            i
            for i in range(graph.num_ops)
            if i not in done and done.issuperset(source[target == i].tolist())
        ]
        total = total + priority[chosen] - torch.logsumexp(priority[ready], 0)
        done.add(int(chosen))
    return total


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_the_gradient_is_that_of_the_log_probability(seed):
    rng = np.random.default_rng(seed)
    graph = random_problem(rng, int(rng.integers(1, 14)), 2).graph
    order = priority_order(graph, rng.normal(size=graph.num_ops))
    priority = torch.tensor(rng.normal(size=graph.num_ops), requires_grad=True)
    log_probability(graph, order, priority).backward()
    csr = graph.successor_offset, graph.successor
    found = order_gradient(*csr, order, priority.detach().numpy())
    np.testing.assert_allclose(found, priority.grad.numpy(), atol=1e-9)


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_it_lists_producers_first_and_each_op_once(seed):
    episodes = Episodes(SearchSpace(constrained_problem(seed)), LEARNED)
    network = episodes.network(POLICY)
    source, target, _ = episodes.graph.graph.edges
    for order in episodes.orders(network, 3, np.random.default_rng(seed)):
        assert sorted(order) == list(range(len(order)))
        place = np.argsort(order)
        assert (place[source] < place[target]).all()


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_it_begins_as_upward_rank(seed):
    problem = random_problem(np.random.default_rng(seed), 30, 3)
    space, policy = SearchSpace(problem), GnnPolicy(order=LEARNED)
    episodes, fixed = Episodes(space, LEARNED), Episodes(space, "upward-rank")
    order = episodes.orders(episodes.network(policy))
    assert (order == fixed.order).all()


@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_it_begins_as_its_base_as_far_as_producers_come_first(seed):
    """By hand: of the ready ops always the one that the base lists first."""
    space = SearchSpace(random_problem(np.random.default_rng(seed), 12, 3))
    for base in ("downward-rank", "reverse-upward-rank", "depth-first-pre", COORDINATE):
        name = f"{LEARNED}+{base}"
        episodes = Episodes(space, name)
        found = episodes.orders(episodes.network(GnnPolicy(order=name)))[0]
        listed, (source, target, _) = (
            episodes.graph.order(base),
            episodes.graph.graph.edges,
        )
        done: list[int] = []
        while len(done) < len(listed):
            done += [next(op for op in listed.tolist() if op not in done
                          and set(source[target == op].tolist()) <= set(done))]  # fmt: skip
        assert found.tolist() == done
        if base == "downward-rank":
            assert found.tolist() == listed.tolist()


@pytest.mark.parametrize(
    "name", ["in-time", f"{LEARNED}+in-time", f"{LEARNED}+{LEARNED}"]
)
def test_what_is_found_while_placing_is_refused_with_its_reason(name):
    with pytest.raises(InputError, match="only the placer"):
        GnnPolicy(order=name)


def test_a_network_that_learned_no_order_is_told_so():
    with pytest.raises(
        InputError, match=r"learned none; train one with --model\.order=learned"
    ):
        GnnPlacer(None, LEARNED).place(contract.training_chain())


def test_orders_are_drawn_as_often_as_their_probability_says():
    graph = ComputationGraph.from_tensors(["a", "b", "c"], [(0, 1.0, [1])])
    priority, rng, count = np.array([0.5, 1.0, 0.0]), np.random.default_rng(0), 4000
    drawn = [tuple(draw_order(graph, priority, rng)) for _ in range(count)]
    for order in permutations(range(3)):
        wanted = 0.0
        if order.index(0) < order.index(1):
            wanted = float(log_probability(graph, order, torch.tensor(priority)).exp())
        assert drawn.count(order) / count == pytest.approx(wanted, abs=0.03)


def test_decodes_walk_in_the_order_that_was_drawn():
    episodes = Episodes(
        SearchSpace(random_problem(np.random.default_rng(3), 30, 3)), LEARNED
    )
    network = episodes.network(POLICY)
    drawn = episodes.samples(network, 3, np.random.default_rng(0), shared=2)
    assert len(drawn.order) == len(drawn.unit_device) == 6
    assert len({tuple(order) for order in drawn.order}) > 3
    for b, step in enumerate(episodes.seen(network, drawn).step):
        place = np.argsort(drawn.order[b])
        assert (np.diff(place[step]) > 0).all()
    mine = greedily_seen(episodes, network).step[0]
    assert (np.diff(np.argsort(drawn.order[0])[mine]) > 0).all()
