from __future__ import annotations

from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnplace.graph import ComputationGraph
from gnnplace.placers.exact import Exact
from gnnplace.problem import Problem, build_problem
from gnnplace.problem.cluster import Cluster, Device, Link
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.simulation import Simulator, lower_bound, lower_bounds
from gnnplace.simulation.bounds import quick_bounds
from gnnplace.simulation.bounds.relaxation import Relaxation
from gnnplace.simulation.bounds.transfers import with_transfers
from tests.random_problems import random_order, random_problem, seeds

EXACT = 1 - 1e-9


def tightened(problem: Problem, rng: np.random.Generator) -> Problem:
    """The same on devices that hold a part of the state only, each its own."""
    total = problem.state.sum() + problem.graph.size.max(initial=0.0)
    devices = tuple(
        d.model_copy(update={"memory": float(total * rng.uniform(0.3, 1.5))})
        for d in problem.cluster.devices
    )
    return replace(problem, cluster=Cluster(devices, problem.cluster.links))


def drawn(rng: np.random.Generator, num_ops: int, num_devices: int) -> Problem:
    """A problem of mixed kinds, classes, pins and shared channels, cut or not, tight or not."""
    problem = random_problem(
        rng,
        num_ops,
        num_devices,
        complete=bool(rng.random() < 0.8),
        constrained=True,
        microbatches=int(rng.choice([1, 2, 3])),
    )
    return tightened(problem, rng) if rng.random() < 0.5 else problem


def spread(problem: Problem, unit_device: np.ndarray) -> np.ndarray:
    return np.asarray(unit_device, dtype=np.int32)[problem.unit_of]


def orders(problem: Problem) -> list[np.ndarray]:
    """All topological orders."""
    graph = problem.graph
    waiting = np.diff(graph.predecessor_offset).copy()
    found: list[np.ndarray] = []

    def extend(order: list[int]) -> None:
        if len(order) == problem.num_ops:
            found.append(np.array(order, dtype=np.int32))
        for op in range(problem.num_ops):
            if waiting[op] == 0 and op not in order:
                for other in graph.successors(op):
                    waiting[other] -= 1
                extend([*order, op])
                for other in graph.successors(op):
                    waiting[other] += 1

    extend([])
    return found


def optimum(problem: Problem) -> float:
    """The shortest step of all devices and orders that run and fit, in seconds."""
    simulator, every = Simulator(problem), np.stack(orders(problem))
    choices = [np.flatnonzero(row).tolist() for row in problem.unit_allowed]
    devices = [spread(problem, np.array(chosen)) for chosen in product(*choices)]
    each = np.array(devices, dtype=np.int32).reshape(-1, problem.num_ops)
    device = np.repeat(each, len(every), axis=0)
    order = np.tile(every, (len(devices), 1))
    times = simulator.step_times(device, order)
    for k in np.argsort(times):
        if times[k] == np.inf or simulator.excess(device[k], order[k])[1] == 0:
            return float(times[k])
    return np.inf


@settings(max_examples=25, deadline=None)
@given(seed=seeds, num_devices=st.integers(1, 3))
def test_no_bound_is_above_the_optimum(seed, num_devices):
    rng = np.random.default_rng(seed)
    microbatches = int(rng.choice([1, 2]))
    problem = random_problem(
        rng,
        5 if microbatches == 1 else 3,
        num_devices,
        complete=bool(rng.random() < 0.8),
        constrained=True,
        microbatches=microbatches,
    )
    problem = tightened(problem, rng) if rng.random() < 0.5 else problem
    best = optimum(problem)
    for name, value in asdict(lower_bounds(problem)).items():
        assert value <= best, name


@settings(max_examples=80, deadline=None)
@given(seed=seeds, num_ops=st.integers(1, 30), num_devices=st.integers(1, 5))
def test_no_bound_is_above_a_placement_that_fits(seed, num_ops, num_devices):
    rng = np.random.default_rng(seed)
    problem = drawn(rng, num_ops, num_devices)
    simulator, allowed = Simulator(problem), problem.unit_allowed
    if not allowed.any(axis=1).all():
        return
    bounds, least = lower_bounds(problem), np.inf
    for turn in range(10):
        preference = rng.random((1 if turn % 2 else problem.num_units, num_devices))
        device = spread(problem, np.where(allowed, preference, -1.0).argmax(axis=1))
        order = simulator.complete(device) if turn < 8 else random_order(problem, rng)
        seconds, excess = simulator.excess(device, order)
        if excess == 0:
            least = min(least, seconds)
    for name, value in asdict(bounds).items():
        assert value <= least, name


