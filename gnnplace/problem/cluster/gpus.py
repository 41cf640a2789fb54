"""Kinds of GPUs: memory, its bandwidth and peak rates of matrix products, from datasheets.

Rates are dense (no sparsity), of the boost clock, multiply and add counted as two. A card that
has no units for a type runs it through a wider one; its rate is then that of the wider type.
Power is the datasheet's limit, year that of the architecture. Memory is the datasheet's size in
units of 10^9 bytes, a little below what the driver counts.
The variants of one chip (PCIe, SXM) are one kind with the figures of the variant that is named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gnnplace.errors import InputError

TERA = 1e12
GIGA = 1e9
MICRO = 1e-6
# Launch of an op: 4 us, a usual kernel launch plus its gap (assumed, not published).
LAUNCH = 4 * MICRO
FLOAT32 = "float32"


@dataclass(frozen=True)
class Gpu:
    """The memory and the peak rates of a kind of device.

    Attributes:
        product: The variant that the figures are of.
        memory: Bytes of its memory, as its data sheet says.
        bandwidth: Bytes a second of its memory.
        rates: Floating-point operations a second of matrix products by type: `float32` without
            TF32 as PyTorch multiplies by default, `tf32` as cuDNN convolves by default, `float16`
            and `bfloat16` with sums in float32.
        source: Where the figures are from.
        power: Watts that it may draw.
        year: The year of the first product of its architecture.
        launch: Seconds that an op takes at least.
    """

    product: str
    memory: float
    bandwidth: float
    rates: Mapping[str, float]
    source: str
    power: float
    year: int
    launch: float = LAUNCH

    @property
    def exponentials(self) -> float:
        """Return exponentials a second in float32.

        A multiprocessor has 16 units for them beside 64 cores.

        From 2020 on it has 128 cores beside them, but for A100 (NVIDIA's architecture whitepapers;
        Shah et al., FlashAttention-3, 2024, section 3.1 has 3.9e12 of H100).
        """
        has_128_cores = self.year >= 2020 and not self.product.startswith("A100")
        return self.rates[FLOAT32] / (16 if has_128_cores else 8)

    @property
    def has_bfloat16(self) -> bool:
        """Return whether products of bfloat16 are faster than those of float32."""
        return self.rates["bfloat16"] > self.rates[FLOAT32]

    def flops(self, dtype: str) -> float:
        """Return operations a second in a type, or in float32 if the type is not listed."""
        return self.rates.get(dtype, self.rates[FLOAT32])


CPU = Gpu(
    "one core of a server",
    0.0,
    10 * GIGA,
    {FLOAT32: 50e9},
    "assumed: one core of a 2.5-3 GHz server with AVX2 at half of its peak",
    10.0,
    2019,
    5 * MICRO,
)


def _gpus() -> dict[str, Gpu]:
    """Read ``gpus.json``: GB, GB/s, and TFLOP/s of float32, tf32, float16, bfloat16."""
    rows = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    gpus = {}
    for name, row in rows.items():
        rates = zip(
            (FLOAT32, "tf32", "float16", "bfloat16"), row["tflops"], strict=True
        )
        gpus[name] = Gpu(
            row["product"],
            row["memory_gb"] * GIGA,
            row["bandwidth_gb_s"] * GIGA,
            {dtype: rate * TERA for dtype, rate in rates},
            row["source"],
            row["watts"],
            row["year"],
        )
    return gpus


GPUS: Mapping[str, Gpu] = _gpus()
# Other names of the kinds: with a size, as `nvidia-smi` has them, without dashes.
OWN_GPUS: dict[str, Gpu] = {}
"""Kinds that files of clusters have added in this process."""
ALIASES: Mapping[str, str] = {
    "a100-40": "a100",
    "v100-16": "v100",
    "3090": "rtx-3090",
    "rtx3090": "rtx-3090",
    "2080": "rtx-2080-ti",
    "rtx-6000-pro": "rtx-pro-6000",
    "6000": "rtx-pro-6000",
    "4090": "rtx-4090",
    "rtx4090": "rtx-4090",
    "5090": "rtx-5090",
    "rtx5090": "rtx-5090",
    "rtx-a6000": "a6000",
    "6000-ada": "rtx-6000-ada",
    "h100-sxm": "h100",
    "gb200-nvl72": "gb200",
}


def find_kind(kind: str) -> str | None:
    """Return the kind in `GPUS` (or `cpu`) that a name stands for, or None."""
    plain = kind.lower().replace("_", "-").removesuffix("gb")
    name = ALIASES.get(plain, plain)
    if name in GPUS or name in OWN_GPUS or name == "cpu":
        return name
    return None


def add_kind(name: str, gpu: Gpu) -> None:
    """Add a kind of one's own, by its peaks.

    Raises:
        InputError: A kind of that name has other figures.
    """
    plain = name.lower().replace("_", "-")
    usual = find_kind(name)
    if usual is not None and usual not in OWN_GPUS:
        raise InputError(
            f"kinds.{name}: is a kind that is known already; take another name"
        )
    OWN_GPUS[plain] = gpu


def get_figures(kind: str) -> Gpu:
    """Return the figures of a kind, by any of its names.

    Raises:
        InputError: no figures of this kind are known; the known kinds are listed.
    """
    name = find_kind(kind)
    if name is None:
        raise InputError(
            f"device kind {kind!r}: not on this machine and no published peaks are known; "
            f"use one of {', '.join(('cpu', *GPUS))}, or a problem file with times"
        )
    if name == "cpu":
        return CPU
    if name in OWN_GPUS:
        return OWN_GPUS[name]
    return GPUS[name]
