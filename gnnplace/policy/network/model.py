"""``PlacementPolicy``: encoder and decoder together, saved as safetensors and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from huggingface_hub import PyTorchModelHubMixin
from numpy.typing import NDArray
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch_geometric.utils import scatter

from gnnplace.errors import FormatError, MismatchError
from gnnplace.files import Schema, parse, read_json
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.policy.network.aim_net import AimNet
from gnnplace.policy.network.decoder import Decoder
from gnnplace.policy.network.encoder import NUM_BUCKETS, Encoder
from gnnplace.policy.network.features import (
    FEATURE_VERSION,
    GLOBAL,
    STATIC,
    global_features,
    message_features,
    static_features,
)
from gnnplace.policy.network.move_net import MoveNet
from gnnplace.policy.refine.refining import PRIOR, REFINING

CHECKPOINT = Path(__file__).parents[1] / "checkpoint"
PLACE = STATIC.index("place")


class PlacementPolicy(  # type: ignore[call-arg]
    nn.Module,
    PyTorchModelHubMixin,
    library_name="gnnplace",
    license="apache-2.0",
    tags=["device-placement", "graph-neural-network"],
):
    """The policy. ``save_pretrained(folder)`` and ``from_pretrained(folder)`` as on the hub.

    Args:
        hidden: size of the encoder's states.
        layers: rounds of messages; 0 leaves the graph out.
        decoder_hidden: size of the decoder's layers.
        feature_version: version of the features that the parameters were trained on.

    Raises:
        MismatchError: the checkpoint was trained on other features than this package computes.
    """

    def __init__(
        self,
        hidden: int = 64,
        layers: int = 3,
        decoder_hidden: int = 32,
        feature_version: str = FEATURE_VERSION,
    ) -> None:
        super().__init__()
        if feature_version != FEATURE_VERSION:
            raise MismatchError(
                f"policy checkpoint: feature_version {feature_version}, but this gnnplace has "
                f"{FEATURE_VERSION}; train it anew or install the version that made it"
            )
        self.encoder = Encoder(len(STATIC) + len(GLOBAL), hidden, layers)
        self.decoder = Decoder(hidden, decoder_hidden)
        self.moves = MoveNet(hidden)
        self.aims = AimNet()
        self.refiner = Decoder(hidden, decoder_hidden, REFINING, PRIOR, directions=1)

    def states(self, graphs: Sequence[WalkGraph]) -> Tensor:
        """The encoder's states of all visited ops of a batch. [m, hidden]"""
        return encoded(self.encoder, [tensors_of(graph) for graph in graphs])

    def unit_contexts(self, graph: WalkGraph, states: Tensor) -> Tensor:
        """What the encoder says of each unit to ``MoveNet``: the mean over its ops. [U, H]"""
        return _unit_mean(graph, self.moves.context(states))

    def refining_contexts(self, graph: WalkGraph, states: Tensor) -> Tensor:
        """What the encoder says of each unit to the refiner: the mean over its ops. [U, H]"""
        return _unit_mean(graph, self.refiner.contexts(states)[:, 0])

    @torch.no_grad()
    def embed(self, graph: WalkGraph) -> NDArray[np.float32]:
        """The encoder's states of one problem. [m, hidden]

        On one thread: on small graphs several threads wait for each other a hundred times longer
        than they work, above all where other processes want the cores, and budgets are of one.
        """
        with one_thread():
            return np.asarray(self.states([graph]).numpy())


@contextmanager
def one_thread() -> Iterator[None]:
    """Has torch compute on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def encoded(encoder: Encoder, inputs: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """The states of all visited ops of a batch, from what ``tensors_of`` gives. [m, hidden]"""
    sizes = [len(x) for x, _, _ in inputs]
    start = np.concatenate(([0], np.cumsum(sizes)))
    of = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    x = torch.cat([x for x, _, _ in inputs])
    edges = torch.cat([e + int(s) for (_, e, _), s in zip(inputs, start, strict=False)], dim=1)
    bucket = (x[:, PLACE] * NUM_BUCKETS).long().clamp(0, NUM_BUCKETS - 1)
    attributes = torch.cat([a for _, _, a in inputs])
    return encoder(x, edges, attributes, bucket + NUM_BUCKETS * of, of)


def _unit_mean(graph: WalkGraph, values: Tensor) -> Tensor:
    """Mean over the visited ops of each unit. [U, H]"""
    unit = torch.from_numpy(graph.unit.astype(np.int64))
    return scatter(values, unit, dim=0, dim_size=graph.problem.num_units, reduce="mean")


def read_policy(folder: str | Path) -> PlacementPolicy:
    """The policy that ``save_pretrained`` wrote into ``folder``; nothing is downloaded.

    Raises:
        FormatError: a file is missing or not what it should be.
        MismatchError: the features or the sizes are not those of the parameters.
    """
    config = parse(PolicyConfig, read_json(Path(folder) / "config.json"), f"{folder}/config.json")
    policy = PlacementPolicy(**config.model_dump())
    read_parameters(policy, Path(folder) / "model.safetensors")
    return policy.eval()


def read_parameters(policy: nn.Module, path: Path) -> None:
    """Gives a network the parameters of a file.

    Raises:
        FormatError: the file is missing or malformed.
        MismatchError: its sizes are others.
    """
    try:
        policy.load_state_dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise FormatError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    except RuntimeError:
        raise MismatchError(
            f"{path}: its parameters do not fit the sizes in config.json; save both together"
        ) from None


class PolicyConfig(Schema):
    """The keys of a policy's ``config.json``: the arguments of ``PlacementPolicy``."""

    hidden: Annotated[int, Field(ge=1)]
    layers: Annotated[int, Field(ge=0)]
    decoder_hidden: Annotated[int, Field(ge=1)]
    feature_version: str


def tensors_of(graph: WalkGraph) -> tuple[Tensor, Tensor, Tensor]:
    """Node features, edges and edge features of one problem."""
    static = static_features(graph)
    whole = np.broadcast_to(global_features(graph), (len(static), len(GLOBAL)))
    source, target, _ = graph.graph.edges
    edges = np.stack([source, target]).astype(np.int64)
    return (
        torch.from_numpy(np.concatenate([static, whole], axis=1)),
        torch.from_numpy(edges),
        torch.from_numpy(message_features(graph)),
    )
