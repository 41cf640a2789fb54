"""Capture of a training step: against what torch.export alone takes for the forward pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gnnplace
from benchmarks.micro.references import against


def model() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()]
    return nn.Sequential(*layers)


@pytest.mark.benchmark(min_rounds=2, max_time=2.0)
def test_capture_against_export_alone(benchmark):
    """Ours exports, differentiates, adds the update and builds the graph."""
    module, inputs = model(), (torch.zeros(8, 64),)
    found, expected = against(
        benchmark,
        lambda: gnnplace.capture(
            module, inputs, loss=lambda output: output.square().mean()
        ),
        lambda: torch.export.export(module, inputs, strict=False),
    )
    assert len(found.ops) > len(list(expected.graph.nodes))
