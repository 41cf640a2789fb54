"""Private names of transformers."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, cast

from gnnplace.foreign import foreign_names, read_private

if TYPE_CHECKING:  # the list of names; ``foreign_names`` reads it too
    from transformers.integrations.moe import _default_apply_gate as default_apply_gate

__getattr__, __dir__ = foreign_names(__name__, "transformers")


def find_gate(experts: type) -> Callable[..., Any]:
    """Return how a class of experts applies its gate: `(module, rows) -> rows`.

    Raises:
        VersionError: It has no such method.
    """
    return cast(
        "Callable[..., Any]", read_private(experts, "_apply_gate", "transformers")
    )


def make_model(kind: type, config: object) -> object:
    """Return a model of a class and a configuration, with new weights.

    Raises:
        VersionError: The class has no such constructor.
    """
    make = cast(
        "Callable[..., object]", read_private(kind, "_from_config", "transformers")
    )
    return make(config)


def has_model_for(factory: type, config: object) -> bool:
    """Return whether a class of transformers' `auto` kind has a model for a configuration.

    Raises:
        VersionError: The class does not say.
    """
    table = cast(
        "Container[type]", read_private(factory, "_model_mapping", "transformers")
    )
    return type(config) in table
