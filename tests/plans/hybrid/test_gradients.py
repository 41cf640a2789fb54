"""Gradients of a placed step, and what reducing them adds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import gnnplace
from gnnplace.costs import load_framework_constants
from gnnplace.placers.contract import training_chain
from gnnplace.plans.hybrid.gradients import (
    ReplicaStep,
    price_placed_step,
    time_gradient_reduction,
    with_all_reduce,
    without_updates,
)
from gnnplace.problem.microbatching import with_microbatches


def step(
    gradients: list[tuple[float, float]], *, end: float = 10.0, update: float = 1.0
) -> ReplicaStep:
    """One device: backward ends at ``end``, the step at ``end + update``."""
    rows = np.array(gradients, dtype=np.float64).reshape(-1, 2)
    ends, updates = np.array([end]), np.array([update])
    return ReplicaStep(end + update, (rows,), ends, updates, 1)


def all_reduce(pace: float, latency: float = 0.0) -> Callable[[int, float], float]:
    """So many seconds a byte, and so many whatever the size."""
    return lambda device, size: pace * size + latency


def gradient_bytes(found: ReplicaStep) -> float:
    return float(sum(rows[:, 1].sum() for rows in found.gradients))


def test_gradients_are_what_updates_read() -> None:
    """Bytes of all layers, ready when their backward ops finish."""
    problem = training_chain(num_devices=1)
    result = gnnplace.place(problem, placer="single")
    found = price_placed_step(problem, result)
    graph = problem.graph
    backward = [graph.index[f"b{i}"] for i in range(6)]
    sizes = [
        graph.size[k] for k in range(graph.num_tensors) if graph.producer[k] in backward
    ]
    assert sum(rows[:, 1].sum() for rows in found.gradients) == sum(sizes)
    work = problem.times[:, 0]
    assert found.updates[0] == pytest.approx(0.1 * work[:6].sum())
    # One device: forward and backward without a gap, whatever updates ran in between.
    assert found.backward_end[0] == pytest.approx(3 * work[:6].sum())
    assert found.gradients[0][-1, 0] == pytest.approx(3 * work[:6].sum())
    assert found.gradients[0][0, 0] == pytest.approx(
        work[:6].sum() + work[backward[-1]]
    )
    assert with_all_reduce(found, all_reduce(0.0)).exposed == pytest.approx(0.0)


def test_micro_batches_have_one_gradient() -> None:
    """Ready with the last copy; as large as before, whether the problem divides it or not."""
    whole = training_chain(num_devices=2)
    alone = price_placed_step(whole, gnnplace.place(whole, placer="single"))
    for profiled, scale in ((True, 1.0), (False, 3.0)):
        cut = with_microbatches(whole, 3, profiled=profiled)
        result = gnnplace.place(cut, placer="single")
        found = price_placed_step(cut, result, scale=scale)
        assert gradient_bytes(found) == pytest.approx(gradient_bytes(alone))
    finish = without_updates(cut, result.simulation)
    last = [finish[cut.graph.index[f"b{i}#2"]] for i in range(6)]
    assert sorted(found.gradients[0][:, 0]) == pytest.approx(sorted(last))


def test_reducing_overlaps_with_the_backward_pass() -> None:
    """By hand: gradients at 4, 7 and 10 s; a bucket each, 2 s, then the update."""
    found = step([(4.0, 1e8), (7.0, 1e8), (10.0, 1e8)])
    parts = with_all_reduce(found, all_reduce(2e-8))
    # The third is reduced from 10 to 12 s; the two that are hidden slow the backward pass down.
    share = load_framework_constants("pytorch")["overlap_replicas"]
    assert (parts.alone, parts.all_reduce, parts.exposed) == pytest.approx(
        (11.0, 6.0, 2.0 + share * 4.0)
    )
    slow = all_reduce(5e-8)  # 4-9, 9-14, 14-19
    assert with_all_reduce(found, slow).total == pytest.approx(20.0 + share * 6.0)


def test_without_overlap_all_of_it_is_exposed() -> None:
    """Turned off."""
    found = step([(4.0, 1e8), (7.0, 1e8), (10.0, 1e8)])
    off = with_all_reduce(found, all_reduce(2e-8, 0.1), overlap=False)
    assert off.exposed == pytest.approx(off.all_reduce) == pytest.approx(6.3)


def test_buckets_wait_for_their_last_gradient() -> None:
    """Gradients as they come, until there is enough; what is left is one more."""
    rows = np.array([[1.0, 10e6], [2.0, 20e6], [3.0, 5e6], [4.0, 1e6]])
    asked: list[float] = []
    done, spent = time_gradient_reduction(rows, lambda size: asked.append(size) or 0.5)
    assert asked == [30e6, 6e6]
    assert (done, spent) == (4.5, 1.0)
    assert time_gradient_reduction(rows[:0], lambda size: 1.0) == (0.0, 0.0)


def test_the_slowest_ring_decides() -> None:
    """Two devices, one of which has nothing to reduce."""
    rows = (np.array([[5.0, 100.0]]), np.empty((0, 2)))
    found = ReplicaStep(11.0, rows, np.array([10.0, 8.0]), np.array([1.0, 1.0]), 1)
    parts = with_all_reduce(found, all_reduce(0.1))
    # 5 + 10 s of reducing, 5 of them beside the backward pass, and 1 s of update
    share = load_framework_constants("pytorch")["overlap_replicas"]
    assert parts.total == pytest.approx(16.0 + share * 5.0)
    assert parts.all_reduce == pytest.approx(10.0)
