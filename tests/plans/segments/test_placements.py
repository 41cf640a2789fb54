"""Splits of calls over shards, in the words of a plan's file."""

import pytest

from gnnplace.errors import MismatchError
from gnnplace.plans.segments.chains import capture_layers
from gnnplace.plans.segments.placements import (
    format_place,
    format_placements,
    parse_configuration,
)
from gnnplace.sharding.captured.layout import PARTIAL, REPLICATED, Place
from gnnplace.tracing.loading import load
from tests.run.planned.toys import plan_for

MODEL = "gpt2?layers=1&width=32&heads=4&vocabulary=64&length=16&batch=4"
WIDE = "gpt2?layers=1&width=256&heads=4&vocabulary=64&length=64&batch=4"


@pytest.fixture(scope="module")
def layers():
    return capture_layers(load(MODEL), "32-true")


def test_words_of_places():
    found = [
        format_place(place) for place in (REPLICATED, PARTIAL, Place(1), Place(0, 3))
    ]
    assert found == ["R", "P", "S1", "S0/3"]


def test_every_split_of_every_call_is_read_as_it_is_written(layers):
    graph, count = layers.calls, 0
    for i, (call, rule) in enumerate(zip(graph.calls, layers.rules, strict=True)):
        for label in rule.extents:
            told = format_placements(graph, layers.rules, {i: (label,)})[call.name]
            assert told[0] == "R"
            assert parse_configuration(rule, told, (2,), call.name) == (label,)
            pair = format_placements(graph, layers.rules, {i: (label, None)})[call.name]
            assert pair == ["R", told[2], "R"]
            assert parse_configuration(rule, pair, (2, 2), call.name) == (label, None)
            count += 1
    assert count > 20


def test_a_plan_over_shards_says_how_parameters_and_calls_are_split():
    plan = plan_for(load(WIDE), "tp=2,microbatch_size=2", 2)
    (stage,) = plan.file.stages
    assert stage.placements["transformer.h.0.attn.c_attn.weight"] == ["R", "R", "S1/3"]
    assert stage.placements["transformer.h.0.mlp.c_fc.weight"][2] in ("S0", "S1")
    assert any("P" in words[2] for words in stage.placements.values())
    whole = plan_for(load(MODEL), "pp=2,microbatch_size=2", 2)
    assert all(not stage.placements for stage in whole.file.stages)


def test_a_split_that_a_call_cannot_have_is_refused(layers):
    with pytest.raises(MismatchError, match="plan: norm: cannot be 'S9'"):
        parse_configuration(layers.rules[0], ["R", "R", "S9"], (2,), "norm")
