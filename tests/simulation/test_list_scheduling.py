from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnplace.graph import ComputationGraph
from gnnplace.placers import SearchSpace
from gnnplace.problem import build_problem
from gnnplace.problem.cluster import Cluster, Device, Link
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.simulation import Simulator
from gnnplace.simulation.compiled import compile_problem
from gnnplace.simulation.list_scheduling import (
    compute_distances,
    finish_times,
    justify,
    list_schedule,
    reverse_problem,
    time_list_schedule,
)
from gnnplace.train.data.random_families import RandomDraws
from gnnplace.train.data.random_families import random_problem as of_family
from tests.random_problems import random_problem, seeds


@settings(max_examples=100, deadline=None)
@given(seed=seeds, num_devices=st.integers(1, 4))
def test_an_order_of_all_ops_along_the_graph(seed, num_devices):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 20, num_devices, complete=False)
    device = rng.integers(0, num_devices, 20).astype(np.int32)
    order = list_schedule(Simulator(problem).compiled, device, rng.random(20))
    assert sorted(order.tolist()) == list(range(20))
    position = np.argsort(order)
    source, target, _ = problem.graph.edges
    assert (position[source] < position[target]).all()


@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_one_device_takes_the_ready_op_of_highest_priority(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 15, 1)
    priority = rng.integers(0, 6, 15).astype(float)
    order = list_schedule(Simulator(problem).compiled, np.zeros(15, np.int32), priority)
    done: list[int] = []
    for op in order.tolist():
        ready = [
            i
            for i in range(15)
            if i not in done
            and set(problem.graph.predecessors(i).tolist()) <= set(done)
        ]
        assert op == min(ready, key=lambda i: (-priority[i], i))
        done.append(op)


@settings(max_examples=100, deadline=None)
@given(seed=seeds, num_devices=st.integers(2, 4))
def test_no_device_idles_beside_a_ready_op(seed, num_devices):
    """Times of no pattern, so that no two ops finish at once: simulator and scheduler agree."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 20, num_devices, plain=True)
    problem = replace(
        problem, time={kind: rng.uniform(0.1, 3.0, 20) for kind in problem.time}
    )
    simulator = Simulator(problem)
    device = rng.integers(0, num_devices, 20).astype(np.int32)
    result = simulator.run(
        device, list_schedule(simulator.compiled, device, rng.random(20))
    )
    c = simulator.compiled
    there = np.zeros(20)
    for op in range(20):
        for k in c.input_tensor[c.input_offset[op] : c.input_offset[op + 1]]:
            sent = result.transfers
            mine = (sent.tensor == k) & (sent.target == device[op])
            made = result.finish[problem.graph.producer[k]]
            there[op] = max(there[op], sent.arrival[mine].max() if mine.any() else made)
    for d in range(num_devices):
        mine = np.flatnonzero(device == d)
        for op in mine:
            before = result.finish[mine][result.finish[mine] <= result.start[op]]
            waiting = mine[(result.start[mine] >= result.start[op])]
            idle_from = before.max() if len(before) else 0.0
            assert result.start[op] <= max(idle_from, there[waiting].min()) + 1e-9


def test_a_device_is_kept_from_its_ops_by_what_it_receives():
    """b consumes what a sent: its receipt takes 4 s, in which the other device has run d and e."""
    devices = tuple(Device(name=f"d{i}", kind="k", memory=1e9) for i in range(2))
    links = tuple(
        Link(source=s, target=t, latency=0.0, bandwidth=1.0, receive_overhead=4.0)
        for s, t in (("d0", "d1"), ("d1", "d0"))
    )
    tensors = [(0, 0.0, [1]), (1, 0.0, [2])]
    graph = ComputationGraph.from_tensors(list("abcde"), tensors)
    problem = build_problem(
        "p", graph, Cluster(devices, links), {"k": [1.0, 1.0, 1.0, 3.0, 1.0]}
    )
    device = np.array([0, 1, 0, 0, 0], np.int32)
    simulator = Simulator(problem)
    order = list_schedule(
        simulator.compiled, device, np.array([5.0, 4.0, 3.0, 2.0, 1.0])
    )
    # c is there at 1 + 4 + 1 = 6 s: after d (1 to 4 s) and e (4 to 5 s), not between them.
    assert order.tolist() == [0, 3, 1, 4, 2]
    assert simulator.step_time(device, order) == 6.0 + 4.0 + 1.0


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_ops_that_cannot_run_where_they_are_have_an_order(seed):
    """There are no times to schedule by; the answer is an order all the same, and infeasible."""
    problem = random_problem(np.random.default_rng(seed), 30, 2)
    never = {kind: np.full(30, np.inf) for kind in problem.time}
    device = np.random.default_rng(seed).integers(0, 2, 30).astype(np.int32)
    simulator = Simulator(replace(problem, time=never))
    order = simulator.complete(device)
    assert sorted(order.tolist()) == list(range(30))
    assert not simulator.run(device, order).feasible


@settings(max_examples=60, deadline=None)
@given(seed=seeds, share=st.floats(0.3, 1.2))
def test_only_a_schedule_over_the_limit_is_given_up(seed, share):
    """And one whose devices have more work than that is, whatever the order."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 40, 3)
    compiled, device = (
        compile_problem(problem),
        rng.integers(3, size=40).astype(np.int32),
    )
    priority, whole, cut = rng.random(40), np.empty(40), np.empty(40)
    order = time_list_schedule(compiled, device, priority, whole, np.inf)
    limit = share * whole.max()
    again = time_list_schedule(compiled, device, priority, cut, limit * (1.0 + 1e-9))
    if np.isfinite(cut[0]):
        np.testing.assert_array_equal(cut, whole)
        assert again.tolist() == order.tolist()
    else:
        assert whole.max() > limit
    load = np.bincount(device, problem.times[np.arange(40), device])
    if load.max() > limit * (1.0 + 1e-6):
        assert np.isinf(cut[0])


