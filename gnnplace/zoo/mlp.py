"""A chain of residual feed-forward blocks: the plainest pipeline."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from gnnplace.zoo.workload import Workload, make_generator


class Block(nn.Module):
    """`x + W2 relu(W1 norm(x))` on [batch, width]."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output, of the shape of `x`."""
        return x + self.down(functional.relu(self.up(self.norm(x))))


class MLP(nn.Module):
    """`depth` blocks and a classifier. [batch, width] -> [batch, classes]."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        blocks = [Block(width, 4 * width) for _ in range(depth)]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return class scores."""
        return self.head(self.blocks(x))


def mlp(
    batch: int = 128, width: int = 256, depth: int = 8, classes: int = 16
) -> Workload:
    """Build a residual MLP with a classification loss.

    Args:
        batch: Examples in a step.
        width: Features between blocks; the hidden layers have four times as many.
        depth: Blocks.
        classes: The number of classes of the classifier.
    """
    random = make_generator(0)
    x = torch.randn(batch, width, generator=random)
    y = torch.randint(classes, (batch,), generator=random)
    return Workload("mlp", MLP(width, depth, classes), (x, y), functional.cross_entropy)
