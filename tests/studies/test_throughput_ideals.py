"""Ideals, and the best contiguous split over them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from benchmarks.throughput_ideals import ideals_of, split_ideals
from gnnplace.placers import SearchSpace
from gnnplace.placers.contract import training_chain
from gnnplace.placers.throughput.load import make_flows
from gnnplace.placers.throughput.split import make_blocks, precedence
from gnnplace.placers.throughput.stages import list_device_sorts
from tests.placers.throughput.throughput_problems import brute_force, random_problem


@pytest.mark.parametrize("seed", range(10))
def test_ideals_are_all_sets_that_have_their_predecessors(seed: int) -> None:
    """Counted one by one; every growth adds its block."""
    blocks = make_blocks(SearchSpace(random_problem(seed)))
    count = len(blocks.units)
    closed = 0
    for inside in product((False, True), repeat=count):
        closed += all(
            inside[p] for b in range(count) if inside[b] for p in blocks.predecessors[b]
        )
    ideals = ideals_of(blocks, 10**6)
    assert ideals is not None
    assert len(ideals.offset) - 1 == closed
    assert ideals_of(blocks, closed - 2) is None


def test_backward_work_stays_with_its_layer() -> None:
    """A training chain of colocated layers is a chain of blocks, forward order first."""
    space = SearchSpace(training_chain(num_layers=5))
    blocks = make_blocks(space)
    assert [len(units) for units in blocks.units] == [1] * 5
    layers = [
        space.problem.colocate[int(np.argmax(space.problem.unit_of == u[0]))]
        for u in blocks.units
    ]
    assert layers == [f"w{i}" for i in range(5)]


def test_units_on_a_cycle_are_one_block() -> None:
    """Two ops of one class with another unit between them."""
    problem = random_problem(0)
    graph = precedence(SearchSpace(problem))
    blocks = make_blocks(SearchSpace(problem))
    assert sorted(u for units in blocks.units for u in units) == sorted(graph.nodes)
    rank = {u: b for b, units in enumerate(blocks.units) for u in units}
    assert all(rank[a] <= rank[b] for a, b in graph.edges)


@pytest.mark.parametrize("seed", range(30))
def test_the_value_bounds_all_contiguous_splits(seed: int) -> None:
    """Never above the best of them, equal where each flow has one other stage."""
    problem = random_problem(seed, uniform=True, tight=seed % 3 == 0)
    space = SearchSpace(problem)
    flows = make_flows(space)
    blocks = make_blocks(space)
    ideals = ideals_of(blocks, 10**6)
    assert ideals is not None
    found = split_ideals(flows, list_device_sorts(flows), blocks, ideals, 1e9, 10**6)
    contiguous = brute_force(problem)[1]
    if found is None:
        assert contiguous == np.inf
        return
    assert found.relaxed <= contiguous * (1 + 1e-9)
    assert sorted(found.order.tolist()) == list(range(problem.num_units))
    if max(np.diff(flows.offset), default=0) <= 1:
        assert found.relaxed == pytest.approx(contiguous)


def test_it_gives_up_above_a_number_of_pairs() -> None:
    """None, not a wrong value."""
    problem = random_problem(4, uniform=True)
    space = SearchSpace(problem)
    flows, blocks = make_flows(space), make_blocks(space)
    ideals = ideals_of(blocks, 10**6)
    assert ideals is not None
    assert split_ideals(flows, list_device_sorts(flows), blocks, ideals, 1e9, 3) is None