@pytest.mark.parametrize("microbatches", [1, 2])
def test_no_bound_is_above_what_exact_finds(microbatches):
    for seed in range(2):
        rng = np.random.default_rng(seed)
        problem = random_problem(rng, 6, 2, constrained=True, microbatches=microbatches)
        result = Exact().place(problem)
        assert lower_bound(problem) <= result.step_time


def line(
    num_layers: int, microbatches: int, num_devices: int, **link: float
) -> Problem:
    """Equal layers one after the other, of one second each before the batch is cut."""
    devices = tuple(
        Device(name=f"d{i}", kind="k", memory=1e9) for i in range(num_devices)
    )
    costs = {"latency": 0.0, "bandwidth": 1.0} | link
    links = tuple(
        Link(source=a.name, target=b.name, **costs)
        for a in devices
        for b in devices
        if a != b
    )
    tensors = [(i, 1.0, [i + 1]) for i in range(num_layers - 1)]
    graph = ComputationGraph.from_tensors(
        [f"layer{i}" for i in range(num_layers)], tensors
    )
    problem = build_problem(
        "line", graph, Cluster(devices, links), {"k": [1.0] * num_layers}
    )
    return with_microbatches(problem, microbatches)


@pytest.mark.parametrize("microbatches", [1, 2, 4, 8])
def test_a_pipeline_with_a_device_a_layer_is_proven_optimal(microbatches):
    problem = line(5, microbatches, 5, bandwidth=1e12)
    bounds = lower_bounds(problem)
    seconds = (5 + microbatches - 1) / microbatches
    assert bounds.critical_path == pytest.approx(seconds)
    device = spread(problem, problem.unit_of[:5])
    simulator = Simulator(problem)
    assert simulator.step_time(device, simulator.complete(device)) == pytest.approx(
        seconds
    )


def test_fill_sees_that_a_pipeline_must_fill_and_drain():
    bounds = lower_bounds(line(32, 8, 8, bandwidth=1e12))
    assert bounds.work == pytest.approx(4.0)
    # Seven devices wait for 1/8 s, 2/8 s, ... at the beginning, and as long at the end.
    assert bounds.fill == pytest.approx(4.0 + 2 * (28 / 8) / 8, rel=0.02)
    assert bounds.best > bounds.work * 1.1


def test_slow_links_leave_all_work_on_one_device():
    problem = line(6, 4, 3, bandwidth=1e-3)
    relaxation = Relaxation.of(problem)
    without = max(relaxation.bounds().values())
    assert without < 4.0
    assert with_transfers(relaxation, without) == pytest.approx(6.0, rel=0.005)
    assert lower_bounds(problem).critical_path == pytest.approx(6.0)  # By serial runs.


def test_memory_that_holds_half_forces_a_transfer():
    problem = line(4, 1, 2, bandwidth=0.1)
    tight = tuple(
        d.model_copy(update={"memory": 30.0}) for d in problem.cluster.devices
    )
    cluster = Cluster(tight, problem.cluster.links)
    roomy = replace(problem, state=np.full(4, 10.0))
    assert lower_bound(roomy) == pytest.approx(4.0)
    assert lower_bound(replace(roomy, cluster=cluster)) == pytest.approx(
        14.0, rel=0.005
    )


def test_copies_on_different_devices_are_no_pipeline():
    """Two copies that nobody colocates may run side by side."""
    graph = ComputationGraph.from_tensors(["a#0", "a#1"], [])
    cluster = line(1, 1, 2).cluster
    problem = build_problem("free", graph, cluster, {"k": [1.0, 1.0]}, microbatches=2)
    assert lower_bound(problem) == pytest.approx(1.0)


def test_a_problem_that_nothing_can_run_has_a_bound():
    graph = ComputationGraph.from_tensors(["a"], [])
    problem = build_problem("none", graph, line(1, 1, 2).cluster, {"other": [1.0]})
    assert lower_bound(problem) == 0.0


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_quick_bounds_are_bounds_and_the_others_are_no_less(seed):
    problem = drawn(np.random.default_rng(seed), 20, 3)
    quick, full = (
        quick_bounds(problem, Simulator(problem).compiled),
        lower_bounds(problem),
    )
    assert 0 < quick.critical_path <= full.critical_path * (1 + 1e-9)
    assert quick.work <= full.work * (1 + 1e-9)
    assert quick.best <= full.best * (1 + 1e-9)
