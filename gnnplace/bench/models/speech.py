"""Listen, attend and spell (Chan et al., ICASSP 2016, arXiv 1508.01211): speech to letters.

The listener is LSTM layers both ways, each above the first on pairs of joined frames (a pyramid).
The speller is unrolled letter by letter: LSTM cells on the last letter and context, content-based
attention by the top state, letters from top state and context. Smaller than the paper's by default.
"""

from __future__ import annotations

import torch
from torch import nn

from gnnplace.zoo import Workload, make_generator, word_loss


class Listener(nn.Module):
    """A pyramid of layers. [batch, frames, features] -> [batch, frames / 2^(layers - 1), width]."""

    def __init__(self, features: int, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.LSTM(
                2 * width if i else features,
                width // 2,
                batch_first=True,
                bidirectional=True,
            )
            for i in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the top layer's states."""
        for i, layer in enumerate(self.layers):
            if i:
                # Two frames become one of twice the width.
                even_length = x.shape[1] // 2 * 2
                x = x[:, :even_length].reshape(len(x), -1, 2 * x.shape[2])
            x = layer(x)[0]
        return x


class Speller(nn.Module):
    """Letters one by one, with attention on the listener's states.

    [batch, letters], [batch, frames, width] -> [batch, letters, alphabet].
    """

    def __init__(self, alphabet: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(alphabet, width)
        self.cells = nn.ModuleList(
            nn.LSTMCell(width if i else 2 * width, width) for i in range(layers)
        )
        self.ask = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.head = nn.Sequential(
            nn.Linear(2 * width, width), nn.Tanh(), nn.Linear(width, alphabet)
        )

    def forward(self, letters: torch.Tensor, heard: torch.Tensor) -> torch.Tensor:
        """Return the scores of every letter."""
        keys = self.key(heard)
        nothing = torch.zeros_like(heard[:, 0])
        states = [(nothing, nothing)] * len(self.cells)
        context = nothing
        scores = []
        for letter in self.embedding(letters).unbind(1):
            x = torch.cat([letter, context], 1)
            for i, cell in enumerate(self.cells):
                states[i] = cell(x, states[i])
                x = states[i][0]
            weights = torch.softmax(keys @ self.ask(x)[:, :, None], 1)
            context = (weights * heard).sum(1)
            scores.append(self.head(torch.cat([x, context], 1)))
        return torch.stack(scores, 1)


class ListenAttendSpell(nn.Module):
    """Teacher-forced. [batch, frames, features], [batch, letters] -> [batch, letters, alphabet]."""

    def __init__(self, listener: Listener, speller: Speller) -> None:
        super().__init__()
        self.listener = listener
        self.speller = speller

    def forward(self, sound: torch.Tensor, letters: torch.Tensor) -> torch.Tensor:
        """Return the scores of every next letter."""
        return self.speller(letters, self.listener(sound))


def speech(
    batch: int = 16,
    frames: int = 8,
    letters: int = 4,
    features: int = 40,
    width: int = 128,
    layers: int = 3,
    spelling: int = 2,
    alphabet: int = 30,
) -> Workload:
    """Build a listen, attend and spell model with a loss on every next letter.

    Args:
        batch: Utterances in a step.
        frames: Frames of a sound, at least 2^(layers - 1).
        letters: Letters of a text.
        features: Numbers of a frame.
        width: The width of states, both directions together.
        layers: Layers of the listener; each above the first halves the frames.
        spelling: Layers of the speller.
        alphabet: The number of letters that there are.
    """
    random = make_generator(0)
    sound = torch.randn(batch, frames, features, generator=random)
    texts = [
        torch.randint(alphabet, (batch, letters), generator=random) for _ in range(2)
    ]
    listener = Listener(features, width, layers)
    model = ListenAttendSpell(listener, Speller(alphabet, width, spelling))
    return Workload("speech", model, (sound, *texts), word_loss)
