from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnplace.graph import ComputationGraph
from gnnplace.problem import Problem, build_problem
from gnnplace.problem.cluster import Cluster, Device, Link
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.simulation import Simulator, lower_bound
from gnnplace.simulation.bounds.copies import sort_by_rank
from gnnplace.simulation.bounds.relaxation import Relaxation
from gnnplace.simulation.bounds.serial import with_serial_runs
from tests.random_problems import random_cluster, random_order, seeds
from tests.simulation.bounds.test_combined import optimum, tightened


def woven(
    rng: np.random.Generator, num_ops: int, num_devices: int, microbatches: int
) -> Problem:
    """Ops that all feed one or two of the next three, on links of any kind, with some classes."""
    tensors = []
    for i in range(num_ops - 1):
        later = np.arange(i + 1, min(num_ops, i + 4))
        count = int(rng.integers(1, min(3, len(later)) + 1))
        taken = rng.choice(later, count, replace=False)
        tensors.append((i, float(rng.choice([0, 1, 3, 8])), sorted(taken.tolist())))
    graph = ComputationGraph.from_tensors([f"op{i}" for i in range(num_ops)], tensors)
    cluster = random_cluster(rng, num_devices, plain=bool(rng.random() < 0.5))
    slow = rng.integers(1, 6, num_ops).astype(float)
    made: dict[str, object] = {"state": rng.integers(0, 30, num_ops).astype(float)}
    if rng.random() < 0.5:
        drawn = rng.integers(0, 6, num_ops).tolist()
        made["colocate"] = tuple(f"c{k}" if k < 2 else None for k in drawn)
    if microbatches > 1:
        last = np.diff(graph.successor_offset) == 0
        made["phase"] = np.where(last & (rng.random() < 0.7), 2, 0).astype(np.int8)
    time = {"fast": np.floor(slow / 2), "slow": slow}
    return with_microbatches(
        build_problem("woven", graph, cluster, time, **made), microbatches
    )


@settings(max_examples=60, deadline=None)
@given(seed=seeds, microbatches=st.integers(1, 4), num_devices=st.integers(1, 4))
def test_no_schedule_starts_an_op_before_its_head_or_leaves_less_than_its_tail(
    seed, microbatches, num_devices
):
    rng = np.random.default_rng(seed)
    problem = woven(rng, 10, num_devices, microbatches)
    relaxation, simulator = with_serial_runs(Relaxation.of(problem)), Simulator(problem)
    copies = relaxation.copies
    for spread in (1, 1, 2, 2, num_devices, num_devices):
        unit_device = rng.integers(0, min(spread, num_devices), problem.num_units)
        device = unit_device[problem.unit_of].astype(np.int32)
        order = (
            simulator.complete(device)
            if rng.random() < 0.5
            else random_order(problem, rng)
        )
        result = simulator.run(device, order)
        assert (sort_by_rank(copies, result.start) >= relaxation.head - 1e-9).all()
        left = result.step_time - result.finish
        assert (sort_by_rank(copies, left) >= relaxation.tail - 1e-9).all()


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_no_bound_is_above_the_optimum_of_woven_ops(seed):
    rng = np.random.default_rng(seed)
    microbatches = int(rng.choice([1, 2, 3]))
    num_ops = {1: 6, 2: 4, 3: 3}[microbatches]
    problem = woven(rng, num_ops, int(rng.integers(2, 4)), microbatches)
    problem = tightened(problem, rng) if rng.random() < 0.5 else problem
    assert lower_bound(problem) <= optimum(problem)


def equal(
    tensors: list[tuple[int, float, list[int]]], num_ops: int, latency: float
) -> Problem:
    """Ops of one second on four devices, with links of this latency."""
    devices = tuple(Device(name=f"d{i}", kind="k", memory=1e9) for i in range(4))
    links = tuple(
        Link(source=a.name, target=b.name, latency=latency, bandwidth=1e12)
        for a in devices
        for b in devices
        if a != b
    )
    graph = ComputationGraph.from_tensors([f"op{i}" for i in range(num_ops)], tensors)
    return build_problem(
        "equal", graph, Cluster(devices, links), {"k": [1.0] * num_ops}
    )


def head(problem: Problem) -> np.ndarray:
    return with_serial_runs(Relaxation.of(problem)).head


FORK = [(0, 0.0, [1, 2, 3]), (1, 0.0, [4]), (2, 0.0, [4]), (3, 0.0, [4])]


@pytest.mark.parametrize(
    ("latency", "least"), [(0.0, 2.0), (0.5, 2.5), (1.5, 3.5), (2.5, 4.0), (9.0, 4.0)]
)
def test_branches_are_serial_unless_a_transfer_is_shorter(latency, least):
    assert head(equal(FORK, 5, latency))[4] == pytest.approx(least)


def test_branches_of_the_class_of_their_sum_are_serial_whatever_a_transfer_takes():
    classes = (None, "c", "c", "c", "c")
    assert head(replace(equal(FORK, 5, 0.5), colocate=classes))[4] == pytest.approx(4.0)


def test_a_run_behind_the_branches_does_not_hide_them():
    """Where the results of branches are added up, they come from the same device or elsewhere."""
    sums = [
        (0, 0.0, [1, 2, 3]),
        (1, 0.0, [4]),
        (2, 0.0, [4]),
        (3, 0.0, [5]),
        (4, 0.0, [5]),
    ]
    assert head(equal(sums, 6, 9.0))[5] == pytest.approx(5.0)
    assert head(equal(sums, 6, 0.0))[5] == pytest.approx(3.0)


@pytest.mark.parametrize(("latency", "least"), [(0.25, 0.25), (9.0, 0.75)])
def test_later_copies_wait_for_all_that_is_before_them_on_their_device(latency, least):
    """Copies of 1/4 s: the fourth b comes after four a and three b, or after a transfer."""
    problem = with_microbatches(equal([(0, 0.0, [1])], 2, latency), 4)
    assert head(problem)[-1] == pytest.approx(4 * 0.25 + least)


def test_copies_take_turns_on_a_link():
    """Four transfers of 2/4 s after the first a: the last comes after 1/4 + 4 * 2/4 s."""
    problem = equal([(0, 2.0, [1])], 2, 0.0)
    links = tuple(
        link.model_copy(update={"bandwidth": 1.0}) for link in problem.cluster.links
    )
    slow = replace(problem, cluster=Cluster(problem.cluster.devices, links))
    apart = replace(slow, pin=np.array([0, 1], dtype=np.int32))
    assert head(with_microbatches(slow, 4))[-1] == pytest.approx(4 * 0.25 + 3 * 0.25)
    assert head(with_microbatches(apart, 4))[-1] >= 4 * 0.25 + 0.5
