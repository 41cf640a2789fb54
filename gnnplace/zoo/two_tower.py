"""A two-tower recommender: users and items pass separate networks and meet in a dot product."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional

from gnnplace.zoo.workload import Workload, make_generator


def tower(inputs: int, hidden: int, outputs: int, depth: int) -> nn.Sequential:
    """Build `depth` hidden layers with ReLU, and an output layer."""
    sizes = [inputs] + [hidden] * depth
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


class Tower(nn.Module):
    """Embedding of a bag of ids and an MLP. [batch, ids] -> [batch, width]."""

    def __init__(self, vocabulary: int, width: int, hidden: int, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = tower(width, hidden, width, depth)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the normalised representation."""
        mean = self.embedding(ids).mean(1)
        return functional.normalize(self.layers(mean), dim=-1)


class TwoTower(nn.Module):
    """Score of each pair of user and item. [batch, ids], [batch, ids] -> [batch]."""

    def __init__(self, vocabulary: int, width: int, hidden: int, depth: int) -> None:
        super().__init__()
        self.user = Tower(vocabulary, width, hidden, depth)
        self.item = Tower(vocabulary, width, hidden, depth)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        return 5.0 * (self.user(users) * self.item(items)).sum(-1)


def two_tower(
    batch: int = 256,
    ids: int = 8,
    vocabulary: int = 2000,
    width: int = 128,
    hidden: int = 512,
    depth: int = 4,
) -> Workload:
    """Build a two-tower recommender with a click loss.

    Args:
        batch: Pairs in a step.
        ids: Features of a user and of an item.
        vocabulary: Rows of each embedding.
        width: The width of embedding and representation.
        hidden: Units of a hidden layer.
        depth: Hidden layers.
    """
    random = make_generator(0)
    users = torch.randint(vocabulary, (batch, ids), generator=random)
    items = torch.randint(vocabulary, (batch, ids), generator=random)
    clicks = torch.randint(2, (batch,), generator=random).float()
    model = TwoTower(vocabulary, width, hidden, depth)
    loss = functional.binary_cross_entropy_with_logits
    return Workload("two_tower", model, (users, items, clicks), loss)
