from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnplace.errors import DeadlockError
from gnnplace.graph import ComputationGraph
from gnnplace.problem import Problem, build_problem
from gnnplace.problem.cluster import Cluster, Device, Link
from gnnplace.problem.placement import Placement, sequence_from_order
from gnnplace.simulation import (
    Simulator,
    lower_bounds,
    merge_sequences,
    simulate,
    simulator,
)
from gnnplace.simulation.simulator import KEPT, SimulatedTimeline
from tests.random_problems import random_order, random_problem, seeds
from tests.simulation.oracle import Oracle


@pytest.fixture
def as_if_large(monkeypatch):
    monkeypatch.setattr(simulator, "LARGE", 1)


def tight(problem: Problem, memory: float) -> Problem:
    """The same on devices of so many bytes."""
    given = {key: getattr(problem, key) for key in Problem.__match_args__}
    devices = tuple(
        d.model_copy(update={"memory": memory}) for d in problem.cluster.devices
    )
    return Problem(**given | {"cluster": Cluster(devices, problem.cluster.links)})


def placed(problem, rng):
    device = rng.integers(0, problem.num_devices, problem.num_ops).astype(np.int32)
    return device, random_order(problem, rng)


@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_kept_timelines_say_what_a_simulation_says(seed):
    rng = np.random.default_rng(seed)
    problem = tight(random_problem(rng, 20, 3, complete=bool(seed % 4)), 200.0)
    plain, keeping = Simulator(problem), Simulator(problem)
    for _ in range(3):
        device, order = placed(problem, rng)
        seconds, excess = plain.excess(device, order)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(simulator, "LARGE", 1)
            assert keeping.step_time(device, order) == plain.step_time(device, order)
            assert keeping.excess(device, order)[0] == seconds
            assert keeping.excess(device, order)[1] == pytest.approx(excess)
            for cutoff in (0.5 * seconds, seconds, 2 * seconds):
                if np.isfinite(cutoff):
                    found = keeping.step_time(device, order, cutoff)
                    assert found == plain.step_time(device, order, cutoff)
            run = keeping.run(device, order)
        expected = plain.run(device, order)
        assert run.faults == expected.faults
        assert run.peak_memory.tolist() == expected.peak_memory.tolist()
        np.testing.assert_array_equal(run.finish, expected.finish)


def test_a_placement_is_simulated_once(as_if_large, monkeypatch):
    made, simulate = [], SimulatedTimeline.of
    monkeypatch.setattr(
        SimulatedTimeline, "of", lambda *of: made.append(of) or simulate(*of)
    )
    rng = np.random.default_rng(0)
    problem = random_problem(rng, 20, 3)
    simulator, one = Simulator(problem), placed(problem, rng)
    for _ in range(2):
        simulator.step_time(*one)
        simulator.excess(*one)
        simulator.run(*one)
    assert len(made) == 1
    one[0][:] = (one[0] + 1) % 3  # the same array, another placement
    simulator.excess(*one)
    assert len(made) == 2
    for _ in range(2 * KEPT):
        simulator.step_time(*placed(problem, rng))
    assert len(simulator.timelines.kept) == KEPT


def test_with_a_cutoff_nothing_is_kept(as_if_large):
    rng = np.random.default_rng(0)
    problem = random_problem(rng, 20, 3)
    simulator, one = Simulator(problem), placed(problem, rng)
    assert simulator.step_time(*one, 1e9) == simulator.excess(*one, 1e9)[0]
    assert not simulator.timelines.kept


def test_nothing_is_kept_of_a_small_problem():
    rng = np.random.default_rng(0)
    problem = random_problem(rng, 20, 3)
    simulator = Simulator(problem)
    simulator.excess(*placed(problem, rng))
    assert not simulator.timelines.kept


def chain(num_devices: int = 2, **link: object):
    """a (2 s) -> 8 bytes -> b (3 s) on devices with a 4 B/s, 1 s latency link both ways."""
    devices = tuple(
        Device(name=f"d{i}", kind="k", memory=100.0) for i in range(num_devices)
    )
    links = tuple(
        Link(source=a.name, target=b.name, latency=1.0, bandwidth=4.0, **link)
        for a in devices
        for b in devices
        if a != b
    )
    graph = ComputationGraph.from_tensors(["a", "b"], [(0, 8.0, [1])])
    state = np.array([10.0, 20.0])
    return build_problem(
        "chain", graph, Cluster(devices, links), {"k": [2.0, 3.0]}, state=state
    )


