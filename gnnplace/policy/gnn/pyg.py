"""The encoder in PyTorch Geometric: batches, messages for training, and adapters for its layers.

``MessagePassingMessages`` computes what ``encoder.Messages`` does, to the last bit, with the same
parameters by the same names; it costs 0.1 ms a call. ``BothWays`` makes an encoder of any layer
that takes (in_channels, out_channels) and passes messages one way; ``Gine`` adapts a layer with
other arguments, and ``Gps`` is a graph transformer (Rampášek et al., 2022, arXiv 2205.12454).
An encoder of one's own is a module that is made from the number of features and maps a ``Batch``
of ``ProblemData`` to states [m, any width]. Importing this takes seconds: training does, and
placing only with an encoder that is not the package's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINEConv, GPSConv, MessagePassing

from gnnplace.errors import InputError
from gnnplace.policy.gnn.encoder import NUM_BUCKETS, Encoder, EncoderInputs, GraphBatch

MOST_ATTENDED = 4096  # ops of a graph of full attention: 0.5 GB a head and layer


class ProblemData(Data):  # type: ignore[misc]
    """A problem as a policy's encoder sees it; fields as of ``GraphBatch``, one graph."""

    def __inc__(self, key: str, value: Any, *args: object, **kwargs: object) -> object:
        """Return what the numbers of ``key`` rise by from one graph of a batch to the next."""
        if key == "bucket":
            return NUM_BUCKETS
        if key == "clusters":
            return value.amax(dim=1, keepdim=True) + 1
        return super().__inc__(key, value, *args, **kwargs)

    def __cat_dim__(
        self, key: str, value: object, *args: object, **kwargs: object
    ) -> object:
        """Return the dimension along which graphs of a batch are put together."""
        if key == "clusters":
            return -1
        return super().__cat_dim__(key, value, *args, **kwargs)


def make_graph_batch(inputs: Sequence[EncoderInputs]) -> Batch:
    """Return problems side by side as PyG's ``Batch``."""
    return Batch.from_data_list([ProblemData(**one._asdict()) for one in inputs])


@contextmanager
def without_generated_files() -> Iterator[None]:
    """Make PyG's layers within it; the code that each generates leaves no file behind."""
    default_folder = tempfile.tempdir
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = default_folder


class MessagePassingMessages(MessagePassing):  # type: ignore[misc]
    """``encoder.Messages`` by PyG's message passing."""

    def __init__(self, hidden: int, aggregation: str) -> None:
        super().__init__(aggr=aggregation)
        self.other = nn.Linear(hidden, hidden)
        self.edge = nn.Linear(1, hidden)

    def forward(self, values: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Return the aggregated messages of each op; zero without an edge. [m, hidden]"""
        sent: Tensor = self.propagate(
            edge_index, x=self.other(values), edge_attr=edge_attr
        )
        return sent

    def message(self, x_j: Tensor, edge_attr: Tensor) -> Tensor:
        """Return the message along each edge. [edges, hidden]"""
        return torch.relu(x_j + self.edge(edge_attr))


def convert_to_message_passing(plain: Encoder) -> Encoder:
    """Return the same encoder, its parameters too, over PyG's message passing."""
    enter: Any = plain.enter[0]
    with without_generated_files():
        encoder = Encoder(
            enter.in_features,
            enter.out_features,
            len(plain.layers),
            MessagePassingMessages,
        )
    encoder.load_state_dict(plain.state_dict())
    return encoder


class BothWays(nn.Module):
    """Any layer of PyG, once along the edges and once against them, with residuals.

    Args:
        inputs: number of features of an op.
        conv: makes a layer of (in_channels, out_channels), such as
            ``torch_geometric.nn.GATv2Conv`` with ``edge_dim: 1``.
        hidden: size of an op's state.
        layers: rounds of messages.
        edges: whether the layer takes ``edge_attr``.
    """

    def __init__(
        self,
        inputs: int,
        conv: Callable[[int, int], nn.Module],
        hidden: int = 64,
        layers: int = 3,
        edges: bool = True,
    ) -> None:
        super().__init__()
        self.edges = edges
        self.enter = nn.Linear(inputs, hidden)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(layers))
        self.forth = nn.ModuleList(conv(hidden, hidden) for _ in range(layers))
        self.back = nn.ModuleList(conv(hidden, hidden) for _ in range(layers))
        merges = [nn.Linear(3 * hidden, hidden) for _ in range(layers)]
        self.merge = nn.ModuleList(merges)

    def forward(self, data: GraphBatch) -> Tensor:
        """Return the states of all ops. [m, hidden]"""
        state = self.enter(data.x)
        edges = data.edge_index
        if self.edges:
            edge_arguments = {"edge_attr": data.edge_attr}
        else:
            edge_arguments = {}
        for norm, forth, back, merge in zip(
            self.norms, self.forth, self.back, self.merge, strict=True
        ):
            y = norm(state)
            parts = [
                y,
                forth(y, edges, **edge_arguments),
                back(y, edges.flip(0), **edge_arguments),
            ]
            state = state + torch.relu(merge(torch.cat(parts, dim=1)))
        return torch.as_tensor(state)


def _two_layers(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs)
    )


class Gine(nn.Module):
    """``GINEConv`` (Hu et al., 2020, arXiv 1905.12265) with the arguments that others have."""

    def __init__(self, in_channels: int, out_channels: int, edge_dim: int = 1) -> None:
        super().__init__()
        self.conv = GINEConv(_two_layers(in_channels, out_channels), edge_dim=edge_dim)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Return the states of all ops. [m, out_channels]"""
        return torch.as_tensor(self.conv(x, edge_index, edge_attr))


class Gps(nn.Module):
    """A graph transformer: ``GPSConv`` around GINE, each op attending to all of its graph.

    Args:
        inputs: number of features of an op.
        hidden: size of an op's state.
        layers: rounds.
        heads: The number of attention heads; a divisor of ``hidden``.
        attn_type: ``multihead``, of all pairs of at most ``MOST_ATTENDED`` ops, or ``performer``,
            linear, in which PyG adds the padding of smaller graphs: states change by under 1e-3.
        norm: PyG's name of the normalisation.
    """

    def __init__(
        self,
        inputs: int,
        hidden: int = 64,
        layers: int = 2,
        heads: int = 4,
        attn_type: str = "multihead",
        norm: str = "layer_norm",
    ) -> None:
        super().__init__()
        self.full = attn_type == "multihead"
        self.enter = nn.Linear(inputs, hidden)
        self.layers = nn.ModuleList(
            GPSConv(
                hidden,
                GINEConv(_two_layers(hidden, hidden), edge_dim=1),
                heads=heads,
                norm=norm,
                attn_type=attn_type,
                norm_kwargs={"mode": "node"} if norm == "layer_norm" else None,
            )
            for _ in range(layers)
        )

    def forward(self, data: GraphBatch) -> Tensor:
        """Return the states of all ops. [m, hidden]

        Raises:
            InputError: a graph is too large for full attention.
        """
        largest = int(torch.bincount(data.batch).max())
        if self.full and largest > MOST_ATTENDED:
            raise InputError(
                f"encoder Gps: a graph of {largest} ops, full attention takes at most "
                f"{MOST_ATTENDED}; train with attn_type: performer, or place in --groups"
            )
        state = self.enter(data.x)
        for layer in self.layers:
            state = layer(state, data.edge_index, data.batch, edge_attr=data.edge_attr)
        return torch.as_tensor(state)
