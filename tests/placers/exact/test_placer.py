"""``exact`` against brute force, its bound against everybody."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

import gnnplace
from gnnplace.errors import InfeasibleError, UnsupportedError
from gnnplace.placers import contract
from gnnplace.placers.contract import training_chain
from gnnplace.placers.exact.input import (
    Scale,
    bundles,
    equal_devices,
    labels_by_use,
    make_scale,
    serial_time,
)
from gnnplace.placers.exact.placer import Exact, annealing_runs
from gnnplace.placers.registry import PLACERS
from gnnplace.placers.search.space import SearchSpace
from gnnplace.placing.roster import make_placer as placer
from gnnplace.problem import Problem
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.problem.placement import list_faults
from tests.random_problems import random_problem, seeds


def all_orders(problem: Problem) -> np.ndarray:
    """Every topological order of all ops: every set of sequences that can run is one of them."""
    graph, orders = problem.graph, []

    def extend(order: list[int], waiting: np.ndarray) -> None:
        if len(order) == problem.num_ops:
            orders.append(order)
        for op in np.flatnonzero(waiting == 0).tolist():
            left = waiting.copy()
            left[op] = -1
            left[graph.successors(op)] -= 1
            extend([*order, op], left)

    extend([], np.diff(graph.predecessor_offset).astype(np.int64))
    return np.array(orders, dtype=np.int32)


def brute_force(problem: Problem, orders: np.ndarray | None = None) -> float:
    """Least simulated step time over all devices of all units, and all (or our own) orders."""
    space, best = SearchSpace(problem), np.inf
    for chosen in itertools.product(
        *[np.flatnonzero(row) for row in problem.unit_allowed]
    ):
        device = space.spread(np.array(chosen, dtype=np.int32))
        if orders is None:
            best = min(best, space.sequence(device)[0])
        else:
            devices = np.repeat(device[None], len(orders), axis=0)
            best = min(best, space.simulator.step_times(devices, orders).min())
    return float(best)


@pytest.mark.timed
@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_equals_brute_force_over_everything(seed):
    """All devices and all sequences: shared channels, overheads, busy senders, pins, classes."""
    rng = np.random.default_rng(seed)
    problem = random_problem(
        rng, int(rng.integers(2, 7)), int(rng.integers(1, 4)), constrained=True
    )
    least = brute_force(problem, all_orders(problem))
    result = Exact().place(problem, budget=0.4)
    assert result.lower_bound <= least * (1 + 1e-9)
    assert result.step_time <= least * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_equals_brute_force_over_devices_on_eight_ops(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 8, 2 + seed % 2, plain=True)
    result = Exact().place(problem, budget=1.0)
    assert result.step_time <= brute_force(problem) * (1 + 1e-9)
    assert "optimal" in result.note
    assert result.gap < 1e-5


@settings(max_examples=8, deadline=None)
@given(seed=seeds)
def test_the_bound_is_below_every_heuristic(seed):
    """Also with times that have no common unit, missing links and micro-batches."""
    rng = np.random.default_rng(seed)
    problem = random_problem(
        rng,
        int(rng.integers(5, 20)),
        3,
        complete=seed % 2 > 0,
        microbatches=1 + seed % 3,
    )
    awkward = {kind: t * 0.7310585786300049 for kind, t in problem.time.items()}
    problem = replace(problem, time=awkward)
    bound = Exact().place(problem).lower_bound
    for name in ("single", "contiguous", "heft-contention", "etf", "annealing"):
        try:
            assert bound <= placer(name).place(problem).step_time
        except (InfeasibleError, UnsupportedError):
            continue


@pytest.mark.timed
def test_training_chains_are_proven_optimal():
    for count in (1, 2):
        problem = with_microbatches(
            contract.training_chain(num_layers=4, num_devices=2), count
        )
        result = Exact().place(problem, budget=20.0)
        assert "optimal" in result.note
        assert result.gap < 1e-5
        assert result.seconds < 20.0


def test_never_worse_than_a_heuristic():
    problem = with_microbatches(
        contract.training_chain(num_layers=12, num_devices=4), 4
    )
    result = Exact().place(problem, budget=1.5)
    cheap = set(PLACERS) - {
        "exact",
        "annealing",
        "coarse-annealing",
        "random",
        "optuna",
    }
    least = min(placer(name).place(problem).step_time for name in cheap)
    assert result.step_time <= least
    assert result.lower_bound < result.step_time
    assert "gap" in result.note


def test_memory_and_pins_are_respected():
    tight = contract.training_chain(num_layers=6, num_devices=3, memory=48.0)
    pin = np.full(tight.num_ops, -1, dtype=np.int32)
    pin[tight.graph.index["f2"]] = 2
    problem = replace(tight, pin=pin)
    result = Exact().place(problem, budget=2.0)
    assert list_faults(problem, result.placement.device) == []
    assert (result.peak_memory <= 48.0).all()
    assert result.placement.device[tight.graph.index["f2"]] == 2


def test_an_impossible_memory_is_proven():
    with pytest.raises(InfeasibleError, match="proven"):
        Exact().place(contract.training_chain(memory=24.0), budget=2.0)


def test_a_large_problem_is_refused_with_its_size():
    problem = contract.training_chain(num_layers=1_700)
    assert "5100 ops" in str(Exact().supports(problem))


def test_equal_devices_need_equal_links():
    problem = contract.branches(num_devices=4)
    assert equal_devices(problem) == [[0, 1, 2, 3]]
    links = list(problem.cluster.links)
    links[0] = links[0].model_copy(update={"bandwidth": 1.0})
    cluster = replace(problem.cluster, links=tuple(links))
    assert equal_devices(replace(problem, cluster=cluster)) == [[0], [1], [2, 3]]


def test_shared_channels_tell_devices_apart():
    problem = contract.branches(num_devices=4)
    shared = tuple(
        link.model_copy(update={"channel": "bus"}) if link.source == "d0" else link
        for link in problem.cluster.links
    )
    problem = replace(problem, cluster=replace(problem.cluster, links=shared))
    assert equal_devices(problem) == [[0], [1, 2, 3]]
    slower = contract.training_chain(num_devices=4)
    assert equal_devices(slower) == [[0, 1, 2], [3]]


def test_labels_by_use_name_devices_in_order():
    space = SearchSpace(contract.branches(num_branches=4, num_devices=4))
    device = np.full(space.problem.num_ops, 2, dtype=np.int32)
    device[-1] = 0
    label = labels_by_use(space, device)
    assert label[device][0] == 0
    assert label[device][-1] == 1
    assert sorted(label.tolist()) == [0, 1, 2, 3]


def test_scales_round_down_and_find_common_units():
    problem = contract.training_chain()
    assert make_scale(problem, 100.0).unit == 0.1
    assert Scale(0.1, 1.0).down(0.3) == 3
    assert Scale(0.1, 1.0).down(0.39) == 3
    assert Scale(0.1, 1.0).bound(3.0) <= 0.3
    assert serial_time(problem) >= placer("single").place(problem).step_time


def test_bundles_join_tensors_with_the_same_readers():
    problem = contract.training_chain(num_layers=2)
    twice = [(int(p), 1.0, [int(c) for c in problem.graph.consumers(k)])
             for k, p in enumerate(problem.graph.producer)] * 2  # fmt: skip
    graph = type(problem.graph).from_tensors(problem.graph.names, twice)
    doubled = bundles(replace(problem, graph=graph))
    assert [len(bundle.tensors) for bundle in doubled] == [2] * len(bundles(problem))


def test_annealing_is_cut_into_runs_where_there_is_time() -> None:
    """One for a short budget or a large problem."""
    assert [annealing_runs(100, seconds) for seconds in (-1.0, 5.0, 42.0)] == [1, 1, 3]
    assert annealing_runs(1200, 57.0) == 1


def test_workers_are_threads_of_the_solver() -> None:
    """Two of them find the same optimum."""
    problem = training_chain(num_layers=3, num_devices=2)
    steps = [
        gnnplace.place(problem, placer="exact", workers=n, budget=3.0).step_time
        for n in (1, 2)
    ]
    assert steps[0] == pytest.approx(steps[1])
