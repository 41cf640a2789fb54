"""The encoder: message passing over the graph in both directions, with long-range pooling.

Each layer adds to an op's state the output of a small network. Its inputs are the op's state, the
mean of its producers' messages, the maximum of its consumers' messages, the mean over its bucket
(ops with about the same work before them) and the neighbouring buckets, the mean over the graph,
and the means over its clusters of two levels.

    x' = x + U [y, mean_in m(y), max_out m(y), conv(bucket means), graph mean, cluster means]
    m(y_j, e_ij) = relu(W y_j + V e_ij),  y = LayerNorm(x)

The mean of a bucket, graph or cluster is multiplied by its part of U once a group, not once an op,
which makes training 1.3 times as fast. An encoder takes what PyG calls a batch: ``x``,
``edge_index``, ``edge_attr``, ``batch`` and ``num_graphs``, and here ``bucket`` and ``clusters``.
One problem is ``EncoderInputs``, which has the same names, so that placing imports torch alone: to
import PyG takes seconds. ``policy.gnn.pyg`` has the same layer over its ``MessagePassing``, for
training, and encoders of others. Complexity: O(layers * (m H^2 + edges H)).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

NUM_BUCKETS = 16
NUM_POOLED = 2  # levels of clusters
PARTS = 5 + NUM_POOLED  # The number of vectors that update an op's state


class GraphBatch(Protocol):
    """Graphs side by side, as PyG batches them; m ops in all.

    Attributes:
        x: features of each op. [m, inputs]
        edge_index: producer and consumer of each edge. [2, edges]
        edge_attr: features of each edge. [edges, 1]
        batch: graph of each op, from 0. [m]
        bucket: bucket of each op's place, of ``NUM_BUCKETS`` a graph, over all graphs. [m]
        clusters: cluster of each op at each level, over all graphs. [NUM_POOLED, m]
    """

    @property
    def x(self) -> Tensor: ...
    @property
    def edge_index(self) -> Tensor: ...
    @property
    def edge_attr(self) -> Tensor: ...
    @property
    def batch(self) -> Tensor: ...
    @property
    def bucket(self) -> Tensor: ...
    @property
    def clusters(self) -> Tensor: ...
    @property
    def num_graphs(self) -> int: ...


class EncoderInputs(NamedTuple):
    """One problem as a ``GraphBatch``."""

    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor
    bucket: Tensor
    clusters: Tensor

    @property
    def batch(self) -> Tensor:
        """Return the graph of each op: all are of graph 0. [m]"""
        return self.bucket.new_zeros(len(self.bucket))

    @property
    def num_graphs(self) -> int:
        """Return 1: the encoder takes one graph at a time."""
        return 1

    def to(self, device: torch.device) -> EncoderInputs:
        """Return the same inputs on a device."""
        return EncoderInputs(*(one.to(device) for one in self))


def aggregate_rows(
    values: Tensor, index: Tensor, size: int, how: str = "mean"
) -> Tensor:
    """Return the mean or maximum of the rows of each group; zero for a group of none. [size, H]

    Args:
        values: [rows, H]
        index: group of each row. [rows]
        size: the number of groups.
        how: ``mean`` or ``max``, which the rows of a group become.
    """
    total = values.new_zeros(size, values.shape[1])
    if how == "max":
        of = index[:, None].expand_as(values)
        return total.scatter_reduce(0, of, values, "amax", include_self=False)
    count = torch.bincount(index, minlength=size).clamp(min=1)
    return total.index_add(0, index, values) / count[:, None]


class Messages(nn.Module):
    """Messages along edges with features, aggregated by ``mean`` or ``max``."""

    def __init__(self, hidden: int, aggregation: str) -> None:
        super().__init__()
        self.aggregation = aggregation
        self.other = nn.Linear(hidden, hidden)
        self.edge = nn.Linear(1, hidden)

    def forward(self, values: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Return the aggregated messages of each op; zero without an edge. [m, hidden]"""
        source, target = edge_index
        sent = self.other(values)[source]
        message = torch.relu(sent + self.edge(edge_attr))
        return aggregate_rows(message, target, len(values), self.aggregation)


