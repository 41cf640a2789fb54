"""Ops as rows of cost tables: operations as PyTorch counts them, bytes as they are moved."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from gnnplace.costs.profiling.description import PASSES, describe
from gnnplace.costs.profiling.estimation import op_flops
from gnnplace.tracing.models import capture, capture_model
from gnnplace.tracing.program.program import Program
from tests.costs.profiling.programs import faked, small


def flops(program: Program) -> np.ndarray:
    found = describe(program)
    return np.bincount(found.owner, found.rows.flops, len(program.ops))


@pytest.mark.parametrize(
    "model", ["mlp", "small_resnet", "unet", "gnmt?batch=2&source=2&target=2&layers=1"]
)
def test_operations_are_those_that_pytorch_counts(model: str) -> None:
    program = faked(model)
    expected = [op_flops(program, op) for op in program.ops]
    assert flops(program) == pytest.approx(expected)


def test_fused_attention_is_counted_once_forward_and_two_and_a_half_times_backward() -> (
    None
):
    program = capture_model(
        "hf:gpt2?n_layer=1&batch=2&length=32&attn_pdrop=0.0", fake=True
    )
    found = describe(program)
    by_op = {
        name: found.rows.flops[found.rows.op == name].sum() for name in found.rows.op
    }
    if "attention" in by_op:
        assert by_op["attention_backward"] == 2.5 * by_op["attention"]
    assert by_op["matmul"] > 0


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids)


def test_an_embedding_moves_the_rows_that_it_looks_up() -> None:
    program = capture(Lookup(), (torch.zeros(8, dtype=torch.long),))
    found = describe(program)
    row = int(np.flatnonzero(found.rows.op == "embedding")[0])
    assert found.rows.bytes[row] == 2 * 8 * 16 * 4


class Expanded(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(1, 64).expand(512, 64)


def test_an_expanded_tensor_is_read_once() -> None:
    program = capture(Expanded(), (torch.zeros(512, 64),), forward_only=True)
    found = describe(program)
    row = int(np.flatnonzero(found.rows.op == "add")[0])
    assert found.rows.bytes[row] <= 4 * (2 * 512 * 64 + 64)


def test_views_move_nothing_and_updates_what_their_kernels_do() -> None:
    program = small("mlp", width=8, depth=1)
    found = describe(program)
    views = found.view[found.owner]
    assert views.any()
    assert not found.rows.bytes[views].any()
    for i, op in enumerate(program.ops):
        name = getattr(op.target, "__name__", "")
        if name in PASSES:
            [row] = np.flatnonzero(found.owner == i)
            assert (
                found.rows.bytes[row]
                == PASSES[name] * program.values[op.reads[0]].bytes
            )


def test_gradients_of_products_are_told_apart_from_products() -> None:
    found = describe(small("mlp", width=8, depth=2))
    assert {"matmul", "matmul.backward"} <= set(found.rows.op.tolist())


def test_a_convolution_of_each_channel_by_itself_is_bound_by_its_bytes() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 8, 3, groups=2)
    )
    found = describe(capture(model, torch.randn(2, 3, 12, 12), loss=torch.sum)).rows
    alone = found.take(np.char.startswith(found.op, "depthwise"))
    assert sorted(alone.op) == ["depthwise", "depthwise.input", "depthwise.weight"]
    assert not alone.flops.any()
    image, made, weight = 2 * 8 * 12 * 12, 2 * 8 * 10 * 10, 8 * 9
    assert alone.bytes[-1] == 4 * (image + made + weight)
    grouped = found.take((found.op == "convolution") & (found.sizes[:, 0] == 2))
    assert grouped.flops.tolist() == [2 * (2 * 8 * 8) * 8 * 4 * 9]
