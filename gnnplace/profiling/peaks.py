"""Published peak figures of device kinds, for the roofline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gnnplace.errors import InputError

TERA, GIGA, MICRO = 1e12, 1e9, 1e-6


@dataclass(frozen=True)
class Peak:
    """What a device can do at most.

    Attributes:
        float32: Floating-point operations a second of matrix products in float32, as PyTorch
            runs them by default (no TF32).
        half: The same in bfloat16 or float16.
        bandwidth: Bytes a second of its memory.
        launch: Seconds that an op takes at least.
        source: Where the figures are from.
    """

    float32: float
    half: float
    bandwidth: float
    launch: float
    source: str

    def flops(self, dtype: torch.dtype) -> float:
        """Operations a second in a type."""
        return self.half if dtype in (torch.bfloat16, torch.float16) else self.float32


# Launch of a GPU op: 4 us, a usual kernel launch plus its gap (assumed, not published).
LAUNCH = 4 * MICRO
PEAKS: Mapping[str, Peak] = {
    "cpu": Peak(
        50e9,
        50e9,
        10e9,
        5 * MICRO,
        "assumed: one core of a 2.5-3 GHz server with AVX2 at half of its peak",
    ),
    "t4": Peak(8.1 * TERA, 65 * TERA, 320 * GIGA, LAUNCH, "NVIDIA T4 datasheet, 2018"),
    "v100": Peak(15.7 * TERA, 125 * TERA, 900 * GIGA, LAUNCH, "NVIDIA V100 SXM2 datasheet, 2017"),
    "a100": Peak(19.5 * TERA, 312 * TERA, 1555 * GIGA, LAUNCH, "NVIDIA A100 40GB datasheet, 2020"),
    "h100": Peak(67 * TERA, 989 * TERA, 3350 * GIGA, LAUNCH, "NVIDIA H100 SXM datasheet, 2022"),
    "h200": Peak(67 * TERA, 989 * TERA, 4800 * GIGA, LAUNCH, "NVIDIA H200 SXM datasheet, 2023"),
}


def peak(kind: str) -> Peak:
    """Figures of a kind.

    Raises:
        InputError: none are known.
    """
    if kind not in PEAKS:
        raise InputError(
            f"device kind {kind!r}: not on this machine and no published peaks are known; "
            f"use one of {', '.join(PEAKS)}, or a problem file with times"
        )
    return PEAKS[kind]
