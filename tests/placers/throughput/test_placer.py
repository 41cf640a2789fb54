"""The throughput objective as a whole: optimal on small problems, bounded on all, never silent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gnnplace
from gnnplace.errors import InfeasibleError, InputError, UnsupportedError
from gnnplace.placers import SearchSpace
from gnnplace.placers.contract import branches, build_barred_chain, training_chain
from gnnplace.placers.throughput import Throughput, ThroughputResult
from gnnplace.placers.throughput.placer import (
    make_throughput_placer as throughput_placer,
)
from gnnplace.placers.throughput.split import depth_first, make_blocks
from gnnplace.problem import Problem
from gnnplace.problem.cluster import Cluster, Device, Link, make_preset
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.simulation import simulate
from tests.placers.throughput.throughput_problems import (
    brute_force,
    chain,
    plain_interval,
    random_problem,
    uniform_cluster,
)


def place(
    problem: Problem, placer: str = "best", budget: float = 0.0
) -> ThroughputResult:
    """The result for the throughput objective."""
    found = gnnplace.place(
        problem, placer=placer, budget=budget, objective=gnnplace.THROUGHPUT
    )
    assert isinstance(found, ThroughputResult)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_small_problems_are_solved(seed: int) -> None:
    """Without a budget: the optimum of brute force, and a bound."""
    problem = random_problem(seed)
    best = brute_force(problem)[0]
    found = place(problem)
    assert found.interval == pytest.approx(best)
    assert found.interval == plain_interval(problem, found.placement.device)
    assert found.interval_bound <= best * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(0, 60, 4))
def test_never_worse_than_the_best_contiguous_split(seed: int) -> None:
    """Of all contiguous splits, not of one order's."""
    problem = random_problem(seed, uniform=True)
    contiguous = brute_force(problem)[1]
    for placer in ("contiguous", "best"):
        assert place(problem, placer).interval <= contiguous * (1 + 1e-9)


def test_a_chain_has_a_known_optimum() -> None:
    """Twelve equal layers on four devices: three each, inner stages receive and send one tensor."""
    problem = chain([2.0] * 12, 4.0, uniform_cluster(4))
    found = place(problem, "contiguous")
    # Stages of 2, 3, 3 and 4 layers would be worse: 3 + 3 + 3 + 3 gives 6 + 2 * 1.5.
    assert found.interval == 9.0


def test_slow_links_leave_one_device() -> None:
    """No split pays where a tensor takes longer than all work."""
    found = place(chain([1.0] * 6, 400.0, uniform_cluster(3)))
    assert found.interval == found.step_time == 6.0
    assert len(set(found.placement.device.tolist())) == 1


def test_pins_classes_and_kinds_are_kept() -> None:
    """With micro-batches as well, whose copies share a device."""
    problem = training_chain()
    pin = np.full(problem.num_ops, -1, dtype=np.int32)
    pin[problem.graph.index["f2"]] = 2
    pinned = replace(problem, pin=pin)
    for cut in (
        pinned,
        with_microbatches(problem, 3),
        branches(),
        build_barred_chain(),
    ):
        found = place(cut)
        simulation = simulate(cut, found.placement)
        assert simulation.feasible
        assert (
            simulation.step_time
            == found.step_time
            == found.placement.predicted_step_time
        )
        assert (
            found.interval_bound
            <= found.interval
            == plain_interval(cut, found.placement.device)
        )


def test_memory_is_kept_by_the_simulated_step_too() -> None:
    """State that must be spread, and activations that would not fit beside it."""
    found = place(training_chain(memory=48.0))
    assert found.simulation.feasible
    assert (found.peak_memory <= 48.0).all()


def test_what_cannot_be_placed_is_refused() -> None:
    """Nothing fits."""
    with pytest.raises(InfeasibleError):
        place(training_chain(memory=8.0))


def test_the_same_seed_gives_the_same_placement() -> None:
    """With budget 0."""
    problem = training_chain(num_layers=12)
    first, second = (Throughput().place(problem, seed=5) for _ in range(2))
    assert first.placement.device.tolist() == second.placement.device.tolist()


