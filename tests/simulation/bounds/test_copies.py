from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnplace.graph import ComputationGraph
from gnnplace.graph.orders import downward_rank
from gnnplace.placers.contract import training_chain
from gnnplace.problem import build_problem
from gnnplace.problem.cluster import Cluster, Device
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.simulation import Simulator
from gnnplace.simulation.bounds.copies import find_copies, sort_by_rank
from gnnplace.simulation.bounds.relaxation import (
    Relaxation,
    ancestors,
    transpose_relation,
)
from gnnplace.simulation.compiled import compute_least_times
from tests.random_problems import random_order, random_problem, seeds


def test_copies_are_told_by_name_and_updates_are_alone():
    problem = with_microbatches(training_chain(), 3)
    copies = find_copies(problem)
    updates = problem.phase == 2
    assert sorted(set(copies.count.tolist())) == [1, 3]
    assert (copies.count[copies.of[updates]] == 1).all()
    assert (copies.count[copies.of[~updates]] == 3).all()
    assert copies.full.all()


def test_a_graph_of_copies_with_a_cycle_has_copies_of_one():
    names = ["a#0", "b#0", "a#1", "b#1"]
    graph = ComputationGraph.from_tensors(names, [(0, 1.0, [1]), (3, 1.0, [2])])
    cluster = training_chain().cluster
    problem = build_problem(
        "crossed",
        graph,
        cluster,
        {cluster.kinds[0]: [1.0] * 4},
        microbatches=2,
        colocate=("a", "b", "a", "b"),
    )
    assert find_copies(problem).count.tolist() == [1, 1, 1, 1]


@settings(max_examples=60, deadline=None)
@given(seed=seeds, microbatches=st.integers(1, 3))
def test_ancestors_are_those_of_the_graph(seed, microbatches):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 80, 2, microbatches=microbatches)
    copies = find_copies(problem)
    unit = rng.integers(0, 4, len(copies.first)).astype(np.int32)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(unit)))
    full = copies.full
    graph.add_edges_from(zip(copies.source[full], copies.target[full], strict=True))
    offset, earlier = ancestors(copies, unit)
    back_offset, later = transpose_relation((offset, earlier))
    for x in range(len(unit)):
        found = set(earlier[offset[x] : offset[x + 1]].tolist())
        assert found == {y for y in nx.ancestors(graph, x) if unit[y] == unit[x]}
        after = set(later[back_offset[x] : back_offset[x + 1]].tolist())
        assert after == {y for y in nx.descendants(graph, x) if unit[y] == unit[x]}


@settings(max_examples=60, deadline=None)
@given(seed=seeds, microbatches=st.integers(1, 4), num_devices=st.integers(1, 4))
def test_copies_start_no_earlier_than_their_ranks_say(seed, microbatches, num_devices):
    rng = np.random.default_rng(seed)
    problem = random_problem(
        rng, 8, num_devices, constrained=True, plain=True, microbatches=microbatches
    )
    relaxation, simulator = Relaxation.of(problem), Simulator(problem)
    copies = relaxation.copies
    heads = downward_rank(
        problem.graph,
        compute_least_times(problem),
        np.zeros(len(problem.graph.successor)),
    )
    assert (relaxation.head >= sort_by_rank(copies, heads)).all()
    for _ in range(5):
        chosen = rng.integers(0, num_devices, problem.num_units)
        chosen = np.where(
            problem.unit_allowed[np.arange(len(chosen)), chosen], chosen, -1
        )
        some = problem.unit_allowed.argmax(axis=1)
        device = np.where(chosen < 0, some, chosen)[problem.unit_of].astype(np.int32)
        result = simulator.run(device, random_order(problem, rng))
        assert (sort_by_rank(copies, result.start) >= relaxation.head - 1e-9).all()
        left = result.step_time - result.finish
        assert (sort_by_rank(copies, left) >= relaxation.tail - 1e-9).all()


def test_a_class_at_both_ends_runs_all_of_its_copies_before_the_last():
    """a and c share a device: the last c comes after every a and every other c."""
    devices = tuple(Device(name=f"d{i}", kind="k", memory=1e9) for i in range(2))
    graph = ComputationGraph.from_tensors(
        ["a", "b", "c"], [(0, 0.0, [1]), (1, 0.0, [2])]
    )
    problem = build_problem(
        "tied",
        graph,
        Cluster(devices, ()),
        {"k": [4.0, 1.0, 4.0]},
        colocate=("t", None, "t"),
    )
    head = Relaxation.of(with_microbatches(problem, 4)).head
    assert head[-1] == pytest.approx(4 * 1.0 + 3 * 1.0)
    free = replace(problem, colocate=(None, None, None))
    assert Relaxation.of(with_microbatches(free, 4)).head[-1] == pytest.approx(
        1 + 0.25 + 3
    )
