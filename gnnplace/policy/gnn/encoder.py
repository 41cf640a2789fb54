"""The encoder: message passing over the graph in both directions, with long-range pooling.

Each layer adds to an op's state what a small network makes of it, of the mean of its producers'
messages, of the maximum of its consumers' messages, of the mean of the ops at about the same place
in the graph (a bucket of the work before it) and its neighbouring buckets, of the whole, and of the
means of its clusters of two levels.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

NUM_BUCKETS = 16
NUM_POOLED = 2  # levels of clusters
PARTS = 5 + NUM_POOLED  # what an op's state is updated from


def aggregated(values: Tensor, index: Tensor, size: int, how: str = "mean") -> Tensor:
    """Mean or maximum of the rows of each group; zero for a group of none. [size, H]

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
    """Messages along edges with features, aggregated by ``mean`` or ``max``.

    Written with torch alone: to import PyG takes seconds, which placing does not have, and its
    ``MessagePassing`` compiles itself into a temporary file in every process.
    """

    def __init__(self, hidden: int, aggregation: str) -> None:
        super().__init__()
        self.aggregation = aggregation
        self.other = nn.Linear(hidden, hidden)
        self.edge = nn.Linear(1, hidden)

    def forward(self, values: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Aggregated messages of each node; zero without an edge. [nodes, hidden]"""
        source, target = edge_index
        message = torch.relu(self.other(values)[source] + self.edge(edge_attr))
        return aggregated(message, target, len(values), self.aggregation)


class MessageLayer(nn.Module):
    """One round of messages and pooling."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.producers = Messages(hidden, "mean")
        self.consumers = Messages(hidden, "max")
        self.along = nn.Conv1d(hidden, hidden, kernel_size=5, padding=2)
        self.update = nn.Sequential(
            nn.Linear(PARTS * hidden, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, hidden)
        )

    def forward(
        self,
        values: Tensor,
        edges: Tensor,
        attr: Tensor,
        place: Tensor,
        of: Tensor,
        clusters: Tensor,
    ) -> Tensor:
        """New states; arguments as of ``Encoder``."""
        y = self.norm(values)
        graphs = int(of.max()) + 1
        pooled = aggregated(y, place, graphs * NUM_BUCKETS)
        whole = aggregated(y, of, graphs)
        lanes = pooled.view(graphs, NUM_BUCKETS, -1).transpose(1, 2)
        along = torch.relu(self.along(lanes)).transpose(1, 2).reshape(pooled.shape)
        before = self.producers(y, edges, attr)
        behind = self.consumers(y, edges.flip(0), attr)
        own = self._of_clusters(y, clusters)
        parts = torch.cat([y, before, behind], dim=1)
        return values + self._updated(parts, along, whole, place, own)

    def _of_clusters(self, y: Tensor, clusters: Tensor) -> Tensor:
        """What the means of an op's clusters add within ``update``. [nodes, 2 hidden]"""
        weights = cast("nn.Linear", self.update[0]).weight[:, 5 * y.shape[1] :]
        total = y.new_zeros(len(y), weights.shape[0])
        for of, weight in zip(clusters, weights.chunk(NUM_POOLED, dim=1), strict=True):
            mean = aggregated(y, of, int(of.max()) + 1)
            total = total + linear(mean, weight)[of]
        return total

    def _updated(
        self, own: Tensor, along: Tensor, whole: Tensor, place: Tensor, clusters: Tensor
    ) -> Tensor:
        """``update`` of all parts; what ops of a bucket share is multiplied once a bucket."""
        enter, hidden = cast("nn.Linear", self.update[0]), along.shape[1]
        weight = enter.weight
        shared = linear(along, weight[:, 3 * hidden : 4 * hidden])
        shared = shared + linear(whole, weight[:, 4 * hidden : 5 * hidden]).repeat_interleave(
            NUM_BUCKETS, 0
        )
        own = linear(own, weight[:, : 3 * hidden], enter.bias)
        return cast("Tensor", self.update[1:](own + shared[place] + clusters))


class Encoder(nn.Module):
    """Embeds every visited op of a batch of graphs.

    Args:
        inputs: number of features of a node, the graph's own included.
        hidden: size of a node's state.
        layers: rounds of messages; 0 leaves the graph out.
    """

    def __init__(self, inputs: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.layers = nn.ModuleList(MessageLayer(hidden) for _ in range(layers))

    def forward(
        self,
        values: Tensor,
        edges: Tensor,
        attr: Tensor,
        place: Tensor,
        of: Tensor,
        clusters: Tensor,
    ) -> Tensor:
        """States of all nodes. [nodes, hidden]

        Args:
            values: features. [nodes, inputs]
            edges: producer and consumer. [2, edges]
            attr: features of edges. [edges, 1]
            place: bucket of each node's place, 0..NUM_BUCKETS-1, plus NUM_BUCKETS times its graph.
            of: graph of each node. [nodes]
            clusters: cluster of each node at the levels that are pooled, numbered over all graphs.
                [NUM_POOLED, nodes]
        """
        state = self.enter(values)
        for layer in self.layers:
            state = layer(state, edges, attr, place, of, clusters)
        return state
