"""A soft mixture of experts: every expert sees every token, a gate weighs their answers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from gnnplace.zoo import Workload, make_generator


class Expert(nn.Module):
    """Feed-forward network on [tokens, width]."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the expert's answer, of the shape of `x`."""
        return self.down(functional.gelu(self.up(x)))


class MixtureLayer(nn.Module):
    """Residual layer of `experts` experts in parallel (dense gates, no dropped tokens)."""

    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(Expert(width, hidden) for _ in range(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, of the shape of `x`."""
        y = self.norm(x)
        weights = torch.softmax(self.gate(y), -1)
        for i, expert in enumerate(self.experts):
            x = x + weights[:, i : i + 1] * expert(y)
        return x


class Mixture(nn.Module):
    """Mixture layers and a classifier. [tokens, width] -> [tokens, classes]."""

    def __init__(
        self, width: int, hidden: int, experts: int, depth: int, classes: int
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(MixtureLayer(width, hidden, experts) for _ in range(depth))
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return class scores."""
        return self.head(self.layers(x))


def moe(
    batch: int = 256,
    width: int = 128,
    hidden: int = 512,
    experts: int = 4,
    depth: int = 2,
    classes: int = 16,
) -> Workload:
    """Build a soft mixture of experts with a classification loss.

    Args:
        batch: Tokens in a step.
        width: Features of a token.
        hidden: Units of an expert.
        experts: Experts in each layer.
        depth: Layers.
        classes: The number of classes of the classifier.
    """
    random = make_generator(0)
    x = torch.randn(batch, width, generator=random)
    y = torch.randint(classes, (batch,), generator=random)
    model = Mixture(width, hidden, experts, depth, classes)
    return Workload("moe", model, (x, y), functional.cross_entropy)
