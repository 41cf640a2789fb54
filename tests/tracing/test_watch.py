"""Recurrent layers compute in training what eager ones do, dropout between layers included."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gnnplace.tracing import capture, export
from tests.tracing.oracle import eager
from tests.tracing.straight_run import run_program

X = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))


class First(nn.Module):
    """The sequence output of a recurrent layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True}]
)
def test_gradients_equal_eager(kind: type[nn.Module], options: dict[str, object]) -> None:
    model = First(kind(4, 5, **options))
    result, truth = run_program(capture(model, (X,))), eager(model, (X,))
    assert torch.allclose(result.loss, truth.loss)
    for name, gradient in truth.gradients.items():
        assert torch.allclose(result.gradients[name], gradient, rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_dropout_between_layers_is_there(kind: type[nn.Module]) -> None:
    """Torch 2.13 loses it while it decomposes the layer."""
    program = capture(First(kind(4, 64, num_layers=3, dropout=0.5)), (X,))
    random = [op for op in program.ops if getattr(op.target, "__name__", "") == "seeded"]
    assert len(random) == 2
    assert not torch.equal(run_program(program, 0).loss, run_program(program, 1).loss)


def test_no_dropout_in_evaluation() -> None:
    model = First(nn.LSTM(4, 5, num_layers=2, dropout=0.5)).eval()
    program = capture(model, (X,), forward_only=True)
    with torch.no_grad():
        assert torch.allclose(run_program(program).outputs[0], model(X), atol=1e-6)


def test_lists_of_parameters_are_no_state_of_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer makes them anew whenever a parameter is set; tracing again would change nothing."""
    traced = []
    original = export._joint_once
    monkeypatch.setattr(
        export, "_joint_once", lambda *a, **more: traced.append(1) or original(*a, **more)
    )
    layer = nn.LSTM(4, 5)
    before = list(layer._flat_weights)
    capture(First(layer), (X,))
    assert len(traced) == 1
    assert all(a is b for a, b in zip(layer._flat_weights, before, strict=True))
