from __future__ import annotations

import pytest

from gnnplace.sharding.captured.graph import split_graph
from gnnplace.tracing.loading import load
from gnnplace.tracing.recording.recorder import record_calls
from gnnplace.tracing.rules.registry import find_rules
from gnnplace.tracing.step import StepModule


@pytest.fixture(scope="module")
def bert():
    workload = load("bert?layers=1", fake=True)
    graph = record_calls(
        StepModule(workload.model, workload.loss, workload.inputs), "bert"
    )
    return split_graph(graph, find_rules(graph))


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
