"""Bytes of training state on GPUs that are not here: parameters, gradients, the optimizer's state.

By ZeRO (Rajbhandari et al., 2020, arXiv 1910.02054, section 3): parameters, gradients and Adam's
two moments, shared out over replicas by stage. Galvatron's memory profiles (PKU-DAIR, Apache-2.0)
have 16 bytes a parameter for Adam, to 0.4 %. What a GPU holds beside it is a part of a cluster's
headroom (``problem.cluster.headroom``).
"""

from __future__ import annotations

from collections.abc import Mapping

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
MOMENTS: Mapping[str, int] = {"sgd": 0, "adamw": 2, "adam": 2}


def state_bytes(
    parameters: float,
    *,
    optimizer: str = "adamw",
    precision: str = "32-true",
    zero: int = 0,
    replicas: int = 1,
) -> float:
    """Bytes that stay on a GPU: parameters, gradients, the optimizer's state.

    Args:
        parameters: of the GPU's part of the model.
        optimizer: "sgd" (without momentum) or "adamw".
        precision: in Lightning's words; "…-master" keeps a float32 copy with the moments.
        zero: stage 0 to 3 of ZeRO.
        replicas: that share what the stage shares.

    Raises:
        InputError: an unknown word, or numbers out of range.
    """
    if precision not in PARAMETER:
        raise InputError(f"precision {precision!r}: unknown; use one of {', '.join(PARAMETER)}")
    if optimizer not in MOMENTS:
        raise InputError(f"optimizer {optimizer!r}: unknown; use one of {', '.join(MOMENTS)}")
    if zero not in range(4) or replicas < 1 or parameters < 0:
        told = f"zero={zero}, replicas={replicas}, parameters={parameters:g}"
        raise InputError(f"{told}: a stage from 0 to 3, one replica and 0 parameters at least")
    own, gradient, moment = PARAMETER[precision]
    kept = moment * (MOMENTS[optimizer] + precision.endswith("-master"))
    shared = [own if zero > 2 else 0, gradient if zero > 1 else 0, kept if zero > 0 else 0]
    return parameters * (own + gradient + kept - sum(shared) + sum(shared) / replicas)