def test_two_tier_clusters_and_a_budget() -> None:
    """A real preset: near the bound of equal shares, and better than a step-time placer's."""
    kinds = {"a100": np.full(64, 1e-3)}
    problem = chain([1e-3] * 64, 1e6, make_preset("two-tier-a100-2x4"))
    problem = replace(problem, time=kinds)
    found = place(problem, budget=1.0)
    assert found.interval_bound >= 8e-3 * (1 - 1e-9)
    assert found.interval <= 8.6e-3


def test_only_placers_for_throughput_take_the_objective() -> None:
    """Others say what to use; orders, checkpoints and no workers are refused."""
    with pytest.raises(UnsupportedError, match="best, contiguous"):
        throughput_placer("heft")
    with pytest.raises(UnsupportedError, match="use best"):
        throughput_placer("exact")
    with pytest.raises(InputError, match="order"):
        throughput_placer("best", order="topological")
    with pytest.raises(InputError, match="workers"):
        throughput_placer("best", workers=0)
    with pytest.raises(InputError, match="beauty"):
        gnnplace.place(branches(), objective="beauty")
    with pytest.raises(InputError, match="workers"):
        gnnplace.place(branches(), placer="exact", workers=0)


def test_drawn_orders_are_topological() -> None:
    """Depth first, and at random."""
    space = SearchSpace(training_chain(num_layers=7))
    blocks = make_blocks(space)
    rank = {u: b for b, units in enumerate(blocks.units) for u in units}
    for rng in (None, np.random.default_rng(1)):
        place_of = {rank[u]: p for p, u in enumerate(depth_first(blocks, rng).tolist())}
        assert all(
            place_of[a] < place_of[b]
            for b, many in enumerate(blocks.predecessors)
            for a in many
        )


@pytest.mark.parametrize("seed", range(0, 20, 4))
def test_unequal_links_are_searched_all_the_same(seed: int) -> None:
    """Accelerators that are nearer to a slow CPU than to each other: the optimum of brute force."""
    problem = random_problem(seed, uniform=True)
    names = ("a0", "a1", "c0")
    devices = tuple(
        Device(name=name, kind="fast" if name[0] == "a" else "slow", memory=1e9)
        for name in names
    )
    rates = {"aa": 1.0, "ac": 2.0, "ca": 2.0}
    links = tuple(
        Link(source=x, target=y, latency=0.0, bandwidth=rates[x[0] + y[0]])
        for x in names
        for y in names
        if x != y
    )
    times = {"fast": problem.time["fast"], "slow": 3 * problem.time["fast"]}
    near = replace(problem, cluster=Cluster(devices, links), time=times)
    assert place(near).interval == pytest.approx(brute_force(near)[0])
    assert place(near, "contiguous").interval >= brute_force(near)[1] * (1 - 1e-9)


def test_a_published_format_with_its_backward_nodes(tmp_path: Path) -> None:
    """dnn-partitioning: a layer's nodes share a class; the best contiguous split by hand.

    Layers take 1, 3, 1 and 3 ms forward and backward alike. Two accelerators: between layers 1 and
    2 go an activation and a gradient of 0.5 ms to CPU memory, 1 ms between accelerators.
    """
    times = [1.0, 3.0, 1.0, 3.0]
    nodes = [
        {
            "id": 10 * backward + layer,
            "cpuLatency": 99.0,
            "fpgaLatency": seconds,
            "isBackwardNode": bool(backward),
            "colorClass": layer,
            "size": 1,
        }
        for backward in (0, 1)
        for layer, seconds in enumerate(times)
    ]
    pairs = [(0, 1), (1, 2), (2, 3), (3, 13), (13, 12), (12, 11), (11, 10)]
    edges = [{"sourceId": a, "destId": b, "cost": 0.5} for a, b in pairs]
    file = {
        "maxSizePerFPGA": 1e12,
        "maxFPGAs": 2,
        "maxCPUs": 0,
        "nodes": nodes,
        "edges": edges,
    }
    (tmp_path / "x.json").write_text(json.dumps(file))
    problem = gnnplace.convert(tmp_path / "x.json", "dnn-partitioning")
    found = place(problem, "contiguous")
    # 2 * (1 + 3) ms of work, 2 * 1 ms of tensors.
    assert found.interval == pytest.approx(10e-3)
    assert place(problem).interval == pytest.approx(brute_force(problem)[0])
