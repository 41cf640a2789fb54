"""Randomly wired CNNs (Xie et al., ICCV 2019): stages whose layers follow a random graph.

Each stage is a Watts-Strogatz graph of ``nodes`` nodes with 4 neighbours each, a quarter of the
edges left in place, directed from the lower node to the higher one (``WS(4, 0.75)`` there). A node
sums its inputs, weighted by sigmoids of learned numbers, then ReLU, separable convolution, batch
norm. Nodes without inputs take the stage's input and halve its size; its output is the mean of the
nodes without consumers.
"""

from __future__ import annotations

import networkx as nx
import torch
from torch import nn

from gnnplace.zoo import Workload, make_image_classifier

NEIGHBOURS = 4
REWIRED = 0.75


class Node(nn.Module):
    """Weighted sum, ReLU, separable convolution, batch norm."""

    def __init__(self, sources: int, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(sources)) if sources > 1 else None
        self.convolution = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False),
            nn.Conv2d(inputs, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        """Return the node's output from those of the nodes before it."""
        total = inputs[0]
        if self.weight is not None:
            weights = torch.sigmoid(self.weight)
            total = weights[0] * total
            for i, x in enumerate(inputs[1:], start=1):
                total = total + weights[i] * x
        return self.convolution(total)


class Stage(nn.Module):
    """A random graph of nodes. [batch, inputs, size, size] -> [batch, outputs, size / 2, ...]."""

    def __init__(self, graph: nx.Graph, inputs: int, outputs: int) -> None:
        super().__init__()
        nodes = range(len(graph))
        self.before = [sorted(j for j in graph[i] if j < i) for i in nodes]
        self.ends = [i for i in nodes if all(j < i for j in graph[i])]
        self.nodes = nn.ModuleList(
            Node(len(b), outputs, outputs, 1) if b else Node(1, inputs, outputs, 2)
            for b in self.before
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean of the nodes that no other takes."""
        outputs: list[torch.Tensor] = []
        for node, sources in zip(self.nodes, self.before, strict=True):
            outputs.append(node([outputs[i] for i in sources] or [x]))
        total = outputs[self.ends[0]]
        for i in self.ends[1:]:
            total = total + outputs[i]
        return total / len(self.ends)


class WiredNetwork(nn.Module):
    """Stem, stages of doubling width, classifier. [batch, 3, size, size] -> [batch, classes]."""

    def __init__(
        self, nodes: int, stages: int, width: int, seed: int, classes: int
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        ]
        for i in range(stages):
            graph = nx.connected_watts_strogatz_graph(
                nodes, NEIGHBOURS, REWIRED, seed=seed + i
            )
            layers.append(Stage(graph, width << max(0, i - 1), width << i))
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width << (stages - 1), classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of every class."""
        return self.head(self.body(x).mean((2, 3)))


def wired(
    batch: int = 8,
    size: int = 32,
    nodes: int = 12,
    stages: int = 3,
    width: int = 16,
    architecture: int = 0,
    classes: int = 10,
) -> Workload:
    """Build a randomly wired CNN with a classification loss.

    Args:
        batch: Images in a step.
        size: Height and width of an image; halved by each stage.
        nodes: Nodes of a stage, above 4.
        stages: The number of random graphs.
        width: Channels of the first stage; doubled by each.
        architecture: The seed of the random graphs.
        classes: The number of classes of the classifier.
    """
    model = WiredNetwork(nodes, stages, width, 100 * architecture, classes)
    return make_image_classifier("wired", model, batch, size, classes)