def placed(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, int(rng.integers(2, 40)), int(rng.integers(1, 4)))
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
    c, r = space.compiled, reverse_problem(space.compiled)
    again = reverse_problem(r)

    def edges(p):
        producer = np.empty(len(p.size), int)
        producer[p.op_tensor] = np.repeat(
            np.arange(len(p.state)), np.diff(p.op_tensor_offset)
        )
        tensor = np.repeat(np.arange(len(p.size)), np.diff(p.consumer_offset))
        return sorted(zip(producer[tensor], p.consumer, p.size[tensor], strict=True))

    assert edges(again) == edges(c)
    assert edges(r) == sorted((b, a, size) for a, b, size in edges(c))
    for op in range(len(r.state)):
        into = set(r.flow_op[r.flow_offset[op] : r.flow_offset[op + 1]])
        assert into == {a for a, b, _ in edges(c) if b == op}


def test_on_one_device_the_distance_to_the_end_is_what_is_left_to_do():
    rng = np.random.default_rng(0)
    problem = random_problem(rng, 12, 1)
    c = compile_problem(problem)
    order = problem.graph.topological_order
    device = np.zeros(12, np.int32)
    left = compute_distances(c, reverse_problem(c), device, order)
    start = finish_times(c, device, order) - problem.times[:, 0]
    total = problem.times.sum()
    assert left.max() == pytest.approx(total)
    assert (left >= problem.times[:, 0] - 1e-9).all()
    assert np.mean(np.isclose(left, total - start)) > 0.5  # but for ties


def test_it_takes_micro_batches_out_of_lockstep():
    """Chunks of a chain: ordered by upward rank all copies march together."""
    better = 0
    for seed in range(8):
        problem = of_family(
            "chain", seed, RandomDraws(ops=(60, 120), devices=(4, 4), microbatches=(1,))
        )
        problem = with_microbatches(problem, 4)
        space = SearchSpace(problem)
        chunk = np.empty(problem.num_units, np.int32)
        chunk[space.unit_order] = np.arange(problem.num_units) * 4 // problem.num_units
        device = space.spread(space.allow(chunk))
        order = space.simulator.complete(device)
        justified = justify(space.compiled, space.reversed, device, order)
        better += space.score(device, justified) < 0.999 * space.score(device, order)
    assert better >= 2
