from __future__ import annotations

from dataclasses import replace

import pytest

from gnnplace.errors import InputError
from gnnplace.sharding.captured.costs import (
    MeshMachine,
    compute,
    compute_result_bytes,
    exchange,
    move,
    parameter_bytes,
    parameter_gradient,
    price_handover,
)
from gnnplace.sharding.captured.layout import (
    PARTIAL,
    REPLICATED,
    Place,
    gradient_layout,
)
from gnnplace.tracing.rules import Exchanged
from tests.sharding.captured_graphs import perceptron

UNIT = MeshMachine(flops=1.0, bandwidth=1.0)
SIZE = 1000.0


@pytest.mark.parametrize(
    ("before", "after", "reduction", "resharding"),
    [
        ((REPLICATED,), (REPLICATED,), 0.0, 0.0),
        ((REPLICATED,), (Place(0),), 0.0, 0.0),  # a part of what is there
        ((PARTIAL,), (REPLICATED,), 1500.0, 0.0),  # 2 * 3/4 of it
        ((PARTIAL,), (Place(1),), 750.0, 0.0),
        ((Place(0),), (REPLICATED,), 0.0, 750.0),
        ((Place(0),), (Place(1),), 0.0, 187.5),  # 3/4 of a quarter
    ],
)
def test_moves_over_four_devices(before, after, reduction, resharding):
    moved = move(SIZE, before, after, (4,), UNIT)
    assert moved.reduction == pytest.approx(reduction)
    assert moved.resharding == pytest.approx(resharding)


def test_two_mesh_dimensions_one_after_the_other():
    moved = move(SIZE, (PARTIAL, REPLICATED), (REPLICATED, Place(0)), (2, 2), UNIT)
    assert moved.total == pytest.approx(500.0)  # halved first, then 2 * 1/2 of the half
    gathered = move(SIZE, (Place(0), Place(0)), (REPLICATED, REPLICATED), (2, 2), UNIT)
    assert gathered.total == pytest.approx(250.0 + 500.0)


def test_every_collective_has_its_latency():
    machine = MeshMachine(flops=1.0, bandwidth=1e12, latency=1.0)
    both = move(SIZE, (PARTIAL, Place(0)), (REPLICATED, REPLICATED), (2, 2), machine)
    assert both.total == pytest.approx(2.0)
    assert move(SIZE, (PARTIAL,), (REPLICATED,), (1,), machine).total == 0.0


def test_a_value_goes_there_and_its_gradient_back():
    graph = perceptron()
    hidden = graph.values[2]  # 8 * 16 * 4 bytes
    moved = price_handover(hidden, (Place(0),), (REPLICATED,), (PARTIAL,), (2,), UNIT)
    assert moved.resharding == pytest.approx(256.0)
    assert moved.reduction == pytest.approx(256.0)  # a sum into parts
    assert (
        price_handover(
            graph.values[0], (Place(0),), (REPLICATED,), (PARTIAL,), (2,), UNIT
        ).reduction
        == 0.0
    )


def test_compute_is_three_times_the_forward_pass_over_the_parts():
    graph = perceptron()
    up = graph.ops[0]
    assert compute(graph, up, (None,), (2,), UNIT) == pytest.approx(3 * 2 * 8 * 4 * 16)
    assert compute(graph, up, ("out",), (2,), UNIT) == pytest.approx(3 * 8 * 4 * 16)
    assert compute(graph, up, ("out",), (2,), UNIT, seconds=10.0) == pytest.approx(5.0)
    slow = MeshMachine(flops=1.0, bandwidth=1.0, overhead=2.0)
    assert compute(graph, up, ("out",), (2,), slow, seconds=10.0) == pytest.approx(6.0)


def test_parameters():
    weight = perceptron().values[1]  # 16 * 4 * 4 bytes
    axes = ("out", "in")
    assert parameter_gradient(
        weight, gradient_layout(axes, ("0",)), (2,), UNIT
    ) == pytest.approx(256.0)
    assert (
        parameter_gradient(weight, gradient_layout(axes, ("out",)), (2,), UNIT) == 0.0
    )
    assert parameter_bytes(weight, (Place(0),), (2,), UNIT) == pytest.approx(4 * 128.0)


def test_results_that_are_kept():
    graph = perceptron()
    assert compute_result_bytes(graph, graph.ops[0], ("out",), (2,)) == pytest.approx(
        256.0
    )
    assert compute_result_bytes(graph, graph.ops[0], ("in",), (2,)) == pytest.approx(
        512.0
    )


def test_a_machine_without_speed_is_refused():
    with pytest.raises(InputError, match="bandwidth"):
        MeshMachine(bandwidth=0.0)


def test_what_parts_exchange_while_they_compute():
    graph = perceptron()
    norm = replace(
        graph.ops[1],
        shape=replace(graph.ops[1].shape, exchanges=(("0", Exchanged(16)),)),
    )
    machine = MeshMachine(flops=1.0, bandwidth=1.0, latency=0.5)
    assert exchange(graph, norm, ("1",), (2,), machine) == 0.0
    # There and back, 2 * 1/2 of two parts of 16 elements.
    assert exchange(graph, norm, ("0",), (2,), machine) == pytest.approx(
        2 * (0.5 + 2 * 16 * 4)
    )
