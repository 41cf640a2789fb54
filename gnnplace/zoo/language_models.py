"""Recurrent language models: LSTM or GRU (Zaremba et al., 2014), BigLSTM, cells sampled as ENAS
does; and taggers, whose layers read a text both ways (Huang et al., 2015, arXiv 1508.01991, no
CRF).

``searched_rnn`` draws the cell as the controller of ENAS does before it has learned anything (Pham
et al., ICML 2018, section 2.1: highway nodes, each on one earlier node, with tanh, ReLU, identity
or sigmoid; the mean of the nodes that no other takes is the new state), unrolled over time: the
second family of graphs of Addanki et al. (Placeto, NeurIPS 2019) and Wang et al. (2022).
"""

from __future__ import annotations

import random as python_random
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from gnnplace.errors import InputError
from gnnplace.zoo.workload import Workload, generator

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "identity": lambda x: x,
    "sigmoid": torch.sigmoid,
}
CELLS: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}


class LanguageModel(nn.Module):
    """Embedding, recurrent layers, head. [batch, length] -> [batch, length, classes].

    Args:
        recurrent: the recurrent layers.
        vocabulary: words.
        width: the width of the embedding and of what the layers give.
        classes: The classes of a word. By default, the vocabulary.
    """

    def __init__(
        self,
        recurrent: nn.Module,
        vocabulary: int,
        width: int,
        classes: int | None = None,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrent = recurrent
        self.head = nn.Linear(width, classes or vocabulary)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the scores of every next word."""
        return self.head(self.recurrent(self.embedding(words))[0])


class Unrolled(nn.Module):
    """A cell that is unrolled over time. [batch, length, width] -> the same, and the last state."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all states, and the last one."""
        state = torch.zeros_like(x[:, 0])
        states = []
        for step_input in x.unbind(1):
            state = self.step(step_input, state)
            states.append(state)
        return torch.stack(states, 1), state

    def step(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Return the next state. [batch, width]."""
        raise NotImplementedError


class SearchedCell(Unrolled):
    """A sampled cell unrolled over time. [batch, length, width] -> the same, and the last state.

    Args:
        width: the width of inputs and state.
        nodes: the nodes of the cell: which earlier node each takes (the first takes the input and
            the state), and its activation.
    """

    def __init__(self, width: int, nodes: list[tuple[int, str]]) -> None:
        super().__init__()
        self.nodes = nodes
        self.width = width
        self.first = nn.Linear(2 * width, 2 * width)
        self.others = nn.ModuleList(nn.Linear(width, 2 * width) for _ in nodes[1:])
        taken = {source for source, _ in nodes[1:]}
        self.loose = [i for i in range(len(nodes)) if i not in taken]

    def step(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Return the next state. [batch, width]."""
        _, activation = self.nodes[0]
        gates = self.first(torch.cat([x, state], 1))
        nodes = [self._highway(gates, state, activation)]
        for layer, (source, activation) in zip(
            self.others, self.nodes[1:], strict=True
        ):
            nodes.append(self._highway(layer(nodes[source]), nodes[source], activation))
        total = nodes[self.loose[0]]
        for i in self.loose[1:]:
            total = total + nodes[i]
        return total / len(self.loose)

    def _highway(
        self, y: torch.Tensor, before: torch.Tensor, activation: str
    ) -> torch.Tensor:
        gate, value = y.split(self.width, 1)
        gate = torch.sigmoid(gate)
        return gate * ACTIVATIONS[activation](value) + (1.0 - gate) * before


def sample_nodes(architecture: int, nodes: int) -> list[tuple[int, str]]:
    """Draw the earlier node and the activation of each node of a cell, uniformly."""
    random = python_random.Random(architecture)
    return [
        (random.randrange(max(1, i)), random.choice(list(ACTIVATIONS)))
        for i in range(nodes)
    ]


def _cell(name: str, cell: str) -> type[nn.LSTM] | type[nn.GRU]:
    """Return the recurrent layers of that name; an error names the workload ``name``."""
    if cell not in CELLS:
        raise InputError(
            f"{name}: cell {cell!r}: unknown; there are {', '.join(CELLS)}"
        )
    return CELLS[cell]


def word_workload(
    name: str,
    model: nn.Module,
    batch: int,
    length: int,
    vocabulary: int,
    classes: int | None = None,
) -> Workload:
    """Return a model of [batch, length] words with a loss on the class of each, or the next."""
    random = generator(0)
    sizes = (vocabulary, classes or vocabulary)
    words, targets = (
        torch.randint(size, (batch, length), generator=random) for size in sizes
    )
    return Workload(name, model, (words, targets), word_loss)


def rnn_lm(
    batch: int = 16,
    length: int = 6,
    vocabulary: int = 1000,
    width: int = 128,
    layers: int = 2,
    cell: str = "lstm",
) -> Workload:
    """Build a recurrent language model. Its time steps are captured one by one.

    Args:
        batch: Texts in a step.
        length: Words of a text.
        vocabulary: Words.
        width: The width of embedding and state.
        layers: Recurrent layers.
        cell: `lstm` or `gru`.

    Raises:
        InputError: another cell.
    """
    recurrent = _cell("rnn_lm", cell)(width, width, layers, batch_first=True)
    model = LanguageModel(recurrent, vocabulary, width)
    return word_workload("rnn_lm", model, batch, length, vocabulary)


def big_lstm(
    batch: int = 16,
    length: int = 6,
    vocabulary: int = 1000,
    cells: int = 128,
    width: int = 32,
    layers: int = 2,
    samples: int = 200,
) -> Workload:
    """Build BigLSTM (Jozefowicz et al., 2016, arXiv 1602.02410, section 4.2), small by default.

    Every layer of LSTM cells is projected to the width of the embedding. Training scores `samples`
    sampled words, not the vocabulary: a classifier of so many classes stands for them, without the
    drawing and the gathering of their rows. The paper's sizes: a vocabulary of 793,470, 8,192 cells
    and samples, a width of 1,024, texts of 20 words.

    Args:
        batch: Texts in a step.
        length: Words of a text.
        vocabulary: Words of the embedding.
        cells: Cells of a layer.
        width: The width of the embedding and of the projected state.
        layers: Recurrent layers.
        samples: Words that a step scores.

    Raises:
        InputError: the projection is not narrower than the cells.
    """
    if width >= cells:
        raise InputError(f"big_lstm: width {width}: must be less than cells, {cells}")
    recurrent = nn.LSTM(width, cells, layers, batch_first=True, proj_size=width)
    model = LanguageModel(recurrent, vocabulary, width, samples)
    return word_workload("big_lstm", model, batch, length, vocabulary, samples)


def tagger(
    batch: int = 16,
    length: int = 6,
    vocabulary: int = 1000,
    width: int = 128,
    layers: int = 2,
    cell: str = "lstm",
    tags: int = 20,
) -> Workload:
    """Build a tagger with bidirectional recurrent layers.

    Its time steps are captured one by one.

    Args:
        batch: Texts in a step.
        length: Words of a text.
        vocabulary: Words.
        width: The width of the embedding, and of the state of both directions together.
        layers: Recurrent layers.
        cell: `lstm` or `gru`.
        tags: Classes of a word.

    Raises:
        InputError: another cell.
    """
    make = _cell("tagger", cell)
    recurrent = make(width, width // 2, layers, batch_first=True, bidirectional=True)
    model = LanguageModel(recurrent, vocabulary, width, tags)
    return word_workload("tagger", model, batch, length, vocabulary, tags)


def searched_rnn(
    batch: int = 16,
    length: int = 4,
    architecture: int = 0,
    nodes: int = 8,
    vocabulary: int = 1000,
    width: int = 128,
) -> Workload:
    """Build a language model with a cell sampled from ENAS's recurrent search space.

    Args:
        batch: Texts in a step.
        length: Words of a text.
        architecture: Seed of the cell.
        nodes: The nodes of the cell.
        vocabulary: Words.
        width: The width of embedding and state.
    """
    cell = SearchedCell(width, sample_nodes(architecture, nodes))
    model = LanguageModel(cell, vocabulary, width)
    return word_workload("searched_rnn", model, batch, length, vocabulary)


def word_loss(scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of [batch, length, vocabulary] against [batch, length]."""
    return functional.cross_entropy(scores.flatten(0, 1), words.flatten())