def test_a_transfer_takes_bytes_over_bandwidth_plus_latency():
    result = simulate(chain(), Placement(np.array([0, 1])))
    assert result.step_time == 2 + 8 / 4 + 1 + 3
    assert result.transfers.start.tolist() == [2.0]
    assert result.transfers.end.tolist() == [4.0]
    assert result.transfers.arrival.tolist() == [5.0]
    assert result.peak_memory.tolist() == [18.0, 28.0]


def test_one_device_sends_nothing():
    result = simulate(chain(), Placement(np.array([0, 0])))
    assert result.step_time == 5.0
    assert result.peak_memory.tolist() == [38.0, 0.0]
    assert result.busy_share(2).tolist() == [1.0, 0.0]


def test_memory_over_the_limit_is_an_answer_that_names_device_and_excess():
    problem = chain()
    tight = Cluster(
        tuple(
            Device(name=d.name, kind=d.kind, memory=17.0)
            for d in problem.cluster.devices
        ),
        problem.cluster.links,
    )
    problem = build_problem(
        "t", problem.graph, tight, problem.time, state=problem.state
    )
    result = simulate(problem, Placement(np.array([0, 1])))
    assert not result.feasible
    assert result.step_time == 8.0
    assert "'d0'" in result.faults[0]
    assert "1 more than" in result.faults[0]


def test_contradicting_sequences_name_the_cycle():
    graph = ComputationGraph.from_tensors(
        ["a", "b", "c"], [(0, 1.0, [1]), (1, 1.0, [2])]
    )
    problem = build_problem("p", graph, chain().cluster, {"k": [1.0, 1.0, 1.0]})
    backwards = Placement(np.array([0, 0, 1]), (np.array([1, 0]), np.array([2])))
    with pytest.raises(DeadlockError, match=r"'a'.*'b'|'b'.*'a'"):
        simulate(problem, backwards)


def test_a_pair_without_a_link_is_infeasible():
    cluster = Cluster(chain().cluster.devices, ())
    problem = build_problem("p", chain().graph, cluster, {"k": [2.0, 3.0]})
    result = simulate(problem, Placement(np.array([0, 1])))
    assert result.step_time == np.inf
    assert any("no link from 'd0' to 'd1'" in fault for fault in result.faults)


def test_ops_of_no_time_join_the_instant_and_queue_in_op_order():
    """b finishes with c at t=2; its zero-time consumer a (a smaller index) queues before c."""
    devices = tuple(Device(name=f"d{i}", kind="k", memory=1e9) for i in range(3))
    links = tuple(
        Link(source=s, target="d2", latency=0.0, bandwidth=1.0, channel="bus")
        for s in ("d0", "d1")
    )
    graph = ComputationGraph.from_tensors(
        ["a", "b", "c", "x", "y"], [(1, 0.0, [0]), (0, 5.0, [3]), (2, 7.0, [4])]
    )
    problem = build_problem(
        "p", graph, Cluster(devices, links), {"k": [0.0, 2.0, 2.0, 1.0, 1.0]}
    )
    device = np.array([0, 0, 1, 2, 2])
    sequence = (np.array([1, 0]), np.array([2]), np.array([3, 4]))
    result = simulate(problem, Placement(device, sequence))
    assert result.start.tolist() == [2.0, 0.0, 0.0, 7.0, 14.0]


@pytest.mark.parametrize("busy", [False, True])
def test_a_busy_sender_starts_its_next_op_after_the_copy(busy):
    problem = chain(sender_busy=busy)
    graph = ComputationGraph.from_tensors(["a", "b", "c"], [(0, 8.0, [1])])
    problem = build_problem("p", graph, problem.cluster, {"k": [2.0, 3.0, 1.0]})
    placement = Placement(np.array([0, 1, 0]), (np.array([0, 2]), np.array([1])))
    assert simulate(problem, placement).start[2] == (4.0 if busy else 2.0)


