"""Private names of Lightning."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from gnnplace.foreign import read_private

if TYPE_CHECKING:
    from lightning import LightningModule, Trainer


def find_trainer(module: LightningModule) -> Trainer | None:
    """Return the trainer of a module, or None where it has none; its property would raise.

    Raises:
        VersionError: The module does not say.
    """
    return cast("Trainer | None", read_private(module, "_trainer", "lightning"))
