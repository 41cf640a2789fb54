"""`CatalogueModel`: the sizes of a published model, found by the name that people type.

``catalogue.json`` has one line for each model: its `model_type` in transformers, the fields of its
public ``config.json`` that decide sizes, and its number of parameters as transformers builds it.
The sources and their dates stand at the head of that file. A field has the name that most types
use, such as `num_hidden_layers`, also where a type has another name of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from gnnplace.errors import InputError

MAX_LENGTH = 4096
"""Tokens of an example by default, at most; fewer if the model has fewer positions."""
TOKENS = 1 << 20
"""Tokens of a step by default, at least."""
TOKENS_A_DEVICE = 1024
"""Tokens of a step by default, at least, for each device of the cluster."""
PREFIX = "hf:"
NEAREST = 5
"""Names that are offered for an unknown one, at most."""
CUTOFF = 0.6
"""How similar an offered name must be, from 0 to 1 (the ratio of difflib)."""


@dataclass(frozen=True, eq=False)
class CatalogueModel:
    """A published model.

    Attributes:
        name: Its name at huggingface.co.
        type: Its `model_type` in transformers.
        config: The fields of its configuration that decide sizes.
        parameters: Its number of parameters as transformers builds it; None for types that
            transformers does not have.
        source: Key of the source, among those at the head of the catalogue.
        aliases: Further names of the same configuration.
        part: The part of a multi-modal model that the fields describe, such as "text"; empty if
            they describe all of it.
        details: What launchers need beside the sizes: `norm_epsilon`, `rotary_base`,
            `rotary_scaling`, and `router_scale` of DeepSeek's experts. They are from the same
            source, else from torchtitan's and slime's files; keys that no source gives are absent.
        refused: The kind of its layers that keeps plans from being made for it; empty if plans are
            made.
    """

    name: str
    type: str
    config: Mapping[str, Any]
    parameters: int | None
    source: str
    aliases: tuple[str, ...] = ()
    part: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""

    @property
    def tokens(self) -> int | None:
        """Return the tokens or patches of an example by default, or None if unknown."""
        if self.length is not None:
            return self.length
        # Images: one position for each square patch, and one for the class token.
        images = self.config.get("vision_config", self.config)
        if "image_size" in images:
            return int(images["image_size"] // images["patch_size"]) ** 2 + 1
        return self.config.get("max_source_positions")  # Whisper's frames of sound

    @property
    def length(self) -> int | None:
        """Return the tokens of an example by default, or None if the model does not read text."""
        positions = self.config.get(
            "max_position_embeddings", self.config.get("n_positions")
        )
        return None if positions is None else min(int(positions), MAX_LENGTH)


def default_batch(length: int, num_devices: int) -> int:
    """Return the default number of examples in a step, a power of two.

    It is the smallest whose examples have at least `TOKENS` tokens together, and at least
    `TOKENS_A_DEVICE` for each device.

    Args:
        length: Tokens of an example.
        num_devices: Devices of the cluster.
    """
    tokens = max(TOKENS, TOKENS_A_DEVICE * num_devices)
    examples = -(-tokens // length)
    return 1 << (examples - 1).bit_length()


@cache
def _read_models() -> dict[str, CatalogueModel]:
    """Read the catalogue and return its models by every name, in lower case.

    A name stands with its owner, as in "openai-community/gpt2", and without.
    """
    rows = json.loads(
        Path(__file__).with_name("catalogue.json").read_text(encoding="utf-8")
    )
    models: dict[str, CatalogueModel] = {}
    types = set()
    for row in rows["models"].values():
        types.add(row["type"])
    for name, row in rows["models"].items():
        model = CatalogueModel(
            name=name,
            type=row["type"],
            config=row["config"],
            parameters=row.get("parameters"),
            source=row["source"],
            aliases=tuple(row.get("aliases", ())),
            part=row.get("part", ""),
            details=row.get("details", {}),
            refused=row.get("refused", ""),
        )
        for alias in (name, *model.aliases):
            lower = alias.lower()
            models[lower] = model
            # Several owners may use one name: without an owner it means the first such model. The
            # name of a type is left out, because it means that type's default configuration.
            ownerless = lower.rpartition("/")[2]
            if ownerless not in types:
                models.setdefault(ownerless, model)
    return models


def find_model(name: str) -> CatalogueModel | None:
    """Return the model of that name, or None if the catalogue has none.

    Upper and lower case are the same. The prefix `hf:` and the owner may be left out.
    """
    return _read_models().get(name.removeprefix(PREFIX).lower())


def model_names() -> tuple[str, ...]:
    """Return the names and the aliases of all models, with their owners."""
    models = dict.fromkeys(_read_models().values())
    return tuple(name for model in models for name in (model.name, *model.aliases))


def nearest_names(name: str) -> list[str]:
    """Return up to `NEAREST` names of the catalogue that resemble a name, the most similar first.

    A name without an owner is compared with names without theirs.
    """
    plain = name.removeprefix(PREFIX).lower()
    names_by_lower: dict[str, str] = {}
    for model_name in model_names():
        lower = model_name.lower()
        if "/" not in plain:
            lower = lower.rpartition("/")[2]
        names_by_lower.setdefault(lower, model_name)
    matches = get_close_matches(plain, names_by_lower, NEAREST, CUTOFF)
    return [names_by_lower[match] for match in matches]


def require_planned(model: CatalogueModel) -> None:
    """Check that plans can be made for a model.

    Raises:
        InputError: If they cannot; the message names the kind of layers that keeps them from it.
    """
    if model.refused:
        raise InputError(
            f"{model.name}: it has {model.refused}, which no plan can be made for; take another "
            "model"
        )
