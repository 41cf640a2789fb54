"""DenseNet (Huang et al., CVPR 2017): a layer takes all earlier ones of its block."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from gnnplace.errors import InputError
from gnnplace.zoo import Workload, make_image_classifier

# Layers of each block.
DEPTHS = {"121": (6, 12, 24, 16), "40": (6, 6, 6), "22": (3, 3, 3)}


class DenseLayer(nn.Module):
    """Norm, ReLU, 1x1, norm, ReLU, 3x3 convolution: `growth` more channels."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.first = nn.BatchNorm2d(inputs)
        self.second = nn.BatchNorm2d(4 * growth)
        self.reduce = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.grow = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the new channels. [batch, growth, height, width]."""
        y = self.reduce(functional.relu(self.first(x)))
        return self.grow(functional.relu(self.second(y)))


class Transition(nn.Module):
    """Norm, ReLU, 1x1 convolution to half the channels, 2x2 average pooling."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, inputs // 2, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [batch, inputs / 2, height / 2, width / 2]."""
        return functional.avg_pool2d(self.conv(functional.relu(self.norm(x))), 2)


class DenseNet(nn.Module):
    """Stem, dense blocks with transitions, classifier. [batch, 3, size, size] -> classes."""

    def __init__(self, depths: tuple[int, ...], growth: int, classes: int) -> None:
        super().__init__()
        channels = 2 * growth
        self.stem = nn.Conv2d(3, channels, 3, padding=1, stride=2, bias=False)
        self.blocks = nn.ModuleList()
        self.transitions = nn.ModuleList()
        for number, depth in enumerate(depths):
            layers = [DenseLayer(channels + i * growth, growth) for i in range(depth)]
            self.blocks.append(nn.ModuleList(layers))
            channels += depth * growth
            if number + 1 < len(depths):
                self.transitions.append(Transition(channels))
                channels //= 2
        self.norm = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return class scores."""
        x = self.stem(x)
        for number, block in enumerate(self.blocks):
            for layer in block:  # type: ignore[attr-defined]
                x = torch.cat([x, layer(x)], 1)
            if number < len(self.transitions):
                x = self.transitions[number](x)
        return self.head(functional.relu(self.norm(x)).mean((2, 3)))


def densenet(
    batch: int = 8,
    size: int = 32,
    layers: str = "22",
    growth: int = 12,
    classes: int = 10,
) -> Workload:
    """Build DenseNet with a classification loss.

    Args:
        batch: Images in a step.
        size: Height and width of an image.
        layers: A key of `DEPTHS`.
        growth: Channels that a layer adds.
        classes: The number of classes of the classifier.

    Raises:
        InputError: There is no such number of layers.
    """
    if str(layers) not in DEPTHS:
        raise InputError(
            f"densenet: layers {layers}: unknown; there are {', '.join(DEPTHS)}"
        )
    model = DenseNet(DEPTHS[str(layers)], growth, classes)
    return make_image_classifier("densenet", model, batch, size, classes)
