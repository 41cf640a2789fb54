"""Recurrent highway networks (Zilly et al., ICML 2017, arXiv 1607.03474): several layers a word.

For each word the state s passes ``depth`` highway layers, s' = h t + s (1 - t), with
h = tanh(W x + R s) and t = sigmoid(V x + Q s); the word x enters the first of them alone. The carry
gate is coupled, 1 - t, as in the paper's experiments; weights are those of all words.
"""

from __future__ import annotations

import torch
from torch import nn

from gnnplace.zoo import LanguageModel, Unrolled, Workload, word_workload


class Highway(Unrolled):
    """Recurrent highway layers. [batch, length, width] -> the same, and the last state."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.word = nn.Linear(width, 2 * width)
        self.state = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))

    def step(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Return the next state. [batch, width]."""
        for i, layer in enumerate(self.state):
            if i == 0:
                y = layer(state) + self.word(x)
            else:
                y = layer(state)
            value, gate = y.chunk(2, 1)
            gate = torch.sigmoid(gate)
            state = torch.tanh(value) * gate + state * (1.0 - gate)
        return state


class Stacked(nn.Module):
    """Recurrences one on the states of the other. [batch, length, width] -> the same."""

    def __init__(self, layers: list[Highway]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the last layer's states, and its last one."""
        state = x[:, 0]
        for layer in self.layers:
            x, state = layer(x)
        return x, state


def highway(
    batch: int = 16,
    length: int = 4,
    vocabulary: int = 1000,
    width: int = 128,
    depth: int = 4,
    layers: int = 1,
) -> Workload:
    """Build a language model of recurrent highway layers, unrolled over time.

    Args:
        batch: Texts in a step.
        length: Words of a text.
        vocabulary: Words.
        width: The width of embedding and state.
        depth: Highway layers that the state passes for each word.
        layers: Such recurrences, one on the states of the other.
    """
    recurrent = Stacked([Highway(width, depth) for _ in range(layers)])
    return word_workload(
        "highway",
        LanguageModel(recurrent, vocabulary, width),
        batch,
        length,
        vocabulary,
    )