@settings(max_examples=150, deadline=None)
@given(seed=seeds, num_devices=st.integers(1, 4), num_ops=st.integers(1, 14))
def test_agrees_with_the_oracle(seed, num_devices, num_ops):
    rng = np.random.default_rng(seed)
    problem = random_problem(
        rng, num_ops, num_devices, complete=bool(rng.random() < 0.8)
    )
    device = rng.integers(0, num_devices, num_ops).astype(np.int32)
    order = random_order(problem, rng)
    sequence = sequence_from_order(device, order, num_devices)
    result = simulate(problem, Placement(device, sequence))
    oracle = Oracle(problem, device.tolist(), [ops.tolist() for ops in sequence])
    if oracle.no_link:
        assert result.step_time == np.inf
        return
    assert result.step_time == pytest.approx(oracle.step_time, abs=1e-9)
    assert result.start == pytest.approx(
        [float(oracle.start[i]) for i in range(num_ops)], abs=1e-9
    )
    assert result.peak_memory == pytest.approx(oracle.peak_memory(), abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(seed=seeds)
def test_any_sequences_deadlock_in_both_or_agree(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 6, 2)
    device = rng.integers(0, 2, 6).astype(np.int32)
    sequence = sequence_from_order(device, rng.permutation(6).astype(np.int32), 2)
    oracle = Oracle(problem, device.tolist(), [ops.tolist() for ops in sequence])
    if oracle.deadlock:
        with pytest.raises(DeadlockError):
            merge_sequences(problem, sequence)
    else:
        result = simulate(problem, Placement(device, sequence))
        assert result.step_time == pytest.approx(oracle.step_time, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(seed=seeds, num_devices=st.integers(1, 5))
def test_bounds_hold_and_batches_agree(seed, num_devices):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 20, num_devices, constrained=True)
    simulator = Simulator(problem)
    devices = rng.integers(0, num_devices, (5, 20)).astype(np.int32)
    devices = np.stack([_colocated(problem, device) for device in devices])
    orders = np.stack([random_order(problem, rng) for _ in range(5)])
    times = simulator.step_times(devices, orders)
    one_by_one = [
        simulator.step_time(d, o) for d, o in zip(devices, orders, strict=True)
    ]
    assert times.tolist() == one_by_one
    bounds = lower_bounds(problem)
    assert times.min() >= bounds.best
    for device, best in zip(devices, times, strict=True):
        completed = simulator.complete(device)
        assert sorted(completed.tolist()) == list(range(20))
        assert np.isfinite(simulator.step_time(device, completed))
        assert best >= bounds.critical_path


def _colocated(problem, device):
    """The devices of units' first ops, or their first allowed one: pins, kinds, forbids."""
    unit_device = device[np.unique(problem.unit_of, return_index=True)[1]]
    allowed = problem.unit_allowed
    free = allowed[np.arange(problem.num_units), unit_device]
    unit_device = np.where(free, unit_device, allowed.argmax(axis=1))
    return unit_device[problem.unit_of].astype(np.int32)


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_faster_links_never_slow_a_fixed_placement_with_own_channels(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 15, 3, plain=True)
    device, order = rng.integers(0, 3, 15).astype(np.int32), random_order(problem, rng)
    faster = Cluster(
        problem.cluster.devices,
        tuple(
            link.model_copy(update={"bandwidth": link.bandwidth * 2})
            for link in problem.cluster.links
        ),
    )
    other = build_problem("f", problem.graph, faster, problem.time)
    slow, fast = Simulator(problem), Simulator(other)
    assert fast.step_time(device, order) <= slow.step_time(device, order)


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_a_cutoff_stops_only_what_is_above_it(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 15, 3)
    device, order = rng.integers(0, 3, 15).astype(np.int32), random_order(problem, rng)
    simulator = Simulator(problem)
    exact = simulator.step_time(device, order)
    assert simulator.step_time(device, order, exact) == exact
    assert simulator.step_time(device, order, exact * 0.999 - 1e-9) == np.inf


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_excess_is_that_of_the_exact_peak(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 15, 3)
    limit = float(rng.integers(20, 400))
    cluster = Cluster(
        tuple(d.model_copy(update={"memory": limit}) for d in problem.cluster.devices),
        problem.cluster.links,
    )
    tight = build_problem(
        "t", problem.graph, cluster, problem.time, state=problem.state
    )
    device, order = rng.integers(0, 3, 15).astype(np.int32), random_order(tight, rng)
    simulator = Simulator(tight)
    seconds, excess = simulator.excess(device, order)
    result = simulator.run(device, order)
    assert seconds == result.step_time
    assert excess == pytest.approx(np.maximum(result.peak_memory - limit, 0).sum())
    assert result.feasible == (excess == 0)
    for d, (_, curve) in enumerate(result.memory_curve):
        assert curve.max() == pytest.approx(result.peak_memory[d])
