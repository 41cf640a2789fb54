"""Binary tree LSTM (Tai et al., ACL 2015, arXiv 1503.00075, section 3.2) on random trees.

A node takes the states h and cells c of its two children: five gates from one linear layer of
[h_left, h_right], one forget gate for each child; leaves take their word. All texts of a batch have
one tree, drawn from ``tree``: two neighbours at random become one node until one is left.
"""

from __future__ import annotations

import random as python_random

import torch
from torch import nn
from torch.nn import functional

from gnnplace.zoo import Workload, make_generator

State = tuple[torch.Tensor, torch.Tensor]


def merges(leaves: int, seed: int) -> list[int]:
    """Return which of the present nodes merges with its right neighbour, one after the other."""
    random = python_random.Random(seed)
    return [random.randrange(num_nodes - 1) for num_nodes in range(leaves, 1, -1)]


class TreeLSTM(nn.Module):
    """Classifies texts by their tree. [batch, words] -> [batch, classes]."""

    def __init__(
        self, vocabulary: int, width: int, plan: list[int], classes: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.leaf = nn.Linear(width, 3 * width)
        self.node = nn.Linear(2 * width, 5 * width)
        self.head = nn.Linear(width, classes)
        self.plan = plan

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the scores of every class."""
        present = [self.of_word(word) for word in self.embedding(words).unbind(1)]
        for i in self.plan:
            present[i : i + 2] = [self.joined(present[i], present[i + 1])]
        return self.head(present[0][0])

    def of_word(self, word: torch.Tensor) -> State:
        """Return state and cell of a leaf. [batch, width]"""
        enter, out, value = self.leaf(word).chunk(3, 1)
        cell = torch.sigmoid(enter) * torch.tanh(value)
        return torch.sigmoid(out) * torch.tanh(cell), cell

    def joined(self, left: State, right: State) -> State:
        """Return state and cell of a node. [batch, width]"""
        states = torch.cat([left[0], right[0]], 1)
        gates = self.node(states).chunk(5, 1)
        enter, first, second, out = (torch.sigmoid(gate) for gate in gates[:4])
        cell = enter * torch.tanh(gates[4]) + first * left[1] + second * right[1]
        return out * torch.tanh(cell), cell


def tree_lstm(
    batch: int = 16,
    length: int = 8,
    vocabulary: int = 1000,
    width: int = 128,
    tree: int = 0,
    classes: int = 5,
) -> Workload:
    """Build a binary tree LSTM with a classification loss; all texts have one random tree.

    Args:
        batch: Texts in a step.
        length: Words of a text, at least 2.
        vocabulary: Words.
        width: The width of embedding and state.
        tree: The seed of the tree.
        classes: The number of classes of a text.
    """
    random = make_generator(0)
    words = torch.randint(vocabulary, (batch, length), generator=random)
    labels = torch.randint(classes, (batch,), generator=random)
    model = TreeLSTM(vocabulary, width, merges(length, tree), classes)
    return Workload("tree_lstm", model, (words, labels), functional.cross_entropy)