MakeMessages = Callable[[int, str], nn.Module]


class MessageLayer(nn.Module):
    """One round of messages and pooling."""

    def __init__(self, hidden: int, messages: MakeMessages = Messages) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.producers = messages(hidden, "mean")
        self.consumers = messages(hidden, "max")
        self.along = nn.Conv1d(hidden, hidden, kernel_size=5, padding=2)
        self.update = nn.Sequential(
            nn.Linear(PARTS * hidden, 2 * hidden),
            nn.ReLU(),
            nn.Linear(2 * hidden, hidden),
        )

    def forward(self, values: Tensor, data: GraphBatch) -> Tensor:
        """Return new states of all ops. ``values``: [m, hidden]"""
        y = self.norm(values)
        graphs = data.num_graphs
        pooled = aggregate_rows(y, data.bucket, graphs * NUM_BUCKETS)
        graph_mean = aggregate_rows(y, data.batch, graphs)
        lanes = pooled.view(graphs, NUM_BUCKETS, -1).transpose(1, 2)
        along = torch.relu(self.along(lanes))
        along = along.transpose(1, 2).reshape(pooled.shape)
        from_producers = self.producers(y, data.edge_index, data.edge_attr)
        from_consumers = self.consumers(y, data.edge_index.flip(0), data.edge_attr)
        update = torch.cat([y, from_producers, from_consumers], dim=1)
        enter = cast("nn.Linear", self.update[0])
        hidden = y.shape[1]
        update = linear(update, enter.weight[:, : 3 * hidden], enter.bias)
        update = (
            update
            + self._shared(along, graph_mean)[data.bucket]
            + self._sum_clusters(y, data.clusters)
        )
        return values + cast("Tensor", self.update[1:](update))

    def _shared(self, along: Tensor, whole: Tensor) -> Tensor:
        """Return what a bucket and its graph add within ``update``. [graphs * NUM_BUCKETS, 2
        hidden]
        """
        weight = cast("nn.Linear", self.update[0]).weight
        hidden = along.shape[1]
        of_graph = linear(whole, weight[:, 4 * hidden : 5 * hidden])
        of_bucket = linear(along, weight[:, 3 * hidden : 4 * hidden])
        return of_bucket + of_graph.repeat_interleave(NUM_BUCKETS, 0)

    def _sum_clusters(self, y: Tensor, clusters: Tensor) -> Tensor:
        """Return what the means of an op's clusters add within ``update``. [m, 2 hidden]"""
        enter = cast("nn.Linear", self.update[0])
        weights = enter.weight[:, 5 * y.shape[1] :]
        total = y.new_zeros(len(y), weights.shape[0])
        chunks = weights.chunk(NUM_POOLED, dim=1)
        for of, weight in zip(clusters, chunks, strict=True):
            mean = aggregate_rows(y, of, int(of.max()) + 1)
            total = total + linear(mean, weight)[of]
        return total


class Encoder(nn.Module):
    """A network that embeds every visited op of a batch of graphs.

    Args:
        inputs: number of features of an op, the graph's own included.
        hidden: size of an op's state.
        layers: rounds of messages; 0 leaves the graph out.
        messages: makes what passes messages, of the size of states and an aggregation.
    """

    def __init__(
        self, inputs: int, hidden: int, layers: int, messages: MakeMessages = Messages
    ) -> None:
        super().__init__()
        self.enter = nn.Sequential(
            nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden)
        )
        self.layers = nn.ModuleList(
            MessageLayer(hidden, messages) for _ in range(layers)
        )

    def forward(self, data: GraphBatch) -> Tensor:
        """Return the states of all ops. [m, hidden]"""
        state: Any = self.enter(data.x)
        for layer in self.layers:
            state = layer(state, data)
        return cast("Tensor", state)


class NullEncoder(Encoder):
    """An op's own features and its graph's alone: the control of every other encoder.

    Args:
        inputs: number of features of an op.
        hidden: size of an op's state.
    """

    def __init__(self, inputs: int, hidden: int = 64) -> None:
        super().__init__(inputs, hidden, 0)
