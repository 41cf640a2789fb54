"""GNMT (Wu et al., 2016, arXiv 1609.08144): deep LSTM translation with attention at every step.

The first encoder layer goes both ways; later layers have residuals. The decoder is unrolled word by
word: its first layer's state asks the attention, and all layers take the context. Smaller than the
paper's eight layers of 1,024 by default.
"""

from __future__ import annotations

import torch
from torch import nn

from gnnplace.zoo import Workload, make_generator, word_loss


class Encoder(nn.Module):
    """A bidirectional layer, then layers with residuals. [batch, source, width] -> the same."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.both = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.join = nn.Linear(2 * width, width)
        self.above = nn.ModuleList(
            nn.LSTM(width, width, batch_first=True) for _ in range(layers - 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last layer's states."""
        x = self.join(self.both(x)[0])
        for layer in self.above:
            x = x + layer(x)[0]
        return x


class Decoder(nn.Module):
    """Words one by one, with attention on the encoder's states."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.LSTMCell(2 * width, width) for _ in range(layers))
        self.ask = nn.Linear(width, width)

    def forward(self, words: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """Return the top states. [batch, target, width], [batch, source, width] -> [..., width]."""
        nothing = torch.zeros_like(words[:, 0])
        states = [(nothing, nothing) for _ in self.cells]
        context = nothing
        tops = []
        for word in words.unbind(1):
            x = word
            for i, cell in enumerate(self.cells):
                states[i] = cell(torch.cat([x, context], 1), states[i])
                if i < 2:
                    x = states[i][0]
                else:
                    x = x + states[i][0]
                if i == 0:
                    context = self.attend(x, memory)
            tops.append(x)
        return torch.stack(tops, 1)

    def attend(self, state: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """Return the context. [batch, width]."""
        scores = memory @ self.ask(state)[:, :, None]
        return (torch.softmax(scores, 1) * memory).sum(1)


class GNMT(nn.Module):
    """Teacher-forced translation. [batch, source], [batch, target] -> [batch, target, words]."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.source = nn.Embedding(vocabulary, width)
        self.target = nn.Embedding(vocabulary, width)
        self.encoder = Encoder(width, layers)
        self.decoder = Decoder(width, layers)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the scores of every next word."""
        memory = self.encoder(self.source(source))
        return self.head(self.decoder(self.target(target), memory))


def gnmt(
    batch: int = 16,
    source: int = 4,
    target: int = 4,
    vocabulary: int = 1000,
    width: int = 128,
    layers: int = 2,
) -> Workload:
    """Build GNMT with a loss on every next word.

    Args:
        batch: Pairs of sentences in a step.
        source: Words of a source sentence.
        target: Words of a target sentence.
        vocabulary: Words of both languages.
        width: The width of embeddings and states.
        layers: The number of layers of encoder and decoder.
    """
    random = make_generator(0)
    lengths = (source, target, target)
    words = [torch.randint(vocabulary, (batch, n), generator=random) for n in lengths]
    return Workload("gnmt", GNMT(vocabulary, width, layers), tuple(words), word_loss)
