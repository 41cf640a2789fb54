"""Bytes of training state on GPUs that are not here: parameters, gradients, the optimizer's state.

By ZeRO (Rajbhandari et al., 2020, arXiv 1910.02054, section 3): parameters, gradients and Adam's
two moments, sharded over replicas according to the stage. Galvatron's memory profiles (PKU-DAIR,
Apache-2.0) confirm 16 bytes a parameter for Adam, to 0.4 %. Other memory of a GPU (libraries, the
allocator) is part of a cluster's headroom (``problem.cluster.headroom``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gnnplace.costs.optimizers import get_optimizer_kind
from gnnplace.errors import InputError

# Bytes a parameter: itself, its gradient, the optimizer's; by precision.
PARAMETER: Mapping[str, tuple[int, int, int]] = {
    "32-true": (4, 4, 4),
    "bf16-mixed": (4, 4, 4),
    "16-mixed": (4, 4, 4),
    "bf16-true": (2, 2, 2),
    "16-true": (2, 2, 2),
    "bf16-master": (2, 2, 4),
    "16-master": (2, 2, 4),
}


class StateTerms(NamedTuple):
    """Bytes of training state on a device, by what they are.

    Attributes:
        parameters: Bytes of the parameters.
        gradients: Bytes of their gradients and the sums of these.
        optimizer: Bytes of the optimizer's state and the float32 copy of half parameters.
        buckets: Bytes of the buckets in which replicas exchange gradients.
        frozen: Bytes of parameters that are not trained.
    """

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    buckets: float = 0.0
    frozen: float = 0.0

    @property
    def total(self) -> float:
        """Return the bytes of all terms together."""
        return self.trained + self.frozen

    @property
    def trained(self) -> float:
        """Return the bytes of all parameters that are trained, with gradients and state."""
        return self.parameters + self.gradients + self.buckets + self.optimizer

    def plus(self, terms: StateTerms) -> StateTerms:
        """Return the sum of two."""
        return StateTerms(
            parameters=self.parameters + terms.parameters,
            gradients=self.gradients + terms.gradients,
            optimizer=self.optimizer + terms.optimizer,
            buckets=self.buckets + terms.buckets,
            frozen=self.frozen + terms.frozen,
        )


def state_terms(
    parameters: float,
    *,
    optimizer: str = "adamw",
    precision: str = "32-true",
    zero: int = 0,
    replicas: int = 1,
) -> StateTerms:
    """Return the bytes that stay on a GPU: parameters, gradients, the optimizer's state.

    Args:
        parameters: Parameters of the GPU's part of the model.
        optimizer: A name of `costs.optimizers`; sums of rows and columns are not counted.
        precision: The precision in Lightning's words; "…-master" keeps a float32 copy with the
            moments.
        zero: Stage 0 to 3 of ZeRO.
        replicas: Number of replicas that shard what the ZeRO stage shards.

    Raises:
        InputError: A word is unknown, or a number is out of range.
    """
    if precision not in PARAMETER:
        raise InputError(
            f"precision {precision!r}: unknown; use one of {', '.join(PARAMETER)}"
        )
    if zero not in range(4) or replicas < 1 or parameters < 0:
        arguments = f"zero={zero}, replicas={replicas}, parameters={parameters:g}"
        raise InputError(
            f"{arguments}: a stage from 0 to 3, one replica and 0 parameters at least"
        )
    width, gradient, moment = PARAMETER[precision]
    optimizer_bytes = get_optimizer_kind(optimizer).kept_bytes(moment)
    optimizer_bytes += moment * precision.endswith("-master")
    return StateTerms(
        parameters=parameters * width / (replicas if zero > 2 else 1),
        gradients=parameters * gradient / (replicas if zero > 1 else 1),
        optimizer=parameters * optimizer_bytes / (replicas if zero > 0 else 1),
    )
