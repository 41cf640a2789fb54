"""The portable formulas equal the CPU's fused ops, and a program uses the fused ones on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch

from gnnplace.tracing.program import portable_attention as room
from gnnplace.tracing.program.portable_attention import (
    BACKWARD,
    FORWARD,
    attention,
    attention_backward,
)

GENERATOR = torch.Generator().manual_seed(0)
Q, K, V, G = (torch.randn(2, 3, 8, 16, generator=GENERATOR) for _ in range(4))
CASES: list[dict[str, Any]] = [
    {},
    {"is_causal": True},
    {"scale": 0.3},
    {"attn_mask": torch.randn(2, 1, 8, 8, generator=GENERATOR)},
]


class _Elsewhere:
    """Stands for a device that is no CPU."""

    type = "elsewhere"


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """Tensors say that they are not on a CPU, as far as this module asks."""
    with (
        patch.object(torch.Tensor, "device", _Elsewhere()),
        patch.object(
            room.torch, "ones", lambda *size, dtype, device: torch.full(size[0], True)
        ),
    ):
        yield


@pytest.mark.parametrize("options", CASES, ids=str)
def test_formulas_equal_the_fused_ops(options: dict[str, Any], request: Any) -> None:
    causal = options.get("is_causal", False)
    rest = {k: v for k, v in options.items() if k != "is_causal"}
    out, normaliser = FORWARD(Q, K, V, 0.0, causal, **rest)
    grads = BACKWARD(G, Q, K, V, out, normaliser, 0.0, causal, **rest)
    request.getfixturevalue("elsewhere")
    mine, own = attention(Q, K, V, 0.0, causal, **rest)
    slopes = attention_backward(G, Q, K, V, out, normaliser, 0.0, causal, **rest)
    assert torch.allclose(mine, out, atol=1e-5)
    assert torch.allclose(own, normaliser, atol=1e-5)
    assert all(
        torch.allclose(a, b, atol=1e-5) for a, b in zip(slopes, grads, strict=True)
    )


def test_on_a_cpu_the_fused_op_is_called() -> None:
    out, normaliser = FORWARD(Q, K, V)
    assert torch.equal(attention(Q, K, V)[0], out)
    ours = attention_backward(G, Q, K, V, out, normaliser, 0.0, False)
    theirs = BACKWARD(G, Q, K, V, out, normaliser, 0.0, False)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_on_a_gpu() -> None:
    out, _ = attention(Q.cuda(), K.cuda(), V.cuda(), 0.0, True)
    assert torch.allclose(out.cpu(), FORWARD(Q, K, V, 0.0, True)[0], atol=1e-4)
