from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from gnnplace.graph import ComputationGraph
from gnnplace.graph.narrow import (
    bundle_tensors,
    compute_crossing_bytes,
    cut_line,
    find_leading_elsewhere,
    split_cycles,
)
from tests.random_problems import random_problem, seeds


def all_cuts(work, crossing, count):
    """Least sum of squares and prices over every set of cuts, by brute force."""
    size, best = len(work), np.inf
    narrow = np.quantile(crossing, 0.25)
    for mask in range(2 ** (size - 1)):
        cut = [i + 1 for i in range(size - 1) if mask >> i & 1]
        if len(cut) < count:
            best = min(best, value(work, crossing, cut, count, narrow))
    return best


def value(work, crossing, cut, count, narrow):
    mean = work.sum() / count
    parts = np.split(work, cut)
    return sum((part.sum() / mean) ** 2 for part in parts) + sum(
        0.3 * crossing[i - 1] / narrow for i in cut
    )


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_segments_are_the_best_of_all_cuts(seed):
    rng = np.random.default_rng(seed)
    # At most one place a bin, so that all are candidates, and no segment above the longest.
    work, crossing = np.ones(7), rng.uniform(1.0, 9.0, 6)
    segment = cut_line(work, crossing, 3)
    assert (np.diff(segment) >= 0).all()
    assert segment.max() < 3
    cut = list(np.flatnonzero(np.diff(segment)) + 1)
    narrow = np.quantile(crossing, 0.25)
    assert np.isclose(
        value(work, crossing, cut, 3, narrow), all_cuts(work, crossing, 3)
    )


def test_no_cut_where_none_may_be():
    crossing = np.full(9, np.inf)
    assert (cut_line(np.ones(10), crossing, 4) == 0).all()
    crossing[4] = 1.0
    assert cut_line(np.ones(10), crossing, 4).tolist() == [0] * 5 + [1] * 5


def test_a_tensor_crosses_every_place_up_to_its_last_consumer_once():
    graph = ComputationGraph.from_tensors(
        list("abcd"), [(0, 5.0, [1, 3]), (1, 2.0, [2])]
    )
    place = np.arange(4, dtype=np.int32)
    assert compute_crossing_bytes(graph, place, 4).tolist() == [5.0, 7.0, 5.0]
    place[3] = -1
    assert compute_crossing_bytes(graph, place, 4).tolist() == [5.0, 2.0, 0.0]


def test_weight_gradients_lead_to_no_other_segment():
    # a -> b is a gradient from one segment to the next, a -> c a weight's gradient.
    graph = ComputationGraph.from_tensors(list("abc"), [(0, 1.0, [1, 2])])
    segment = np.array([1, 0, 1], dtype=np.int32)
    arrays = (graph.topological_order, graph.successor_offset, graph.successor)
    found = find_leading_elsewhere(*arrays, np.ones(3, dtype=bool), segment)
    assert found.tolist() == [True, False, False]


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_split_groups_make_no_cycle_and_lie_within_the_groups(seed):
    rng = np.random.default_rng(seed)
    graph = random_problem(rng, 40, 3).graph
    group = rng.integers(0, 6, graph.num_ops).astype(np.int32)
    split = split_cycles(graph, group)
    for k in range(split.max() + 1):
        assert len(set(group[split == k])) == 1
    source, target, _ = graph.edges
    links = [
        (a, b) for a, b in zip(split[source], split[target], strict=True) if a != b
    ]
    names = [str(k) for k in range(split.max() + 1)]
    tensors = [(int(a), 1.0, [int(b)]) for a, b in set(links)]
    ComputationGraph.from_tensors(names, tensors)  # raises where there is a cycle


def test_bundles_keep_bytes_and_consumers():
    graph = ComputationGraph.from_tensors(
        list("abc"), [(0, 1.0, [1, 2]), (0, 2.0, [2, 1]), (0, 4.0, [2]), (1, 8.0, [2])]
    )
    assert bundle_tensors(graph).size.tolist() == [3.0, 4.0, 8.0]
    assert bundle_tensors(graph).edges[2].sum() == graph.edges[2].sum()


def one_by_one(graph):
    """What ``bundle_tensors`` makes, tensor by tensor."""
    size = {}
    for k in range(graph.num_tensors):
        key = (int(graph.producer[k]), tuple(sorted(graph.consumers(k).tolist())))
        size[key] = size.get(key, 0.0) + float(graph.size[k])
    return [(made, some, list(taken)) for (made, taken), some in size.items()]


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_bundles_are_those_made_tensor_by_tensor(seed):
    rng = np.random.default_rng(seed)
    ops = int(rng.integers(1, 12))
    tensors = [
        (
            k,
            float(rng.integers(1, 9)),
            rng.permutation(np.arange(k + 1, ops))[: rng.integers(4)],
        )
        for k in rng.integers(ops, size=rng.integers(0, 60)).tolist()
    ]
    graph = ComputationGraph.from_tensors([str(i) for i in range(ops)], tensors)
    made = bundle_tensors(graph)
    found = [
        (int(made.producer[k]), float(made.size[k]), made.consumers(k).tolist())
        for k in range(made.num_tensors)
    ]
    assert found == one_by_one(graph)
