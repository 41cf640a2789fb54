"""FractalNet (Larsson et al., ICLR 2017, arXiv 1605.07648): blocks whose paths double in depth.

A block of C columns is f_C(x), with f_1(x) = layer(x) and f_{c+1}(x) = mean(f_c(f_c(x)), layer(x)),
where a layer is convolution, batch norm, ReLU; so its longest path has 2^(C-1) layers, its shortest
one. Paths that end at the same depth are joined at once by their mean, as in the paper. Stages end
by pooling. Without drop-path and dropout.
"""

from __future__ import annotations

import torch
from torch import nn

from gnnplace.zoo import Workload, make_image_classifier


def layer(inputs: int, outputs: int) -> nn.Module:
    """Return convolution, batch norm and ReLU in sequence."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class Block(nn.Module):
    """A fractal block. [batch, inputs, size, size] -> [batch, outputs, size, size]."""

    def __init__(self, columns: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.short = layer(inputs, outputs)
        self.first = Block(columns - 1, inputs, outputs) if columns > 1 else None
        self.second = Block(columns - 1, outputs, outputs) if columns > 1 else None

    def paths(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return the output of each column, not yet joined."""
        if self.first is None or self.second is None:
            return [self.short(x)]
        return [self.short(x), *self.second.paths(self.first(x))]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean of all columns."""
        paths = self.paths(x)
        return paths[0] if len(paths) == 1 else torch.stack(paths).mean(0)


def fractal(
    batch: int = 8,
    size: int = 32,
    columns: int = 3,
    stages: int = 3,
    width: int = 16,
    classes: int = 10,
) -> Workload:
    """Build FractalNet with a classification loss.

    Args:
        batch: Images in a step.
        size: Height and width of an image; halved by each stage.
        columns: Columns of a block; its longest path has two to the power of one less layers.
        stages: The number of blocks.
        width: Channels of the first stage; doubled by each.
        classes: The number of classes of the classifier.
    """
    blocks: list[nn.Module] = []
    for i in range(stages):
        blocks += [
            Block(columns, width << (i - 1) if i else 3, width << i),
            nn.MaxPool2d(2),
        ]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(*blocks, head, nn.Linear(width << (stages - 1), classes))
    return make_image_classifier("fractal", model, batch, size, classes)
