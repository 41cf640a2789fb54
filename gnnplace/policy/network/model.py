"""``PlacementPolicy``: what the learned placer learned, saved as safetensors and JSON.

Decoder and refiner score candidate devices by weighted sums of features (``decode.kernels``,
``refine.refining``); ``AimNet`` says which aims to decode under. The weights begin as a prior
(earliest finish, or the plan's device where chunks are wanted, and no more load than the ideal
share), so that an untrained policy already is a list scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from huggingface_hub import PyTorchModelHubMixin
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from gnnplace.errors import FormatError, MismatchError
from gnnplace.files import Schema, parse, read_json
from gnnplace.policy.decode.kernels import DYNAMIC
from gnnplace.policy.network.aim_net import AimNet
from gnnplace.policy.network.features import FEATURE_VERSION
from gnnplace.policy.refine.refining import PRIOR as REFINER_PRIOR
from gnnplace.policy.refine.refining import REFINING

CHECKPOINT = Path(__file__).parents[1] / "checkpoint"
DECODER_PRIOR = {
    "earliest finish above the best, out of chunks": -4.0,
    "load after, above the ideal share": -3.0,
    "the chunk plan's device": 8.0,
}


class PlacementPolicy(  # type: ignore[call-arg]
    nn.Module,
    PyTorchModelHubMixin,
    library_name="gnnplace",
    license="apache-2.0",
    tags=["device-placement"],
):
    """The policy. ``save_pretrained(folder)`` and ``from_pretrained(folder)`` as on the hub.

    Attributes:
        decoder: weight of each feature of the decoder. [len(DYNAMIC)]
        refiner: weight of each feature of the refiner. [len(REFINING)]
        aims: values aims.

    Args:
        feature_version: version of the features that the parameters were trained on.

    Raises:
        MismatchError: the checkpoint was trained on other features than this package computes.
    """

    def __init__(self, feature_version: str = FEATURE_VERSION) -> None:
        super().__init__()
        if feature_version != FEATURE_VERSION:
            raise MismatchError(
                f"policy checkpoint: feature_version {feature_version}, but this gnnplace has "
                f"{FEATURE_VERSION}; train it anew or install the version that made it"
            )
        self.decoder = weights_of(DYNAMIC, DECODER_PRIOR)
        self.refiner = weights_of(REFINING, REFINER_PRIOR)
        self.aims = AimNet()


def weights_of(names: tuple[str, ...], given: Mapping[str, float]) -> nn.Parameter:
    """A weight for each feature, zero where none is given."""
    return nn.Parameter(torch.tensor([given.get(name, 0.0) for name in names]))


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

    feature_version: str
