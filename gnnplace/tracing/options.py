"""``CaptureOptions``: how a model is captured and grouped."""

from __future__ import annotations

from dataclasses import dataclass

from gnnplace.errors import InputError


@dataclass(frozen=True)
class CaptureOptions:
    """How a model is captured and grouped; a placement is valid for the same options alone.

    Attributes:
        optimizer: ``sgd`` or ``adamw``.
        dtype: ``float32`` or ``bfloat16``.
        forward_only: inference instead of a training step.
        groups: ops of the problem to aim at; None: all but what must not be parted.
        microbatches: shares that the batch is cut into.
        accept_other_loss: cut it also where the loss of the shares is another one.
    """

    optimizer: str = "sgd"
    dtype: str = "float32"
    forward_only: bool = False
    groups: int | None = None
    microbatches: int = 1
    accept_other_loss: bool = False

    def __post_init__(self) -> None:
        if self.groups is not None and self.groups < 1:
            raise InputError(f"groups {self.groups}: must be a positive number")
        if self.microbatches < 1:
            raise InputError(f"microbatches {self.microbatches}: must be a positive number")
