from __future__ import annotations

import pytest

from gnnplace.sharding import best_strategy
from gnnplace.sharding.captured.layout import (
    CALL,
    PARAMETER,
    Shape,
    SplitGraph,
    SplitOp,
    SplitValue,
)
from gnnplace.sharding.captured.network import captured_network
from gnnplace.sharding.costs import Machine, layer_costs, sharding_problem
from gnnplace.sharding.strategy import Setting
from tests.sharding.captured_graphs import perceptron


def test_layers_read_layers():
    network = captured_network(perceptron())
    assert [layer.name for layer in network.layers] == ["up", "relu", "down", "add"]
    assert [layer.inputs for layer in network.layers] == [
        (None,),
        ("up",),
        ("relu",),
        (None, "down"),
    ]


def test_costs_are_those_of_a_product():
    up = captured_network(perceptron(batch=8, width=4, hidden=16)).layers[0].operation
    costs = layer_costs(up, 1, Machine(flops=1.0, bandwidth=1.0))
    assert costs.compute == pytest.approx([3 * 2 * 8 * 4 * 16])
    assert costs.memory == pytest.approx([4 * (8 * 16 + 4 * 16 * 4)])


def test_views_are_looked_through():
    values = (
        SplitValue((8, 12), 4, False, "input"),
        SplitValue((12, 12), 4, True, PARAMETER, "w"),
        SplitValue((8, 12), 4, True, CALL),
        SplitValue((8, 3, 4), 4, True, CALL),
        SplitValue((8, 3, 4), 4, True, CALL),
    )
    product = Shape((("0", 8), ("in", 12), ("out", 12)), (("0", "in"), ("out", "in")),
                    (("0", "out"),), 2304.0)  # fmt: skip
    view = Shape((("0", 8), ("1", 3)), (("0", "1"),), (("0", "1", None),), 0.0, True)
    heads = Shape((("0", 8), ("heads", 3)), (("0", "heads", None),), (("0", "heads", None),), 9.0)
    ops = (
        SplitOp("query", "linear", product, (0, 1), (2,), "0"),
        SplitOp("view", "shape", view, (2,), (3,), "0"),
        SplitOp("attention", "attention", heads, (3,), (4,), "0"),
    )
    network = captured_network(SplitGraph("heads", ops, values))
    assert [layer.name for layer in network.layers] == ["query", "attention"]
    attention = network.layers[1]
    assert attention.inputs == ("query",)
    assert attention.operation.inputs[0][:2] == ("0", "heads")
    assert attention.operation.elements(attention.operation.inputs[0]) == pytest.approx(96)


def test_the_best_strategy_is_no_worse_than_data_parallelism():
    network = captured_network(perceptron())
    setting = Setting(network, 4, Machine(flops=100.0, bandwidth=1.0))
    problem = sharding_problem(network, 4, setting.machine)
    best = best_strategy(problem)
    assert best.cost == pytest.approx(setting.parts(best.configuration).total)
    assert best.cost <= problem.value(setting.data_parallel())
