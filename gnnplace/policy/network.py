"""``PlacementPolicy``: the weights of the learned placer as parameters of torch, for training.

Saved as safetensors and JSON. Placers read the same files as arrays (``weights``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_model
from torch import nn

from gnnplace.files import Schema, parse
from gnnplace.policy.decode.kernels import DYNAMIC
from gnnplace.policy.refine.refining import PRIOR as REFINER_PRIOR
from gnnplace.policy.refine.refining import REFINING
from gnnplace.policy.weights import (
    DECODER_PRIOR,
    FEATURE_VERSION,
    PLACER_KEY,
    WEIGHTS_FILE,
    PolicyConfig,
    check_feature_version,
    fill_weights,
    misfit,
    read_saved_config,
    unreadable,
)

Network = TypeVar("Network", bound=nn.Module)
CARD_FILE = "README.md"
CONFIG_FILE = "config.json"
CARD = """---
library_name: gnnplace
license: apache-2.0
tags:
{tags}
---

# A placement policy of gnnplace

Written by gnnplace {version}; recipe, log and curves stand in the folder of the training.

- `gnnplace place PROBLEM --placer {placer} --checkpoint FOLDER` places with it; FOLDER is this one.
- `config.json` has its sizes and traversal order, and an encoder where it is not the package's.
- How it works, what it was measured on, where it fails: docs/learned.md, docs/gnn.md.
"""


class SavedNetwork(nn.Module):
    """A network of a placer, which names the placer in what it saves.

    Attributes:
        placer: Name of the placer that places with such a network.
        tags: What the card of a saved network is tagged with.
        arguments: Arguments of the constructor; an instance has them.
    """

    placer: ClassVar[str]
    tags: ClassVar[tuple[str, ...]] = ("device-placement",)
    arguments: dict[str, Any]

    def make_saved_config(self) -> dict[str, Any]:
        """Return what ``config.json`` has: the constructor's arguments and the placer."""
        return {**self.arguments, PLACER_KEY: self.placer}

    def save_pretrained(self, folder: str | Path) -> None:
        """Save parameters, ``config.json`` and, if the folder has none, a card.

        Args:
            folder: Made if it does not exist.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        save_model(self, str(folder / WEIGHTS_FILE))
        config = json.dumps(self.make_saved_config(), sort_keys=True, indent=2)
        (folder / CONFIG_FILE).write_text(config, encoding="utf-8")
        card = folder / CARD_FILE
        if not card.exists():
            tags = "\n".join(f"- {tag}" for tag in self.tags)
            text = CARD.format(
                tags=tags, version=version("gnnplace"), placer=self.placer
            )
            card.write_text(text, encoding="utf-8")


class PlacementPolicy(SavedNetwork):
    """The policy. ``save_pretrained(folder)`` writes it, ``from_pretrained(folder)`` reads it.

    Attributes:
        decoder: weight of each feature of the decoder. [len(DYNAMIC)]
        refiner: weight of each feature of the refiner. [len(REFINING)]

    Args:
        feature_version: version of the features that the parameters were trained on.

    Raises:
        MismatchError: the checkpoint was trained on other features than this package computes.
    """

    placer = "learned"

    def __init__(self, feature_version: str = FEATURE_VERSION) -> None:
        super().__init__()
        check_feature_version(feature_version)
        self.arguments = {"feature_version": feature_version}
        self.decoder = make_weights(DYNAMIC, DECODER_PRIOR)
        self.refiner = make_weights(REFINING, REFINER_PRIOR)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> PlacementPolicy:
        """Return the policy of a folder on this machine; see ``read_saved``."""
        return read_saved(cls, PolicyConfig, Path(folder))


def make_weights(names: tuple[str, ...], prior: Mapping[str, float]) -> nn.Parameter:
    """Return a weight for each feature, zero if the prior has none."""
    return nn.Parameter(torch.from_numpy(fill_weights(names, prior)))


def read_policy(path: str | Path) -> PlacementPolicy:
    """Return the policy of a folder or a checkpoint of Lightning; see ``read_saved``."""
    return read_saved(PlacementPolicy, PolicyConfig, Path(path))


def read_saved(make: Callable[..., Network], keys: type[Schema], path: Path) -> Network:
    """Return a network that was saved; nothing is downloaded and no code of a file is run.

    Args:
        make: The network's class, a ``SavedNetwork``.
        keys: The keys of its ``config.json``, which are the arguments of ``make``.
        path: The folder that ``save_pretrained`` wrote, or a ``.ckpt`` file of its training.

    Raises:
        FormatError: A file is missing or not what it should be.
        MismatchError: The network is another placer's, or its features or sizes do not fit.
    """
    config, parameters = read_saved_config(path, make.placer)  # type: ignore[attr-defined]
    network = make(**parse(keys, config, f"{path}/config.json").model_dump())
    try:
        network.load_state_dict(parameters or load_file(path / WEIGHTS_FILE))
    except (OSError, SafetensorError) as error:
        raise unreadable(path / WEIGHTS_FILE, error) from None
    except RuntimeError:
        raise misfit(path) from None
    return network.eval()
