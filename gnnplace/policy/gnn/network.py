"""``GnnPolicy``: the graph encoder and the sequence decoder, saved as safetensors and JSON.

A graph network embeds the ops, and a decoder walks them in a traversal order and gives each a
device. ``docs/gnn.md`` says what Wang et al. (2022, arXiv 2201.09676) do otherwise. The encoder is
the package's (``encoder``), unless ``config.json`` names another one (``custom``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from gnnplace.arrays import SingleArray
from gnnplace.errors import MismatchError
from gnnplace.files import Schema, parse
from gnnplace.graph import check_network_order, get_base_order
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.policy.gnn.clusters import Clusters
from gnnplace.policy.gnn.custom import build_encoder, check_trusted
from gnnplace.policy.gnn.decoder import Decoder, DeviceCount
from gnnplace.policy.gnn.encoder import NUM_BUCKETS, Encoder, EncoderInputs
from gnnplace.policy.gnn.features import (
    DEVICE,
    FEATURE_VERSION,
    STATIC,
    message_features,
    static_features,
)
from gnnplace.policy.gnn.kernels import DecoderNetwork
from gnnplace.policy.network import SavedNetwork, read_saved
from gnnplace.policy.weights import GLOBAL, global_features, read_saved_config

GNN_CHECKPOINT = Path(__file__).parent / "checkpoint"
ORDER = "upward-rank"
PLACE = STATIC.index("place")
DECODER = ("first", "held", "second", "pooled", "bias", "last")
POOLED = (1, 2)  # levels of clusters that the encoder pools


class GnnPolicy(SavedNetwork):
    """Encoder and decoder. ``save_pretrained(folder)`` and ``from_pretrained(folder)`` as usual.

    Args:
        hidden: size of the encoder's states.
        layers: rounds of messages; 0 leaves the graph out.
        decoder_hidden: size of the decoder's layers.
        memory: entries of a device's memory.
        order: the traversal order it was trained under, or a function of one's own,
            ``module:function``; ``learned-order+BASE`` learns one that begins as either.
        feature_version: version of the features that the parameters were trained on.
        encoder: ``class_path`` and ``init_args`` of an encoder in place of the package's, which
            then says sizes and layers itself.

    Raises:
        InputError: an unknown order, or the encoder cannot be made.
        MismatchError: the checkpoint was trained on other features than this package computes.
    """

    placer = "gnn"
    tags = (*SavedNetwork.tags, "graph-neural-network")

    def __init__(
        self,
        hidden: int = 64,
        layers: int = 3,
        decoder_hidden: int = 48,
        memory: int = 16,
        order: str = ORDER,
        feature_version: str = FEATURE_VERSION,
        encoder: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        # What a saved network is made from again; who has no encoder has no key for it.
        self.arguments = {
            "hidden": hidden,
            "layers": layers,
            "decoder_hidden": decoder_hidden,
            "memory": memory,
            "order": order,
            "feature_version": feature_version,
        }
        if encoder is not None:
            self.arguments["encoder"] = encoder
        if feature_version != FEATURE_VERSION:
            raise MismatchError(
                f"GNN checkpoint: feature_version {feature_version}, but this gnnplace has "
                f"{FEATURE_VERSION}; train it anew (trainers/gnn) or install the version that "
                "made it"
            )
        base = get_base_order(order)
        if ":" in order:
            check_trusted((base or order).rpartition(":")[0], f"order {order!r}")
        check_network_order(order)
        self.order = order
        self.encoder: nn.Module
        if encoder is None:
            self.encoder = Encoder(len(STATIC) + len(GLOBAL), hidden, layers)
        else:
            self.encoder, hidden = build_encoder(encoder, len(STATIC) + len(GLOBAL))
        self.decoder = Decoder(hidden, decoder_hidden, memory, len(DEVICE))
        self.count = DeviceCount(hidden, decoder_hidden)
        if base is None:
            self.priority = None
        else:
            self.priority = nn.Linear(hidden, 1, bias=False)
        if self.priority is not None:
            nn.init.zeros_(self.priority.weight)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> GnnPolicy:
        """Return the network of a folder on this machine; see ``read_saved``."""
        return read_saved(cls, GnnConfig, Path(folder))

    def states(self, inputs: Sequence[EncoderInputs]) -> Tensor:
        """Return the encoder's states of all visited ops of a batch, one problem after the other.

        Args:
            inputs: what ``make_tensors`` gives of each problem.
        """
        data: Any = inputs[0]
        if len(inputs) > 1 or not isinstance(self.encoder, Encoder):
            from gnnplace.policy.gnn.pyg import make_graph_batch

            data = make_graph_batch(inputs)
        device = self.count.last.weight.device
        states: Tensor = self.encoder(data.to(device))
        return states

    @torch.no_grad()
    def network(self, states: Tensor, devices: Tensor) -> DecoderNetwork:
        """Return the parameters, and what the encoder says of a problem, as the numba decoder takes
        them.

        Args:
            states: the encoder's states of the problem. [m, hidden]
            devices: features of each device. [D, len(DEVICE)]
        """
        decoder = self.decoder
        encoded = (
            decoder.context(states),
            decoder.value(states),
            decoder.device(devices.to(states.device)),
        )
        parameters = (getattr(decoder, name) for name in DECODER)
        arrays = map(_array, (*encoded, *parameters, self.priorities(states)))
        return DecoderNetwork(self.count.choice(states, len(devices)), *arrays)

    def priorities(self, states: Tensor) -> Tensor:
        """Return what a learned order adds to the first priorities, else nothing. [m] or [0]"""
        if self.priority is None:
            return states[:0, 0]
        return self.priority(states)[:, 0]


def make_tensors(graph: WalkGraph, clusters: Clusters) -> EncoderInputs:
    """Return features, edges and clusters of one problem, for the encoder."""
    static = static_features(graph, clusters)
    shape = (len(static), len(GLOBAL))
    global_columns = np.broadcast_to(global_features(graph), shape)
    source, target, _ = graph.graph.edges
    edges = np.stack([source, target]).astype(np.int64)
    levels = clusters.of[list(POOLED)].astype(np.int64)
    # Clusters are numbered from 0 at each level.
    unit_clusters = levels - levels.min(axis=1, keepdims=True)
    op_clusters = unit_clusters[:, graph.unit]
    x = torch.from_numpy(np.concatenate([static, global_columns], axis=1))
    bucket = (x[:, PLACE] * NUM_BUCKETS).long()
    return EncoderInputs(
        x=x,
        edge_index=torch.from_numpy(edges),
        edge_attr=torch.from_numpy(message_features(graph)),
        bucket=bucket.clamp(0, NUM_BUCKETS - 1),
        clusters=torch.from_numpy(op_clusters),
    )


def _array(tensor: Tensor) -> SingleArray:
    array = tensor.detach().cpu().numpy()
    return np.ascontiguousarray(array, dtype=np.float32)


class GnnConfig(Schema):
    """The keys of a GNN's ``config.json``: the arguments of ``GnnPolicy``."""

    hidden: Annotated[int, Field(ge=1)]
    layers: Annotated[int, Field(ge=0)]
    decoder_hidden: Annotated[int, Field(ge=1)]
    memory: Annotated[int, Field(ge=1)]
    order: str
    feature_version: str
    encoder: dict[str, Any] | None = None


def read_config(path: str | Path) -> GnnConfig:
    """Return sizes, order and encoder of a network that was saved; see ``read_saved``.

    Raises:
        FormatError: the file is missing or malformed.
        MismatchError: the network is another placer's.
    """
    config, _ = read_saved_config(Path(path), GnnPolicy.placer)
    return parse(GnnConfig, config, f"{path}/config.json")


def read_gnn(path: str | Path) -> GnnPolicy:
    """Return the network of a folder or a checkpoint of Lightning; see ``read_saved``."""
    return read_saved(GnnPolicy, GnnConfig, Path(path))


@lru_cache(maxsize=2)
def load_gnn(folder: str | Path = GNN_CHECKPOINT) -> GnnPolicy:
    """Read the network saved in ``folder``, by default the one that comes with the package; once.

    Raises:
        FormatError: a file is missing or malformed.
        MismatchError: it was trained on other features than this package computes.
    """
    return read_gnn(folder)
