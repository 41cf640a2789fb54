"""

What DDP is said to cost: the whole step on a share of the batch, and one all-reduce.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from gnnplace.sharding import best_strategy
from gnnplace.sharding.answers import SplitOptions, shard_network, shard_tables
from gnnplace.sharding.captured.costs import MeshMachine
from gnnplace.sharding.captured.layout import REPLICATED, Place
from gnnplace.sharding.captured.problem import (
    CapturedProblem,
    build_captured_tables,
    complete_strategy,
    ddp_parts,
    price_captured_parts,
)
from gnnplace.sharding.captured.split import layer_graph
from tests.sharding.captured_graphs import captured_data_parallel, perceptron, shared

MACHINE = MeshMachine(flops=100.0, bandwidth=1.0, latency=0.5)
FLOPS, BANDWIDTH = 1e9, 1e6


@pytest.fixture(
    params=[(perceptron, (2,)), (perceptron, (2, 2)), (shared, (2,)), (shared, (2, 2))]
)
def captured(request):
    make, mesh = request.param
    return CapturedProblem(make(), mesh, MACHINE)


def test_tables_and_parts_agree(captured):
    problem = build_captured_tables(captured)
    rng = np.random.default_rng(0)
    for _ in range(50):
        chosen = tuple(int(rng.integers(len(cost))) for cost in problem.cost)
        parts = price_captured_parts(captured, chosen)
        assert parts.total == pytest.approx(problem.value(chosen))
        assert parts.memory == pytest.approx(problem.bytes(chosen))


def test_the_search_is_exact():
    problem = build_captured_tables(CapturedProblem(perceptron(), (2,), MACHINE))
    sizes = [range(len(cost)) for cost in problem.cost]
    least = min(problem.value(chosen) for chosen in itertools.product(*sizes))
    assert best_strategy(problem).cost == pytest.approx(least)


def test_nothing_costs_more_than_data_parallelism(captured):
    problem = build_captured_tables(captured)
    parallel = captured_data_parallel(captured)
    assert best_strategy(problem).cost <= problem.value(parallel) * (1 + 1e-12)


def test_data_parallelism_only_adds_up_gradients():
    captured = CapturedProblem(perceptron(), (2, 2), MACHINE)
    parts = price_captured_parts(captured, captured_data_parallel(captured))
    assert parts.reduction == parts.resharding == 0.0
    # Two dimensions, two weights.
    assert parts.gradient == pytest.approx(2 * 256 + 2 * 256)


def test_columns_then_rows_is_best_where_the_batch_is_small():
    machine = MeshMachine(flops=1.0, bandwidth=1.0)
    captured = CapturedProblem(perceptron(batch=2, width=8, hidden=64), (2,), machine)
    chosen = best_strategy(build_captured_tables(captured)).configuration
    words = [captured.options[i][chosen[i]] for i in range(3)]
    assert words == [("out",), ("1",), ("in",)]


def test_what_readers_share_is_moved_once():
    captured = CapturedProblem(shared(), (2,), MeshMachine(flops=1e9, bandwidth=1.0))
    value = 2  # read by the second product and twice by the sum
    assert value in captured.shared
    whole = ((REPLICATED,), (REPLICATED,))
    assert whole in captured.shared[value]
    problem = build_captured_tables(captured)
    chosen = [0] * len(problem.names)
    first = captured.options[0]
    chosen[0] = first.index(("out",))  # made in parts, read whole by all
    for node in captured.position.values():
        chosen[node] = (
            captured.shared[value].index(whole)
            if node == captured.position[value]
            else 0
        )
    table = captured.shared[1]
    chosen[captured.position[1]] = table.index(((Place(0),), (Place(0),)))
    moved = price_captured_parts(captured, chosen)
    assert moved.resharding == pytest.approx(64.0)  # half of 8 * 4 * 4 bytes, once


def test_a_table_read_twice_has_one_home():
    captured = CapturedProblem(shared(), (2,), MACHINE)
    assert captured.names()[-1] in ("table", "shared.2")
    parts = price_captured_parts(captured, captured_data_parallel(captured))
    assert parts.gradient > 0
    # Four copies of it, halves of values.
    assert parts.memory == pytest.approx(4 * 64 + 3 * 64)


def test_what_is_shared_is_completed_at_its_cheapest(captured):
    problem = build_captured_tables(captured)
    best = best_strategy(problem)
    count = len(captured.graph.ops)
    pairs = zip(captured.options, best.configuration[:count], strict=True)
    operations = [options[k] for options, k in pairs]
    assert problem.value(complete_strategy(captured, operations)) == pytest.approx(
        best.cost
    )


class Mixed(nn.Module):
    """A product, a call that no rule knows and that mixes examples, and another product."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        return self.after(torch.roll(self.before(x), 1, 0))


def mixed(devices, batch=8):
    def loss(made):
        return made.square().mean()

    layers = layer_graph(Mixed(), (torch.randn(batch, 16),), loss, "mixed")
    return CapturedProblem(layers.operations, (devices,), MeshMachine(FLOPS, BANDWIDTH))


@pytest.mark.parametrize(
    ("devices", "share", "used"), [(1, 8, 1), (2, 4, 2), (3, 3, 3), (16, 1, 8)]
)
def test_a_share_of_the_step_and_the_gradients(devices, share, used):
    parts = ddp_parts(mixed(devices))
    products = 3 * 2 * (2 * 16 * 16) * share / FLOPS
    gradients = 2 * (used - 1) / used * 4 * 2 * (16 * 16 + 16) / BANDWIDTH
    assert parts.compute == pytest.approx(products)
    assert parts.gradient == pytest.approx(gradients)
    assert parts.resharding == parts.reduction == 0


def test_no_split_of_layers_with_rules_is_slower_than_ddp():
    """The U-Net's transposed convolutions had no rule, and its `data parallelism` was not DDP."""
    for devices in (2, 4):
        tables = shard_tables("unet?size=16&width=8&depth=2", SplitOptions(devices))
        best = tables.split(shard_network(tables))
        assert best is not None
        assert best.predicted.total <= best.data_parallel.total * (1 + 1e-9) + 1e-6
