"""Networks of searched cells: NASNet-A and cells sampled as architecture search does.

A cell has two inputs, the outputs of the two cells before it, and nodes that each add two
operations on earlier nodes; nodes that no other takes are joined (Zoph et al., CVPR 2018).
``nasnet`` stacks the published NASNet-A cells; ``searched_cnn`` draws both cells as the controller
of ENAS does before it has learned anything, all choices equally likely (Pham et al., ICML 2018,
micro search space): the first of the three families of graphs that Addanki et al. (Placeto,
NeurIPS 2019) and Wang et al. (2022, arXiv 2201.09676) place. Separable convolutions are applied
once, not twice as in the papers.
"""

from __future__ import annotations

import random as python_random

import torch
from torch import nn
from torch.nn import functional

from gnnplace.zoo import Workload, make_image_classifier

# Input and operation, twice. Inputs 0 and 1 are the cell's own.
Node = tuple[int, str, int, str]
# The operations of ENAS's micro search space.
OPERATIONS = ("sep3", "sep5", "avg", "max", "identity")
NASNET_NORMAL: tuple[Node, ...] = (
    (1, "sep3", 1, "identity"),
    (0, "sep3", 1, "sep5"),
    (1, "avg", 0, "identity"),
    (0, "avg", 0, "avg"),
    (0, "sep5", 0, "sep3"),
)
NASNET_REDUCTION: tuple[Node, ...] = (
    (1, "sep5", 0, "sep7"),
    (1, "max", 0, "sep7"),
    (1, "avg", 0, "sep5"),
    (1, "max", 2, "sep3"),
    (2, "avg", 3, "identity"),
)


def sample_cell(random: python_random.Random, nodes: int) -> tuple[Node, ...]:
    """Return a cell of so many nodes, all choices equally likely."""
    return tuple(
        (
            random.randrange(node + 2),
            random.choice(OPERATIONS),
            random.randrange(node + 2),
            random.choice(OPERATIONS),
        )
        for node in range(nodes)
    )


class Separable(nn.Module):
    """ReLU, depthwise and pointwise convolution, batch norm."""

    def __init__(self, width: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(
            width, width, kernel, stride, kernel // 2, groups=width, bias=False
        )
        self.pointwise = nn.Conv2d(width, width, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [batch, width, height / stride, width / stride]."""
        return self.norm(self.pointwise(self.depthwise(functional.relu(x))))


def operation(name: str, width: int, stride: int) -> nn.Module:
    """Return an operation of a node; what has no parameters pools where the stride is two."""
    if name.startswith("sep"):
        return Separable(width, int(name[3:]), stride)
    if name == "max":
        return nn.MaxPool2d(3, stride, 1)
    if name == "avg" or stride == 2:
        return nn.AvgPool2d(3, stride, 1)
    return nn.Identity()


class Fit(nn.Module):
    """ReLU, 1x1 convolution and norm that give a cell's input the cell's width and size."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, width, 1, stride, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [batch, width, height / stride, width / stride]."""
        return self.norm(self.conv(functional.relu(x)))


class Cell(nn.Module):
    """One cell; a reduction halves height and width.

    Args:
        nodes: The nodes of the cell.
        before: Channels of both inputs.
        width: Channels of a node.
        strides: The strides of the fits of both inputs.
        reduction: Whether operations on the inputs have stride two.
    """

    def __init__(
        self,
        nodes: tuple[Node, ...],
        before: tuple[int, int],
        width: int,
        strides: tuple[int, int],
        reduction: bool,
    ) -> None:
        super().__init__()
        self.fits = nn.ModuleList(
            Fit(n, width, s) for n, s in zip(before, strides, strict=True)
        )
        self.inputs = [(a, b) for a, _, b, _ in nodes]
        stride = 2 if reduction else 1
        self.operations = nn.ModuleList(
            operation(name, width, stride if source < 2 else 1)
            for a, first, b, second in nodes
            for source, name in ((a, first), (b, second))
        )
        taken = {source for pair in self.inputs for source in pair}
        self.loose = [i for i in range(2, len(nodes) + 2) if i not in taken]

    def forward(self, previous: torch.Tensor, current: torch.Tensor) -> torch.Tensor:
        """Return the loose ends, joined. [batch, loose * width, height, width]."""
        nodes = [fit(x) for fit, x in zip(self.fits, (previous, current), strict=True)]
        for i, (a, b) in enumerate(self.inputs):
            first = self.operations[2 * i](nodes[a])
            second = self.operations[2 * i + 1](nodes[b])
            nodes.append(first + second)
        return torch.cat([nodes[i] for i in self.loose], 1)


class CellNetwork(nn.Module):
    """Stem, stages of cells with a reduction between, classifier."""

    def __init__(
        self,
        normal: tuple[Node, ...],
        reduction: tuple[Node, ...],
        width: int,
        each: int,
        stages: int,
        classes: int,
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 3 * width, 3, padding=1, bias=False)
        self.cells = nn.ModuleList()
        channels = (3 * width, 3 * width)
        reduced = False
        for number in range(stages * (each + 1) - 1):
            reduce = number % (each + 1) == each
            width = 2 * width if reduce else width
            strides = (2 if reduced else 1, 1)
            cell = Cell(
                reduction if reduce else normal, channels, width, strides, reduce
            )
            self.cells.append(cell)
            channels = (channels[1], len(cell.loose) * width)
            reduced = reduce
        self.head = nn.Linear(channels[1], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return class scores. [batch, 3, size, size] -> [batch, classes]."""
        previous = current = self.stem(x)
        for cell in self.cells:
            previous, current = current, cell(previous, current)
        return self.head(functional.relu(current).mean((2, 3)))


def nasnet(
    batch: int = 8, size: int = 32, width: int = 16, each: int = 1, stages: int = 2
) -> Workload:
    """Build NASNet-A with a classification loss (10 classes).

    Args:
        batch: Images in a step.
        size: Height and width of an image.
        width: Channels of a node in the first stage.
        each: Normal cells of a stage.
        stages: Stages; a reduction cell between each two.
    """
    model = CellNetwork(NASNET_NORMAL, NASNET_REDUCTION, width, each, stages, 10)
    return make_image_classifier("nasnet", model, batch, size, 10)


def searched_cnn(
    batch: int = 8,
    size: int = 32,
    architecture: int = 0,
    nodes: int = 5,
    width: int = 20,
    each: int = 1,
    stages: int = 2,
) -> Workload:
    """Return a network of cells sampled from ENAS's micro search space, for CIFAR-10's images.

    Args:
        batch: Images in a step.
        size: Height and width of an image.
        architecture: Seed of both cells.
        nodes: The nodes of a cell, beside its inputs.
        width: Channels of a node in the first stage.
        each: Normal cells of a stage.
        stages: Stages; a reduction cell between each two.
    """
    random = python_random.Random(architecture)
    normal = sample_cell(random, nodes)
    reduction = sample_cell(random, nodes)
    model = CellNetwork(normal, reduction, width, each, stages, 10)
    return make_image_classifier("searched_cnn", model, batch, size, 10)
