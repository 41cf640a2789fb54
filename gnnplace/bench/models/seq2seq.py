"""LSTM encoder and decoder with dot-product attention (Luong et al., EMNLP 2015)."""

from __future__ import annotations

import torch
from torch import nn

from gnnplace.zoo import Workload, make_generator, word_loss


class Seq2Seq(nn.Module):
    """Teacher-forced translation. [batch, source], [batch, target] -> [batch, target, words]."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.source = nn.Embedding(vocabulary, width)
        self.target = nn.Embedding(vocabulary, width)
        self.encoder = nn.LSTM(width, width, layers, batch_first=True)
        self.decoder = nn.LSTM(width, width, layers, batch_first=True)
        self.combine = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the scores of every next word."""
        memory, state = self.encoder(self.source(source))
        query, _ = self.decoder(self.target(target), state)
        weights = torch.softmax(query @ memory.transpose(1, 2), -1)
        combined = self.combine(torch.cat([query, weights @ memory], -1))
        return self.head(torch.tanh(combined))


def seq2seq(
    batch: int = 32,
    length: int = 8,
    vocabulary: int = 1000,
    width: int = 128,
    layers: int = 2,
) -> Workload:
    """Build an LSTM translation model with attention; its time steps are captured one by one.

    Args:
        batch: Sentences in a step.
        length: Words of a sentence on both sides.
        vocabulary: Words of both languages.
        width: The width of embeddings and states.
        layers: The number of layers of encoder and decoder.
    """
    random = make_generator(0)
    shape = (batch, length)
    source, target, words = (
        torch.randint(vocabulary, shape, generator=random) for _ in range(3)
    )
    model = Seq2Seq(vocabulary, width, layers)
    return Workload("seq2seq", model, (source, target, words), word_loss)
