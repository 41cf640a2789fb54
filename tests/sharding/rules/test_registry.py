from __future__ import annotations

import pytest
import torch
from torch import nn

from gnnplace.sharding.captured.recording import OutputModule, record_calls
from gnnplace.sharding.rules.registry import rules_of
from gnnplace.tracing.loading import load
from gnnplace.tracing.step import StepModule


@pytest.mark.parametrize("name", ["mlp", "two_tower", "moe", "vit", "small_resnet", "seq2seq"])
def test_every_call_of_these_has_a_rule(name):
    workload = load(name)
    graph = record_calls(StepModule(workload.model, workload.loss, workload.inputs), name)
    rules = rules_of(graph)
    unknown = [c.name for c, r in zip(graph.calls, rules, strict=True) if r.reason]
    assert unknown == []


def test_labels_lie_on_axes_of_the_tensors_size():
    workload = load("bert?layers=1", fake=True)
    graph = record_calls(StepModule(workload.model, workload.loss, workload.inputs), "bert")
    for call, rule in zip(graph.calls, rules_of(graph), strict=True):
        tensors = zip((*call.reads, *call.results), (*rule.reads, *rule.results), strict=True)
        for value, axes in tensors:
            assert len(axes) == len(graph.values[value].shape)
            for label, size in zip(axes, graph.values[value].shape, strict=True):
                assert label is None or size % rule.extents[label] == 0


def test_what_no_rule_knows_stays_whole_and_says_so():
    class Model(nn.Module):
        def forward(self, x):
            return torch.linalg.inv(x)

    step = OutputModule(Model(), None, (torch.eye(3),))
    (rule,) = rules_of(record_calls(step, "test"))
    assert rule.kind == "whole"
    assert "linalg" in rule.reason or "inv" in rule.reason
