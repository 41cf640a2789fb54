"""A small network of Inception blocks (Szegedy et al., CVPR 2015): four branches in parallel."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from gnnplace.zoo.workload import Workload, make_image_classifier


class ConvUnit(nn.Module):
    """Convolution, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the unit's output. [batch, outputs, height, width]."""
        return functional.relu(self.norm(self.conv(x)))


class InceptionBlock(nn.Module):
    """Branches of 1x1, 3x3, 5x5 (as two 3x3) and pooling, joined over channels."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.one = ConvUnit(inputs, width, 1)
        self.three = nn.Sequential(
            ConvUnit(inputs, width, 1), ConvUnit(width, width, 3)
        )
        self.five = nn.Sequential(
            ConvUnit(inputs, width, 1),
            ConvUnit(width, width, 3),
            ConvUnit(width, width, 3),
        )
        self.pool = nn.Sequential(
            nn.AvgPool2d(3, 1, 1),
            ConvUnit(inputs, width, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the joined branches. [batch, 4 * width, height, width]."""
        branches = (self.one, self.three, self.five, self.pool)
        return torch.cat([branch(x) for branch in branches], 1)


class Inception(nn.Module):
    """Stem, `depth` blocks, classifier. [batch, 3, size, size] -> [batch, classes]."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(ConvUnit(3, 4 * width, 3), nn.MaxPool2d(2))
        self.blocks = nn.Sequential(
            *(InceptionBlock(4 * width, width) for _ in range(depth))
        )
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return class scores."""
        features = self.blocks(self.stem(x))
        return self.head(features.mean((2, 3)))


def inception(
    batch: int = 8, size: int = 48, width: int = 32, depth: int = 4, classes: int = 10
) -> Workload:
    """Build an Inception-like network with a classification loss.

    Args:
        batch: Images in a step.
        size: Height and width of an image.
        width: Channels of a branch.
        depth: Blocks.
        classes: The number of classes of the classifier.
    """
    model = Inception(width, depth, classes)
    return make_image_classifier("inception", model, batch, size, classes)
