"""Costs computed by hand on a machine that makes them small whole numbers."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.pase.costs import Machine, edge_costs, layer_costs, sharding_problem
from benchmarks.pase.layers import (
    Dimension,
    SplitSpace,
    attention,
    configurations,
    convolution,
    cross_entropy,
    data_parallel,
    embedding,
    linear,
    lstm,
    pointwise,
)
from benchmarks.pase.networks.registry import build_network
from benchmarks.pase.networks.transforming import TransformerSizes, mixture
from gnnplace.costs.collectives import (
    ALL_REDUCE,
    BUCKET,
    Exchange,
    Group,
    estimate_collective,
)
from gnnplace.problem.cluster import make_preset
from gnnplace.sharding import best_strategy

UNIT = Machine(flops=1.0, bandwidth=1.0, element=1, state=4)
DENSE = linear(8, Dimension("in", 4), Dimension("out", 16))


def at(operation, devices=4, **splits):
    wanted = [splits.get(d.name, 1) for d in operation.dimensions]
    rows = configurations(operation, devices)
    return int(np.flatnonzero((rows == wanted).all(axis=1))[0])


def costs(operation, **splits):
    table, k = layer_costs(operation, 4, UNIT), at(operation, **splits)
    return table.compute[k], table.reduction[k], table.gradient[k], table.memory[k]


def test_a_linear_layer_whole():
    # 2 * 8 * 4 * 16 FLOP forward; 128 outputs, 64 weights and 16 biases, four copies each.
    assert costs(DENSE) == (3 * 1024, 0, 0, 128 + 4 * 80)


def test_a_linear_layer_split_along_the_batch():
    # Gradients of 80 parameters, all-reduced over 4: 2 * 3/4 * 80.
    assert costs(DENSE, batch=4) == (3 * 256, 0, 120, 32 + 320)


def test_a_linear_layer_split_along_its_outputs():
    # The gradient of the input, 8 * 4, all-reduced over 4; parameters are a fourth.
    assert costs(DENSE, out=4) == (3 * 256, 1.5 * 32, 0, 32 + 80)


def test_a_linear_layer_split_along_its_inputs():
    # The output, 8 * 16, all-reduced over 4; the bias (16) is whole on all and summed by them.
    assert costs(DENSE, **{"in": 4}) == (
        3 * 256,
        1.5 * 128,
        1.5 * 16,
        128 + 4 * (16 + 16),
    )


def test_a_linear_layer_split_both_ways():
    # Shards: output 4 x 8, input 4 x 4, parameters 4 x 8 + 8; groups of two.
    assert costs(DENSE, batch=2, out=2) == (3 * 256, 16, 40, 32 + 4 * 40)


def test_an_embedding_split_along_its_vocabulary():
    # Devices without a token's row add zeros: the output, 2 * 3 * 8, all-reduced over 4.
    operation = embedding(2, 3, 40, 8)
    compute, reduction, gradient, memory = costs(operation, vocabulary=4)
    assert (compute, reduction, gradient, memory) == (
        3 * 48 / 4,
        1.5 * 48,
        0,
        48 + 4 * 80,
    )


def test_a_loss_split_along_its_vocabulary():
    assert costs(cross_entropy(2, 3, 40), vocabulary=4)[1] == 1.5 * 6


def test_attention_over_heads_needs_no_reduction_and_over_the_sequence_those_of_keys_and_values():
    operation = attention(2, 4, 6, 6, 5)
    assert costs(operation, heads=4)[1] == 0
    assert costs(operation, batch=2, heads=2)[1] == 0
    # 2 (k-1)/k = 1, K and V.
    assert costs(operation, sequence=2)[1] == 2 * (2 * 6 * 4 * 5)


def test_a_convolution_split_along_its_height_exchanges_borders():
    operation = convolution(2, 3, 5, (8, 8), (3, 3))
    # Two rows of 2 * 3 * 8 elements, forward and backward.
    assert costs(operation, height=2)[1] == 2 * 2 * 48
    # Parameters 3 * 5 * 9 + 5, all-reduced over 2.
    assert costs(operation, height=2)[2] == 140
    assert costs(convolution(2, 3, 5, (8, 8), (1, 1)), height=2)[1] == 0


def test_the_first_layer_needs_no_gradient_of_its_input():
    assert costs(convolution(2, 4, 8, (8, 8), (1, 1), first=True), out=4)[1] == 0


def test_resharding():
    rows = (Dimension("batch", 8), Dimension("features", 16))
    consumer = pointwise("add", rows)
    table = edge_costs(DENSE, consumer, 0, 4, UNIT)

    def cell(made, wanted):
        position = (at(DENSE, **made), at(consumer, **wanted))
        return table.time[position], table.memory[position]

    assert cell({"batch": 4}, {"batch": 4}) == (0, 0)
    # Needs 32 of which 8 are there; the gradient goes the other way.
    assert cell({"batch": 4}, {"features": 4}) == (24 + 24, 32)
    # Whole on every device: 128 needed, 32 there; backwards everything is there.
    assert cell({"batch": 4}, {}) == (96, 128)
    assert cell({}, {"batch": 4}) == (96, 0)


def test_configurations():
    rows = configurations(DENSE, 4)
    assert (rows[0] == 1).all()
    assert (rows.prod(axis=1) <= 4).all()
    # Exponents of three that sum to 2.
    assert len(rows) == len(np.unique(rows, axis=0)) == 10
    assert (configurations(DENSE, 4, SplitSpace(exactly=True)).prod(axis=1) == 4).all()
    small = linear(2, Dimension("in", 1), Dimension("out", 3))
    assert configurations(small, 4).max(axis=0).tolist() == [2, 1, 2]
    assert set(configurations(DENSE, 6)[:, 2]) == {1, 2, 3, 6}
    powers = configurations(DENSE, 6, SplitSpace(powers_of_two=True))
    assert set(powers[:, 2]) == {1, 2, 4}
    assert powers.prod(axis=1).max() == 4


@pytest.mark.parametrize(
    "space", [SplitSpace(), SplitSpace(exactly=True), SplitSpace(powers_of_two=True)]
)
def test_data_parallelism_is_in_every_space(space):
    for operation in (
        DENSE,
        embedding(8, 2, 40, 8),
        convolution(8, 3, 5, (8, 8), (3, 3)),
    ):
        split = configurations(operation, 8, space)[data_parallel(operation, 8, space)]
        assert split.tolist() == [8] + [1] * (len(split) - 1)


def test_equal_layers_share_tables():
    problem = sharding_problem(build_network("gpt"), 4)
    assert len({id(cost) for cost in problem.cost}) <= 11
    assert len({id(edge.cost) for edge in problem.edges}) <= 14


def test_one_device_pays_for_computing_alone():
    network = build_network("alexnet")
    result = best_strategy(sharding_problem(network, 1, UNIT))
    assert result.cost == pytest.approx(
        3 * sum(x.operation.flops for x in network.layers)
    )


def test_a_stack_of_lstm_layers_is_a_pipeline():
    operation = lstm(8, 6, 3, 5, layers=2)
    work = 3 * 2 * 4 * 2 * 8 * 6 * 8 * 5
    # Memory: outputs of both layers, parameters of both, four copies.
    assert costs(operation) == (work, 0, 0, 2 * 8 * 6 * 5 + 4 * 2 * 8 * 5 * 4)
    compute, reduction, gradient, memory = costs(operation, layers=2)
    # Six shares through two stages take seven turns of half the work.
    assert compute == pytest.approx(work / 2 * 7 / 6)
    # The output is summed over both, its input's gradient too (2 (k - 1) / k = 1), and the first
    # stage sends 8 * 6 * 5 elements forth, and back come their gradients.
    assert reduction == 240 + 8 * 6 * 8 + 2 * 240
    assert (gradient, memory) == (0, 240 + 640)


def test_split_experts_get_their_tokens_from_all_devices():
    shape = TransformerSizes(
        batch=4, sequence=8, features=6, heads=2, hidden=10, experts=4
    )
    layers = {layer.name: layer.operation for layer in mixture("m", "x", shape)}
    dispatch, expert = layers["m.dispatch"], layers["m.expert1"]
    assert costs(expert, experts=4)[1:3] == (0, 0)
    assert costs(expert, batch=4)[2] == 1.5 * 4 * 6 * 10
    table = edge_costs(dispatch, expert, 0, 4, UNIT)
    tokens = 2 * 4 * 8 * 6
    for split in ({"batch": 4}, {"sequence": 4}):
        # A fourth of the tokens is needed, a fourth of those is there; gradients go back.
        moved = table.time[at(dispatch, **split), at(expert, experts=4)]
        assert moved == 2 * (tokens / 4 - tokens / 16)
    assert table.time[at(dispatch, batch=4), at(expert, batch=4)] == 0


def test_a_known_fabric_prices_reductions_and_resharding():
    """What collectives take on eight H100, in place of bytes over a bandwidth."""
    exchange = Exchange(make_preset("nvswitch-h100-8"))
    known = Machine(bandwidth=exchange.bandwidth, exchange=exchange)
    plain = Machine(bandwidth=exchange.bandwidth)
    layer = next(
        x for x in build_network("alexnet").layers if x.name == "fc8"
    ).operation
    priced, formula = (layer_costs(layer, 8, machine) for machine in (known, plain))
    np.testing.assert_array_equal(priced.compute, formula.compute)
    np.testing.assert_array_equal(priced.gradient == 0, formula.gradient == 0)
    splits = configurations(layer, 8)
    whole = next(
        k for k, split in enumerate(splits)
        if split[[d.name for d in layer.dimensions].index("batch")] == 8
    )  # fmt: skip
    eight = Group("nvswitch-h100", None, 1, 8)
    sizes = [4.0 * layer.elements(axes) for axes in layer.parameters]
    expected = sum(
        min(size / BUCKET, 1.0)
        * estimate_collective(ALL_REDUCE, max(size, BUCKET), eight).seconds
        for size in sizes
    )
    assert priced.gradient[whole] == pytest.approx(expected, rel=1e-9)
    assert best_strategy(sharding_problem(build_network("alexnet"), 8, known)).cost > 0
