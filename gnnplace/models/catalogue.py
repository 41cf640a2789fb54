"""`CatalogueModel`: the sizes of a published model, by the name that people type.

``catalogue.json`` has a model a line: the `model_type` of transformers, the fields of its public
``config.json`` that say sizes, and the number of its parameters as transformers builds it. Sources
and their date stand at its head. Names of fields are those that most types have, such as
`num_hidden_layers`, whatever a type calls them itself.
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
"""Tokens of an example by default, where a model has positions for more."""
TOKENS, TOKENS_A_DEVICE = 1 << 20, 1024
"""Tokens of a step by default: at least, and at least for each device."""
PREFIX = "hf:"
NEAREST = 5
CUTOFF = 0.6
"""How similar a name must be to be offered, in difflib's ratio."""


@dataclass(frozen=True, eq=False)
class CatalogueModel:
    """A published model.

    Attributes:
        name: Its name at huggingface.co.
        type: The `model_type` of transformers.
        config: Fields of its configuration that say sizes.
        parameters: Their number as transformers builds it; None for types that it does not have.
        source: Key of the source among those of the catalogue.
        aliases: Further names of the same configuration.
        part: What of a multi-modal model the fields describe, such as "text"; empty: all of it.
        details: What launchers must be told beside sizes: `norm_epsilon`, `rotary_base`,
            `rotary_scaling`, and `router_scale` of DeepSeek's experts (of the same source, else
            of torchtitan's and slime's own files); a key is missing where no source says it.
        refused: The kind of its layers that no plan is made for; empty where plans are made.
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
        images = self.config.get("vision_config", self.config)
        if "image_size" in images:
            return int(images["image_size"] // images["patch_size"]) ** 2 + 1
        return self.config.get("max_source_positions")  # of Whisper

    @property
    def length(self) -> int | None:
        """Return the tokens of an example by default, or None if examples are no rows of tokens."""
        positions = self.config.get(
            "max_position_embeddings", self.config.get("n_positions")
        )
        return None if positions is None else min(int(positions), MAX_LENGTH)


def default_batch(length: int, num_devices: int) -> int:
    """Return the examples of a step by default, a power of two.

    They have a million tokens together, or `TOKENS_A_DEVICE` for each device where that is more.

    Args:
        length: Tokens of an example.
        num_devices: Devices of the cluster.
    """
    tokens = max(TOKENS, TOKENS_A_DEVICE * num_devices)
    examples = -(-tokens // length)
    return 1 << (examples - 1).bit_length()


@cache
def _models() -> dict[str, CatalogueModel]:
    """Read the catalogue: models by every name in lower case, with and without the owner."""
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
            # Without its owner a name is that of the first model which has it, unless it is the
            # name of a type, which stands for that type's default configuration.
            plain = lower.rpartition("/")[2]
            if plain not in types:
                models.setdefault(plain, model)
    return models


def find_model(name: str) -> CatalogueModel | None:
    """Return the model of a name, whatever its case, with or without `hf:` and owner, or None."""
    return _models().get(name.removeprefix(PREFIX).lower())


def model_names() -> tuple[str, ...]:
    """Return the names of all models with their owners, aliases among them."""
    models = dict.fromkeys(_models().values())
    return tuple(name for model in models for name in (model.name, *model.aliases))


def nearest_names(name: str) -> list[str]:
    """Return the names of the catalogue that are nearest to a name, the nearest first."""
    plain = name.removeprefix(PREFIX).lower()
    by_lower: dict[str, str] = {}
    for full in model_names():
        lower = full.lower()
        if "/" not in plain:
            lower = lower.rpartition("/")[2]
        by_lower.setdefault(lower, full)
    return [
        by_lower[match] for match in get_close_matches(plain, by_lower, NEAREST, CUTOFF)
    ]


def require_planned(model: CatalogueModel) -> None:
    """Refuse a model with layers that no plan is made for.

    Raises:
        InputError: Names the kind of layers.
    """
    if model.refused:
        raise InputError(
            f"{model.name}: it has {model.refused}, which no plan is made for"
        )
