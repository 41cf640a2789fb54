"""``CaptureOptions``: how a model is captured and grouped."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from gnnplace.errors import InputError
from gnnplace.problem import Constraints, as_constraints, check_microbatches


@dataclass(frozen=True)
class CaptureOptions:
    """Options of capture and grouping. A placement is valid for the same options alone.

    Attributes:
        optimizer: Its name, ``sgd`` or ``adamw``.
        dtype: The type of parameters, ``float32`` or ``bfloat16``.
        forward_only: inference instead of a training step.
        groups: ops of the problem to aim at; None: all but what must not be parted.
        microbatches: shares that the batch is cut into.
        accept_other_loss: cut it also where the loss of the shares is another one.
        constraints: pins, forbids and what stays together: borders of groups; given as
            ``Constraints``, a mapping or a YAML file.
    """

    optimizer: str = "sgd"
    dtype: str = "float32"
    forward_only: bool = False
    groups: int | None = None
    microbatches: int = 1
    accept_other_loss: bool = False
    constraints: Constraints = field(default_factory=Constraints)

    def __post_init__(self) -> None:
        object.__setattr__(self, "constraints", as_constraints(self.constraints))
        if self.groups is not None and not (
            isinstance(self.groups, int) and self.groups > 0
        ):
            raise InputError(
                f"groups {self.groups!r}: must be a whole number from 1 on"
            )
        check_microbatches(self.microbatches)

    def to_data(self) -> dict[str, Any]:
        """Return the options as a placement's file has them; constraints only if there are any."""
        data = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        constraints = data.pop("constraints").patterns.to_data()
        return data | ({"constraints": constraints} if constraints else {})
