"""ResNet with bottlenecks (He et al., CVPR 2016), with the stride in the 3x3 convolution (v1.5)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from gnnplace.zoo.workload import Workload, make_image_classifier

EXPANSION = 4


def convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1
) -> nn.Sequential:
    """Build a convolution without bias, and batch norm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut. [batch, channels, height, width]."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.reduce = convolution(inputs, width, 1)
        self.mix = convolution(width, width, 3, stride)
        self.expand = convolution(width, outputs, 1)
        same = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.Identity() if same else convolution(inputs, outputs, 1, stride)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        y = functional.relu(self.reduce(x))
        y = functional.relu(self.mix(y))
        return functional.relu(self.expand(y) + self.shortcut(x))


class ResNet(nn.Module):
    """Stem, four stages of bottlenecks, classifier. [batch, 3, size, size] -> [batch, classes]."""

    def __init__(self, depths: tuple[int, ...], width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            convolution(3, width, 7, 2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        inputs = width
        stages = []
        for stage, depth in enumerate(depths):
            blocks = []
            for i in range(depth):
                if stage > 0 and i == 0:
                    stride = 2
                else:
                    stride = 1
                blocks.append(Bottleneck(inputs, width << stage, stride))
                inputs = (width << stage) * EXPANSION
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return class scores."""
        features = self.stages(self.stem(x))
        return self.head(features.mean((2, 3)))


def resnet50(batch: int = 4, size: int = 64, classes: int = 100) -> Workload:
    """Build ResNet-50: 3, 4, 6 and 3 bottlenecks.

    Args:
        batch: Images in a step.
        size: Height and width of an image.
        classes: The number of classes of the classifier.
    """
    model = ResNet((3, 4, 6, 3), 64, classes)
    return make_image_classifier("resnet50", model, batch, size, classes)


def small_resnet(
    batch: int = 8, size: int = 32, width: int = 16, classes: int = 10
) -> Workload:
    """Build four stages of one narrow bottleneck each, for tests and quick looks.

    Args:
        batch: Images in a step.
        size: Height and width of an image.
        width: Channels of the stem.
        classes: The number of classes of the classifier.
    """
    model = ResNet((1, 1, 1, 1), width, classes)
    return make_image_classifier("small_resnet", model, batch, size, classes)
