"""What is fused, on chains whose bytes are counted by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gnnplace.costs.profiling.description import op_name
from gnnplace.costs.profiling.estimation import estimate_times
from gnnplace.costs.profiling.fusion import find_fused_groups
from gnnplace.tracing.models import capture
from gnnplace.tracing.program.program import Program
from tests.costs.profiling.programs import small


class Chain(nn.Module):
    """Three ops before a product, two behind it, one of which reads what was before."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(x * 2 + 1)
        return torch.relu(self.linear(h)) + h


def chain() -> Program:
    return capture(Chain(), (torch.ones(4, 8),), forward_only=True)


def test_ops_are_fused_up_to_a_product_and_move_what_goes_in_and_out():
    """x and h of 24 tensors' worth of bytes over three ops; y, h and the result of five."""
    program = chain()
    groups, share = find_fused_groups(program)
    found: dict[int, list[str]] = {}
    for i, op in enumerate(program.ops):
        if not op.view:
            found.setdefault(int(groups[i]), []).append(op_name(op))
    kinds = sorted(found.values(), key=len)
    assert ["mul", "add", "tanh"] in kinds
    assert ["relu", "add"] in kinds
    names = [op_name(op) for op in program.ops]
    assert share[names.index("tanh")] == pytest.approx(2 / 6)
    assert share[names.index("relu")] == pytest.approx(3 / 5)
    assert share[
        [k for k, n in enumerate(names) if n in ("mm", "linear", "addmm")]
    ] == [1.0]


def test_compiled_steps_take_less_and_captured_ones_wait_for_nothing():
    program = small()
    eager, fused, graphs = (
        estimate_times(program, "h100", **how).seconds
        for how in ({}, {"compiled": True}, {"compiled": True, "cuda_graphs": True})
    )
    assert graphs.sum() <= fused.sum() < eager.sum() / 3
    groups, _ = find_fused_groups(program)
    assert all(fused[i] == 0.0 for i, group in enumerate(groups) if group != i)
