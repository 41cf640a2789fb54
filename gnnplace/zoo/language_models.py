"""Builds recurrent language models and taggers.

* ``rnn_lm``: LSTM or GRU (Zaremba et al., 2014).
* ``big_lstm``: LSTM with projections (Jozefowicz et al., 2016, arXiv 1602.02410).
* ``tagger``: layers that read a text in both directions (Huang et al., 2015, arXiv 1508.01991,
  without its CRF).
* ``searched_rnn``: a cell that is drawn as the untrained controller of ENAS draws it, unrolled over
  time (Pham et al., ICML 2018, section 2.1). Each node of the cell is a highway node on one earlier
  node, with tanh, ReLU, identity or sigmoid. The new state is the mean of the nodes that no other
  node reads. It is the second family of graphs of Addanki et al. (Placeto, NeurIPS 2019) and Wang
  et al. (2022).
"""

from __future__ import annotations

import random as python_random
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from gnnplace.errors import InputError
from gnnplace.zoo.workload import Workload, make_generator

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "identity": lambda x: x,
    "sigmoid": torch.sigmoid,
}
CELLS: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}


class LanguageModel(nn.Module):
    """A model of an embedding, recurrent layers and a head that scores the classes of each word.

    Input [batch, length], output [batch, length, classes].

    Args:
        recurrent: The recurrent layers; they return their outputs first.
        vocabulary: Number of words.
        width: Width of the embedding and of the layers' outputs.
        classes: Number of classes of a word; by default the vocabulary.
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
        """Return the scores of each class for every word. [batch, length, classes]"""
        return self.head(self.recurrent(self.embedding(words))[0])


class Unrolled(nn.Module):
    """A recurrent layer whose cell, `step`, is called for each time step."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all states and the last one.

        Args:
            x: Inputs. [batch, length, width]

        Returns:
            States [batch, length, width] and the last state [batch, width].
        """
        state = torch.zeros_like(x[:, 0])
        states = []
        for step_input in x.unbind(1):
            state = self.step(step_input, state)
            states.append(state)
        return torch.stack(states, 1), state

    def step(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Return the next state.

        Args:
            x: Inputs of one time step. [batch, width]
            state: The state before. [batch, width]
        """
        raise NotImplementedError


class SearchedCell(Unrolled):
    """A recurrent layer with a cell of ENAS's search space.

    Args:
        width: Width of inputs and state.
        nodes: For each node of the cell the earlier node that it reads, and its activation. The
            first node reads the input and the state instead.
    """

    def __init__(self, width: int, nodes: list[tuple[int, str]]) -> None:
        super().__init__()
        self.nodes = nodes
        self.width = width
        self.first = nn.Linear(2 * width, 2 * width)
        self.others = nn.ModuleList(nn.Linear(width, 2 * width) for _ in nodes[1:])
        read_nodes = {source for source, _ in nodes[1:]}
        self.unread = [i for i in range(len(nodes)) if i not in read_nodes]

    def step(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Return the next state, the mean of the nodes that no other node reads."""
        _, activation = self.nodes[0]
        gates = self.first(torch.cat([x, state], 1))
        outputs = [self._apply_highway(gates, state, activation)]
        for layer, (source, activation) in zip(
            self.others, self.nodes[1:], strict=True
        ):
            gates = layer(outputs[source])
            outputs.append(self._apply_highway(gates, outputs[source], activation))
        total = outputs[self.unread[0]]
        for i in self.unread[1:]:
            total = total + outputs[i]
        return total / len(self.unread)

    def _apply_highway(
        self, gates: torch.Tensor, x: torch.Tensor, activation: str
    ) -> torch.Tensor:
        """Return the output of a highway node. [batch, width]

        Args:
            gates: The node's gate and value before their activations. [batch, 2 * width]
            x: What the node passes on where its gate is closed. [batch, width]
            activation: Key of `ACTIVATIONS`.
        """
        gate, value = gates.split(self.width, 1)
        gate = torch.sigmoid(gate)
        return gate * ACTIVATIONS[activation](value) + (1.0 - gate) * x


def sample_nodes(architecture: int, nodes: int) -> list[tuple[int, str]]:
    """Draw the earlier node and the activation of each node of a cell, uniformly.

    Args:
        architecture: Seed of the draws.
        nodes: Number of nodes.
    """
    random = python_random.Random(architecture)
    drawn_nodes = []
    for i in range(nodes):
        source = random.randrange(max(1, i))
        activation = random.choice(list(ACTIVATIONS))
        drawn_nodes.append((source, activation))
    return drawn_nodes


def _find_cell(name: str, cell: str) -> type[nn.LSTM] | type[nn.GRU]:
    """Return the recurrent layers with a kind of cell.

    Args:
        name: The workload, for the message of an error.
        cell: Key of `CELLS`.

    Raises:
        InputError: If there is no such cell.
    """
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
    """Return a workload of random texts and random classes of their words.

    Args:
        name: Name of the workload.
        model: The model. [batch, length] -> [batch, length, classes]
        batch: Texts in a step.
        length: Words of a text.
        vocabulary: Number of words.
        classes: Number of classes of a word; by default the vocabulary, for the next word.
    """
    random = make_generator(0)
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
    """Build a recurrent language model, whose time steps are captured one by one.

    Args:
        batch: Texts in a step.
        length: Words of a text.
        vocabulary: Number of words.
        width: Width of embedding and state.
        layers: Number of recurrent layers.
        cell: `lstm` or `gru`.

    Raises:
        InputError: If there is no such cell.
    """
    recurrent = _find_cell("rnn_lm", cell)(width, width, layers, batch_first=True)
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

    The output of every layer is projected to the width of the embedding. The paper trains on a
    sample of the words instead of the vocabulary. Here a classifier with as many classes as the
    sample has words stands for it; drawing the sample and gathering its rows are left out.

    The paper's sizes are a vocabulary of 793,470, 8,192 cells and samples, a width of 1,024, and
    texts of 20 words.

    Args:
        batch: Texts in a step.
        length: Words of a text.
        vocabulary: Number of words of the embedding.
        cells: Cells of a layer.
        width: Width of the embedding and of the projected state.
        layers: Number of recurrent layers.
        samples: Words that a step scores.

    Raises:
        InputError: If the projection is not narrower than the cells.
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
    """Build a tagger with bidirectional recurrent layers, captured one time step after the other.

    Args:
        batch: Texts in a step.
        length: Words of a text.
        vocabulary: Number of words.
        width: Width of the embedding, and of the state of both directions together.
        layers: Number of recurrent layers.
        cell: `lstm` or `gru`.
        tags: Classes of a word.

    Raises:
        InputError: If there is no such cell.
    """
    make = _find_cell("tagger", cell)
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
        nodes: Number of nodes of the cell.
        vocabulary: Number of words.
        width: Width of embedding and state.
    """
    cell = SearchedCell(width, sample_nodes(architecture, nodes))
    model = LanguageModel(cell, vocabulary, width)
    return word_workload("searched_rnn", model, batch, length, vocabulary)


def word_loss(scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy over all words.

    Args:
        scores: Scores of the classes. [batch, length, classes]
        words: The right class of each word. [batch, length]
    """
    return functional.cross_entropy(scores.flatten(0, 1), words.flatten())
