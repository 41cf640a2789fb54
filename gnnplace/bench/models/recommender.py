"""A multi-tower recommender after DLRM (Naumov et al., 2019, arXiv 1906.00091).

A table and a small tower for each categorical feature, a tower for the dense ones, dot products of
all pairs of towers, and a network on top. The towers are independent until they meet.
"""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional

from gnnplace.zoo import Workload, make_generator, tower


class Recommender(nn.Module):
    """[batch, dense], [batch, tables, ids] -> [batch]."""

    def __init__(
        self, tables: int, rows: int, dense: int, width: int, hidden: int, depth: int
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.towers = nn.ModuleList(
            tower(width, hidden, width, depth) for _ in range(tables)
        )
        self.bottom = tower(dense, hidden, width, depth)
        pairs = tables * (tables + 1) // 2
        self.top = tower(width + pairs, hidden, 1, depth)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        features = [self.bottom(dense)]
        for i, (table, net) in enumerate(zip(self.tables, self.towers, strict=True)):
            features.append(net(table(ids[:, i]).sum(1)))
        pairs = [
            (a * b).sum(1, keepdim=True) for a, b in itertools.combinations(features, 2)
        ]
        return self.top(torch.cat([features[0], *pairs], 1))[:, 0]


def recommender(
    batch: int = 256,
    tables: int = 4,
    ids: int = 4,
    rows: int = 2000,
    dense: int = 13,
    width: int = 64,
    hidden: int = 256,
    depth: int = 2,
) -> Workload:
    """Build a multi-tower recommender with a click loss.

    Args:
        batch: Examples in a step.
        tables: Categorical features, each with a tower.
        ids: The number of ids of a categorical feature in an example.
        rows: The number of rows of a table.
        dense: Dense features.
        width: The width of embeddings and towers' outputs.
        hidden: Units of a hidden layer.
        depth: Hidden layers of every tower.
    """
    random = make_generator(0)
    x = torch.randn(batch, dense, generator=random)
    ids_of_examples = torch.randint(rows, (batch, tables, ids), generator=random)
    clicks = torch.randint(2, (batch,), generator=random).float()
    model = Recommender(tables, rows, dense, width, hidden, depth)
    loss = functional.binary_cross_entropy_with_logits
    return Workload("recommender", model, (x, ids_of_examples, clicks), loss)
