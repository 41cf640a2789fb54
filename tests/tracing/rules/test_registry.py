"""Calls without a rule are split along the batch where a trial says that they can be."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gnnplace.sharding.answers import load_layers
from gnnplace.tracing.loading import load
from gnnplace.tracing.recording.recorder import OutputModule, record_calls
from gnnplace.tracing.rules import list_labels
from gnnplace.tracing.rules.registry import find_rules
from gnnplace.tracing.step import StepModule
from tests.tracing.rules.oracle import check, traced


@pytest.mark.parametrize(
    "name", ["mlp", "two_tower", "moe", "vit", "small_resnet", "seq2seq"]
)
def test_every_call_of_these_has_a_rule(name):
    workload = load(name)
    graph = record_calls(
        StepModule(workload.model, workload.loss, workload.inputs), name
    )
    rules = find_rules(graph)
    unknown = [c.name for c, r in zip(graph.calls, rules, strict=True) if r.reason]
    assert unknown == []


def test_labels_lie_on_axes_of_the_tensors_size():
    workload = load("bert?layers=1", fake=True)
    graph = record_calls(
        StepModule(workload.model, workload.loss, workload.inputs), "bert"
    )
    for call, rule in zip(graph.calls, find_rules(graph), strict=True):
        tensors = zip(
            (*call.reads, *call.results), (*rule.reads, *rule.results), strict=True
        )
        for value, axes in tensors:
            assert len(axes) == len(graph.values[value].shape)
            for entry, size in zip(axes, graph.values[value].shape, strict=True):
                for label in list_labels(entry):
                    base, _, groups = label.partition("|")
                    assert size // int(groups or 1) % rule.extents[base] == 0


def test_what_no_rule_knows_stays_whole_and_says_so():
    class Model(nn.Module):
        def forward(self, x):
            return torch.linalg.inv(x)

    step = OutputModule(Model(), None, (torch.eye(3),))
    (rule,) = find_rules(record_calls(step, "test"))
    assert rule.kind == "whole"
    assert "linalg" in rule.reason or "inv" in rule.reason


class Keeps(nn.Module):
    """Changes a buffer in some ways."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        self.mean += x.mean(0)
        self.mean[:2].lerp_(x.mean(0)[:2], 0.5)
        torch.add(self.mean, x.mean(0), out=self.mean)
        return (x.clone().add_(1) - self.mean).relu_()


def test_every_device_changes_a_buffer_as_a_whole():
    """A part of it would be a copy, and the buffer stay as it was."""
    graph = record_calls(OutputModule(Keeps(), None, (torch.ones(8, 4),)), "keeps")
    rules = zip(graph.calls, find_rules(graph), strict=True)
    kept = [
        call.kind
        for call, rule in rules
        if rule.reason == "it changes a buffer in place"
    ]
    assert kept == ["mul", "add", "add", "lerp", "add"]


BATCH = 8


def real(*shape):
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.fliplr(x),
        lambda x: x.renorm(2, 0, 1.0),
        lambda x: torch.nanmedian(x, 1)[0],
    ],
    ids=["fliplr", "renorm", "nanmedian"],
)
def test_parts_of_the_batch_go_through_one_by_one(function):
    _, rules = traced(function, real(BATCH, 6))
    assert all("along the batch alone" in rule.reason for rule in rules if rule.reason)
    assert check(function, real(BATCH, 6)) == {"0"}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.rot90(x, 2),  # examples change places
        lambda x: x.renorm(2, 1, 1.0),  # an example meets the others
        lambda x: torch.quantile(x, 0.5),  # no axis is left
        lambda x: torch.poisson(x.detach().abs() + x * 0),  # random numbers
        lambda x: torch.broadcast_to(torch.trace(x), (BATCH,)),
    ],
    ids=["rot90", "renorm", "quantile", "poisson", "trace"],
)
def test_what_mixes_examples_stays_whole(function):
    _, rules = traced(function, real(BATCH, 6))
    first = next(rule for rule in rules if rule.reason)
    assert first.reason.startswith("no rule for")
    assert not first.extents


def test_the_batch_goes_on_behind_a_call_without_a_rule():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x):
            return self.after(self.before(x).renorm(2, 0, 1.0))

    from gnnplace.sharding.captured.split import layer_graph
    from gnnplace.tracing.step import default_loss

    layers = layer_graph(Odd(), (torch.randn(BATCH, 6),), default_loss, "odd")
    assert [op.batch for op in layers.operations.ops[:4]] == ["0"] * 4


def test_transposed_convolutions_have_a_rule_of_their_own():
    assert not [rule for rule in load_layers("unet").rules if rule.reason]


def test_a_trial_leaves_the_random_state_alone():
    graph, _ = traced(lambda x: x.renorm(2, 0, 1.0), real(BATCH, 6))
    before = torch.get_rng_state()
    find_rules(graph)
    assert torch.equal(before, torch.get_rng_state())
