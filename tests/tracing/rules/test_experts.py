from __future__ import annotations

import pytest
import torch

import gnnplace
from gnnplace.sharding.captured.graph import split_graph
from gnnplace.sharding.captured.layout import mesh_configurations
from gnnplace.tracing.calls.mixture import GATES, Gate
from gnnplace.tracing.rules.registry import find_rules
from tests.tracing.rules.oracle import check, traced


@pytest.mark.parametrize("examples", [None, 2])
@pytest.mark.parametrize("rows", [6, 12])
def test_tokens_experts_both_and_the_width_of_each_can_be_cut(rows, examples):
    torch.manual_seed(1)
    shapes = (8, 4), (8, 2), (4, rows, 4), (4, 4, 6)
    x, weights, up, down = (
        torch.randn(s, dtype=torch.float64).requires_grad_() for s in shapes
    )
    index = torch.randint(0, 4, (8, 2))
    found = check(
        lambda x, index, weights, up, down: gnnplace.experts(x, index, weights, up, down, "gelu"),
        x, index, weights, up, down, examples=examples,
    )  # fmt: skip
    assert found == {"0", "experts", "dispatch", "spread", "width"} | (
        {"rows"} if examples else set()
    )


@pytest.mark.parametrize("groups", [1, 2])
def test_biases_are_added_once_and_gates_keep_their_pairs(groups, monkeypatch):
    """Pairs of a gate stand beside each other, or its rows before the others'."""
    torch.manual_seed(1)

    def formula(made):
        beside = made[..., ::2], made[..., 1::2]
        first, other = beside if groups == 1 else made.chunk(2, -1)
        return first.clamp(max=0.5) * (other + 1)

    monkeypatch.setitem(GATES, "pairs", Gate(formula, groups))
    shapes = (8, 4), (8, 2), (4, 12, 4), (4, 4, 6), (4, 12), (4, 4)
    x, weights, *rest = (
        torch.randn(s, dtype=torch.float64).requires_grad_() for s in shapes
    )

    def run(x, index, weights, up, down, *biases):
        return gnnplace.experts(x, index, weights, up, down, "pairs", *biases)

    found = check(run, x, torch.randint(0, 4, (8, 2)), weights, *rest)
    assert found == {"0", "experts", "dispatch", "spread", "width"}


@pytest.mark.parametrize("expert", [0, 3])
def test_all_rows_may_go_to_one_expert_and_some_to_none(expert):
    torch.manual_seed(1)
    shapes = (8, 4), (8, 2), (4, 6, 4), (4, 4, 6)
    x, weights, up, down = (
        torch.randn(s, dtype=torch.float64).requires_grad_() for s in shapes
    )
    index = torch.full((8, 2), expert)
    index[::3, 1] = 4  # no expert
    check(gnnplace.experts, x, index, weights, up, down, examples=4)


def test_one_dimension_of_a_mesh_sends_rows():
    tensors = torch.randn(8, 4), torch.zeros(8, 2, dtype=torch.int64), torch.randn(8, 2)
    graph, rules = traced(
        gnnplace.experts, *tensors, torch.randn(4, 12, 4), torch.randn(4, 4, 6)
    )
    (op,) = split_graph(graph, rules).ops
    found = mesh_configurations(op.shape, (2, 2))
    assert (None, "dispatch") in found
    assert not [
        c for c in found if c.count("dispatch") > 1 or {"0", "dispatch"} <= {*c}
    ]


def test_flops_are_those_of_the_rows_that_are_chosen():
    tensors = torch.randn(8, 4), torch.zeros(8, 2, dtype=torch.int64), torch.randn(8, 2)
    graph, _ = traced(
        gnnplace.experts, *tensors, torch.randn(5, 12, 4), torch.randn(5, 4, 6)
    )
    assert find_rules(graph)[0].flops == 2 * (8 * 2) * (12 * 4 + 4 * 6)
