from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnplace.simulation import Simulator
from gnnplace.simulation.list_scheduling import list_schedule
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
            if i not in done and set(problem.graph.predecessors(i).tolist()) <= set(done)
        ]
        assert op == min(ready, key=lambda i: (-priority[i], i))
        done.append(op)


@settings(max_examples=100, deadline=None)
@given(seed=seeds, num_devices=st.integers(2, 4))
def test_no_device_idles_beside_a_ready_op(seed, num_devices):
    """Times of no pattern, so that no two ops finish at once: simulator and scheduler agree."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 20, num_devices, plain=True)
    problem = replace(problem, time={kind: rng.uniform(0.1, 3.0, 20) for kind in problem.time})
    simulator = Simulator(problem)
    device = rng.integers(0, num_devices, 20).astype(np.int32)
    result = simulator.run(device, list_schedule(simulator.compiled, device, rng.random(20)))
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
