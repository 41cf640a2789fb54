"""U-Net (Ronneberger et al., MICCAI 2015): down, up, and skips across; padded, with batch norm."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from gnnplace.zoo import ConvUnit, Workload, make_generator


def pair(inputs: int, outputs: int) -> nn.Sequential:
    """Return two 3x3 convolutions with norm and ReLU."""
    return nn.Sequential(ConvUnit(inputs, outputs, 3), ConvUnit(outputs, outputs, 3))


class UNet(nn.Module):
    """`depth` halvings and doublings. [batch, 3, size, size] -> [batch, classes, size, size]."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        widths = [width << i for i in range(depth + 1)]
        self.down = nn.ModuleList(
            pair(a, b) for a, b in zip([3, *widths], widths, strict=False)
        )
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths[:-1])
        )
        self.up = nn.ModuleList(pair(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores of every pixel."""
        skips: list[torch.Tensor] = []
        for block in self.down:
            x = block(functional.max_pool2d(x, 2) if skips else x)
            skips.append(x)
        for grow, block, skip in zip(
            self.grow, self.up, reversed(skips[:-1]), strict=True
        ):
            x = block(torch.cat([skip, grow(x)], 1))
        return self.head(x)


def unet(
    batch: int = 4, size: int = 64, width: int = 16, depth: int = 3, classes: int = 4
) -> Workload:
    """Build a U-Net with a segmentation loss.

    Args:
        batch: Images in a step.
        size: Height and width of an image; divisible by 2 to the power of `depth`.
        width: Channels at full size; doubled at each halving.
        depth: Halvings.
        classes: The number of classes of a pixel.
    """
    random = make_generator(0)
    x = torch.randn(batch, 3, size, size, generator=random)
    y = torch.randint(classes, (batch, size, size), generator=random)
    return Workload(
        "unet", UNet(width, depth, classes), (x, y), functional.cross_entropy
    )
