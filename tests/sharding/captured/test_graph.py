from __future__ import annotations

import pytest

from gnnplace.sharding import best_strategy
from gnnplace.sharding.captured.graph import captured_network, split_graph
from gnnplace.sharding.captured.layout import (
    CALL,
    PARAMETER,
    Shape,
    SplitGraph,
    SplitOp,
    SplitValue,
)
from gnnplace.sharding.captured.recording import record_calls
from gnnplace.sharding.costs import Machine, Setting, layer_costs, sharding_problem
from gnnplace.tracing.loading import load
from gnnplace.tracing.rules.registry import rules_of
from gnnplace.tracing.step import StepModule
from tests.sharding.captured_graphs import perceptron


@pytest.fixture(scope="module")
def bert():
    workload = load("bert?layers=1", fake=True)
    graph = record_calls(
        StepModule(workload.model, workload.loss, workload.inputs), "bert"
    )
    return split_graph(graph, rules_of(graph))


def op_of(graph, end):
    return next(op for op in graph.ops if op.name.endswith(end))


def test_features_of_projections_are_heads(bert):
    query = op_of(bert, "self.query")
    assert dict(query.names)["out"] == "heads"
    assert query.words(("out", "out"), (2, 2)) == "heads over 4"
    dense = op_of(bert, "attention.output.dense")
    assert dict(dense.names)["in"] == "heads"
    assert dict(op_of(bert, "intermediate.dense").names)["out"] == "out"


def test_the_batch_is_followed_through_all_layers(bert):
    for end in (
        "self.query",
        "scaled_dot_product_attention",
        "LayerNorm",
        "cross_entropy",
    ):
        op = op_of(bert, end)
        assert op.batch is not None
        assert dict(op.names)[op.batch] == "batch"


def test_words_put_the_largest_split_first(bert):
    query = op_of(bert, "self.query")
    assert query.words(("0", "out"), (2, 4)) == "heads over 4, batch over 2"
    assert query.words((None, None), (2, 4)) == "whole on every device"


def test_parameters_keep_their_names(bert):
    names = {value.name for value in bert.values if value.source == "parameter"}
    assert any(name.endswith("query.weight") for name in names)


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
    heads = Shape(
        (("0", 8), ("heads", 3)), (("0", "heads", None),), (("0", "heads", None),), 9.0
    )
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
    assert attention.operation.elements(attention.operation.inputs[0]) == pytest.approx(
        96
    )


def test_the_best_strategy_is_no_worse_than_data_parallelism():
    network = captured_network(perceptron())
    setting = Setting(network, 4, Machine(flops=100.0, bandwidth=1.0))
    problem = sharding_problem(network, 4, setting.machine)
    best = best_strategy(problem)
    assert best.cost == pytest.approx(setting.parts(best.configuration).total)
    assert best.cost <= problem.value(setting.data_parallel())
