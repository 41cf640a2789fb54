from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from gnnplace.placers import SearchSpace
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.simulation.compiled import compile_problem
from gnnplace.simulation.justification import distances, finish_times, justify, reversed_problem
from gnnplace.train.data.random_families import random_problem
from tests.random_problems import random_problem as random_dag
from tests.random_problems import seeds


def placed(seed):
    rng = np.random.default_rng(seed)
    problem = random_dag(rng, int(rng.integers(2, 40)), int(rng.integers(1, 4)))
    space = SearchSpace(problem)
    device = space.spread(rng.integers(problem.num_devices, size=problem.num_units))
    return space, device, space.turn_order


@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_justified_orders_run(seed):
    space, device, order = placed(seed)
    justified = justify(space.compiled, space.reversed, device, order)
    assert sorted(justified.tolist()) == list(range(len(order)))
    assert np.isfinite(space.simulator.step_time(device, justified))


@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_an_edge_turned_round_twice_is_the_edge(seed):
    space = placed(seed)[0]
    c, r = space.compiled, reversed_problem(space.compiled)
    again = reversed_problem(r)

    def edges(p):
        producer = np.empty(len(p.size), int)
        producer[p.op_tensor] = np.repeat(np.arange(len(p.state)), np.diff(p.op_tensor_offset))
        tensor = np.repeat(np.arange(len(p.size)), np.diff(p.consumer_offset))
        return sorted(zip(producer[tensor], p.consumer, p.size[tensor], strict=True))

    assert edges(again) == edges(c)
    assert edges(r) == sorted((b, a, size) for a, b, size in edges(c))
    for op in range(len(r.state)):
        into = set(r.flow_op[r.flow_offset[op] : r.flow_offset[op + 1]])
        assert into == {a for a, b, _ in edges(c) if b == op}


def test_on_one_device_the_distance_to_the_end_is_what_is_left_to_do():
    rng = np.random.default_rng(0)
    problem = random_dag(rng, 12, 1)
    c = compile_problem(problem)
    order = problem.graph.topological_order
    device = np.zeros(12, np.int32)
    left = distances(c, reversed_problem(c), device, order)
    start = finish_times(c, device, order) - problem.times[:, 0]
    total = problem.times.sum()
    assert left.max() == pytest.approx(total)
    assert (left >= problem.times[:, 0] - 1e-9).all()
    assert np.mean(np.isclose(left, total - start)) > 0.5  # but for ties


def test_it_takes_micro_batches_out_of_lockstep():
    """Chunks of a chain: ordered by upward rank all copies march together."""
    better = 0
    for seed in range(8):
        problem = random_problem("chain", seed, ops=(60, 120), devices=(4, 4), microbatches=(1,))
        problem = with_microbatches(problem, 4)
        space = SearchSpace(problem)
        chunk = np.empty(problem.num_units, np.int32)
        chunk[space.unit_order] = np.arange(problem.num_units) * 4 // problem.num_units
        device = space.spread(space.allow(chunk))
        order = space.simulator.complete(device)
        justified = justify(space.compiled, space.reversed, device, order)
        better += space.score(device, justified) < 0.999 * space.score(device, order)
    assert better >= 2
