"""``GnnPolicy``: the graph encoder and the sequence decoder, saved as safetensors and JSON.

After Wang et al. (2022, arXiv 2201.09676): a graph network embeds the ops, and a decoder walks them
in a traversal order and gives each a device. Deviations are in ``docs/gnn.md``.

The encoder: message passing over the graph in both directions, with long-range pooling.

Each layer adds to an op's state what a small network makes of it, of the mean of its producers'
messages, of the maximum of its consumers' messages, of the mean of the ops at about the same place
in the graph (a bucket of the work before it) and its neighbouring buckets, of the whole, and of the
means of its clusters of two levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, NamedTuple, cast

import numpy as np
import torch
from huggingface_hub import PyTorchModelHubMixin
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import linear

from gnnplace.arrays import SingleArray
from gnnplace.errors import MismatchError
from gnnplace.files import Schema
from gnnplace.graph.orders import ORDERS
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.policy.gnn.clusters import Clusters
from gnnplace.policy.gnn.decoder import Decoder, DeviceCount
from gnnplace.policy.gnn.features import (
    DEVICE,
    FEATURE_VERSION,
    STATIC,
    message_features,
    static_features,
)
from gnnplace.policy.gnn.kernels import DecoderNetwork
from gnnplace.policy.gnn.learned_order import LEARNED
from gnnplace.policy.network import GLOBAL, card_of, global_features, read_saved

CHECKPOINT = Path(__file__).parent / "checkpoint"
ORDER = "upward-rank"
PLACE = STATIC.index("place")
DECODER = ("first", "held", "second", "pooled", "bias", "last")
POOLED = (1, 2)  # levels of clusters that the encoder pools


class EncoderInputs(NamedTuple):
    """What the encoder takes of one problem; m visited ops.

    Attributes:
        nodes: features. [m, len(STATIC) + len(GLOBAL)]
        edges: producer and consumer. [2, edges]
        attributes: features of edges. [edges, 1]
        clusters: cluster of each op at each level of ``POOLED``, numbered from 0. [2, m]
    """

    nodes: Tensor
    edges: Tensor
    attributes: Tensor
    clusters: Tensor


class GnnPolicy(  # type: ignore[call-arg]
    nn.Module,
    PyTorchModelHubMixin,
    library_name="gnnplace",
    license="apache-2.0",
    tags=["device-placement", "graph-neural-network"],
    model_card_template=card_of("gnn"),
):
    """Encoder and decoder. ``save_pretrained(folder)`` and ``from_pretrained(folder)`` as usual.

    Args:
        hidden: size of the encoder's states.
        layers: rounds of messages; 0 leaves the graph out.
        decoder_hidden: size of the decoder's layers.
        memory: entries of a device's memory.
        order: the traversal order it was trained under, or ``learned-order``.
        feature_version: version of the features that the parameters were trained on.

    Raises:
        MismatchError: the checkpoint was trained on other features than this package computes.
    """

    def __init__(
        self,
        hidden: int = 64,
        layers: int = 3,
        decoder_hidden: int = 48,
        memory: int = 16,
        order: str = ORDER,
        feature_version: str = FEATURE_VERSION,
    ) -> None:
        super().__init__()
        if feature_version != FEATURE_VERSION or order not in (*ORDERS, LEARNED):
            raise MismatchError(
                f"GNN checkpoint: order {order}, feature_version {feature_version}, but this "
                f"gnnplace has {FEATURE_VERSION}; train it anew (trainers/gnn) or install the "
                "version that made it"
            )
        self.order = order
        self.encoder = Encoder(len(STATIC) + len(GLOBAL), hidden, layers)
        self.decoder = Decoder(hidden, decoder_hidden, memory, len(DEVICE))
        self.count = DeviceCount(hidden, decoder_hidden)
        self.priority = nn.Linear(hidden, 1, bias=False) if order == LEARNED else None
        if self.priority is not None:
            nn.init.zeros_(self.priority.weight)

    def states(self, inputs: Sequence[EncoderInputs]) -> Tensor:
        """The encoder's states of all visited ops of a batch, one problem after the other.

        Args:
            inputs: what ``tensors_of`` gives of each problem.
        """
        sizes = [len(one.nodes) for one in inputs]
        of = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        x = torch.cat([one.nodes for one in inputs])
        start = np.concatenate(([0], np.cumsum(sizes)))
        edges = torch.cat(
            [one.edges + int(s) for one, s in zip(inputs, start, strict=False)], dim=1
        )
        bucket = (x[:, PLACE] * NUM_BUCKETS).long().clamp(0, NUM_BUCKETS - 1)
        attributes = torch.cat([one.attributes for one in inputs])
        rest = (bucket + NUM_BUCKETS * of, of, _numbered([one.clusters for one in inputs]))
        states: Tensor = self.encoder(x, edges, attributes, *rest)
        return states

    @torch.no_grad()
    def network(self, states: Tensor, devices: Tensor) -> DecoderNetwork:
        """The parameters, and what the encoder says of a problem, as the numba decoder takes them.

        Args:
            states: the encoder's states of the problem. [m, hidden]
            devices: features of each device. [D, len(DEVICE)]
        """
        decoder = self.decoder
        told = (decoder.context(states), decoder.value(states), decoder.device(devices))
        own = (getattr(decoder, name) for name in DECODER)
        arrays = map(_array, (*told, *own, self.priorities(states)))
        return DecoderNetwork(self.count.choice(states, len(devices)), *arrays)

    def priorities(self, states: Tensor) -> Tensor:
        """What a learned order adds to the first priorities, else nothing. [m] or [0]"""
        return states[:0, 0] if self.priority is None else self.priority(states)[:, 0]


def _numbered(clusters: Sequence[Tensor]) -> Tensor:
    """Clusters of several problems, numbered over all of them. [NUM_POOLED, nodes]"""
    counts = torch.stack([one.max(dim=1).values + 1 for one in clusters])
    first = counts.cumsum(dim=0) - counts
    return torch.cat([one + f[:, None] for one, f in zip(clusters, first, strict=True)], dim=1)


def tensors_of(graph: WalkGraph, clusters: Clusters) -> EncoderInputs:
    """Features, edges and clusters of one problem, for the encoder."""
    static = static_features(graph, clusters)
    whole = np.broadcast_to(global_features(graph), (len(static), len(GLOBAL)))
    source, target, _ = graph.graph.edges
    edges = np.stack([source, target]).astype(np.int64)
    levels = clusters.of[list(POOLED)].astype(np.int64)
    own = (levels - levels.min(axis=1, keepdims=True))[:, graph.unit]
    return EncoderInputs(
        torch.from_numpy(np.concatenate([static, whole], axis=1)),
        torch.from_numpy(edges),
        torch.from_numpy(message_features(graph)),
        torch.from_numpy(own),
    )


def _array(tensor: Tensor) -> SingleArray:
    return np.ascontiguousarray(tensor.detach().cpu().numpy(), dtype=np.float32)


class GnnConfig(Schema):
    """The keys of a GNN's ``config.json``: the arguments of ``GnnPolicy``."""

    hidden: Annotated[int, Field(ge=1)]
    layers: Annotated[int, Field(ge=0)]
    decoder_hidden: Annotated[int, Field(ge=1)]
    memory: Annotated[int, Field(ge=1)]
    order: str
    feature_version: str


def read_gnn(folder: str | Path) -> GnnPolicy:
    """The network that ``save_pretrained`` wrote into ``folder``; see ``read_saved``."""
    return read_saved(GnnPolicy, GnnConfig, Path(folder))


@lru_cache(maxsize=2)
def load_gnn(folder: str | Path = CHECKPOINT) -> GnnPolicy:
    """The network saved in ``folder``, by default the one that comes with the package; read once.

    Raises:
        FormatError: a file is missing or malformed.
        MismatchError: it was trained on other features than this package computes.
    """
    return read_gnn(folder)


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
