"""Kinds of GPUs: memory, its bandwidth and peak rates of matrix products, from datasheets.

Rates are dense (no sparsity), of the boost clock, multiply and add counted as two. A card that
has no units for a type runs it through a wider one; its rate is then that of the wider type.
Power is the datasheet's limit, year that of the architecture. Memory is the datasheet's size in
units of 10^9 bytes, a little below what the driver counts.
The variants of one chip (PCIe, SXM) are one kind with the figures of the variant that is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gnnplace.errors import InputError

TERA, GIGA, MICRO = 1e12, 1e9, 1e-6
# Launch of an op: 4 us, a usual kernel launch plus its gap (assumed, not published).
LAUNCH = 4 * MICRO
FLOAT32 = "float32"


@dataclass(frozen=True)
class Gpu:
    """What a device of a kind has and can do at most.

    Attributes:
        product: The variant that the figures are of.
        memory: Bytes.
        bandwidth: Bytes a second of its memory.
        rates: Floating-point operations a second of matrix products by type: `float32` without
            TF32 as PyTorch multiplies by default, `tf32` as cuDNN convolves by default, `float16`
            and `bfloat16` with sums in float32.
        source: Where the figures are from.
        power: Watts that it may draw.
        year: Of its architecture's first product.
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
        """A second, in float32: a multiprocessor has 16 units for them beside 64 cores.

        From 2020 on it has 128 cores beside them, but for A100 (NVIDIA's architecture whitepapers;
        Shah et al., FlashAttention-3, 2024, section 3.1 has 3.9e12 of H100).
        """
        many = self.year >= 2020 and not self.product.startswith("A100")
        return self.rates[FLOAT32] / (16 if many else 8)

    def flops(self, dtype: str) -> float:
        """Operations a second in a type; of float32 for types that are not listed."""
        return self.rates.get(dtype, self.rates[FLOAT32])


def _gpu(
    product: str,
    memory: float,
    bandwidth: float,
    rates: tuple[float, float, float, float],
    power: float,
    year: int,
    source: str,
) -> Gpu:
    """Memory in GB, bandwidth in GB/s; rates of float32, tf32, float16, bfloat16 in TFLOP/s."""
    names = (FLOAT32, "tf32", "float16", "bfloat16")
    tera = {name: rate * TERA for name, rate in zip(names, rates, strict=True)}
    return Gpu(product, memory * GIGA, bandwidth * GIGA, tera, source, power, year)


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
AICONFIGURATOR = "ai-dynamo/aiconfigurator, systems/*.yaml, commit 095f58a"
GPUS: Mapping[str, Gpu] = {
    "p4": _gpu("Tesla P4", 8, 192, (5.5, 5.5, 5.5, 5.5), 75, 2016, "NVIDIA P4 datasheet, 2016"),
    "p100": _gpu(
        "Tesla P100 PCIe 16 GB",
        16,
        732,
        (9.3, 9.3, 18.7, 9.3),
        250,
        2016,
        "NVIDIA P100 datasheet, 2016",
    ),
    "v100": _gpu(
        "Tesla V100 SXM2 16 GB",
        16,
        900,
        (15.7, 15.7, 125, 15.7),
        300,
        2017,
        "NVIDIA V100 datasheet, 2017",
    ),
    "v100-32": _gpu(
        "Tesla V100 SXM2 32 GB",
        32,
        900,
        (15.7, 15.7, 125, 15.7),
        300,
        2017,
        "NVIDIA V100 datasheet, 2018",
    ),
    "titan-v": _gpu(
        "Titan V",
        12,
        652.8,
        (14.9, 14.9, 110, 14.9),
        250,
        2017,
        "NVIDIA Titan V page, 2017",
    ),
    "gtx-1080-ti": _gpu(
        "GeForce GTX 1080 Ti",
        11,
        484,
        (11.3, 11.3, 11.3, 11.3),
        250,
        2016,
        "NVIDIA GTX 1080 Ti page, 2017",
    ),
    "t4": _gpu("Tesla T4", 16, 320, (8.1, 8.1, 65, 8.1), 70, 2018, "NVIDIA T4 datasheet, 2018"),
    "titan-xp": _gpu(
        "Titan Xp", 12, 547.6, (12.15, 12.15, 12.15, 12.15), 250, 2016, "NVIDIA Titan Xp page, 2017"
    ),
    "rtx-2080-ti": _gpu(
        "GeForce RTX 2080 Ti",
        11,
        616,
        (13.45, 13.45, 53.8, 13.45),
        250,
        2018,
        "NVIDIA Turing architecture whitepaper, 2018",
    ),
    "titan-rtx": _gpu(
        "Titan RTX", 24, 672, (16.3, 16.3, 130.5, 16.3), 280, 2018, "NVIDIA Turing whitepaper, 2018"
    ),
    "rtx-3090": _gpu(
        "GeForce RTX 3090",
        24,
        936,
        (35.6, 35.6, 71, 71),
        350,
        2020,
        "NVIDIA Ampere GA102 architecture whitepaper, 2020",
    ),
    "a40": _gpu(
        "A40", 48, 696, (37.4, 74.8, 149.7, 149.7), 300, 2020, "NVIDIA A40 datasheet, 2020"
    ),
    "a100": _gpu(
        "A100 SXM4 40 GB",
        40,
        1555,
        (19.5, 156, 312, 312),
        400,
        2020,
        "NVIDIA A100 40GB datasheet, 2020",
    ),
    "a100-80": _gpu(
        "A100 SXM4 80 GB",
        80,
        2039,
        (19.5, 156, 312, 312),
        400,
        2020,
        "NVIDIA A100 80GB datasheet, 2021",
    ),
    "l4": _gpu("L4", 24, 300, (30.3, 60.5, 121, 121), 72, 2022, "NVIDIA L4 datasheet, 2023"),
    "l40s": _gpu(
        "L40S", 48, 864, (91.6, 183, 362.05, 362.05), 350, 2022, "NVIDIA L40S datasheet, 2023"
    ),
    "h100": _gpu(
        "H100 SXM5 80 GB",
        80,
        3350,
        (67, 494.5, 989, 989),
        700,
        2022,
        "NVIDIA H100 SXM datasheet, 2022",
    ),
    "h200": _gpu(
        "H200 SXM", 141, 4800, (67, 494.5, 989, 989), 700, 2022, "NVIDIA H200 SXM datasheet, 2023"
    ),
    "gh200": _gpu(
        "GH200 96 GB HBM3",
        96,
        4000,
        (67, 494.5, 989, 989),
        700,
        2022,
        "NVIDIA GH200 datasheet, 2023",
    ),
    "b200": _gpu(
        "B200 SXM 180 GB",
        180,
        7700,
        (75, 1125, 2250, 2250),
        1000,
        2024,
        f"NVIDIA HGX B200 datasheet, 2024; bandwidth: {AICONFIGURATOR}",
    ),
    "rtx-pro-6000": _gpu(
        "RTX PRO 6000 Blackwell Server Edition",
        96,
        1792,
        (120, 233.9, 467.8, 467.8),
        600,
        2024,
        f"NVIDIA RTX PRO 6000 datasheet, 2025; tensor cores at 2430 MHz: {AICONFIGURATOR}",
    ),
}
# Other names of the kinds: with a size, as `nvidia-smi` has them, without dashes.
ALIASES: Mapping[str, str] = {
    "a100-40": "a100",
    "v100-16": "v100",
    "3090": "rtx-3090",
    "rtx3090": "rtx-3090",
    "2080": "rtx-2080-ti",
    "rtx-6000-pro": "rtx-pro-6000",
    "6000": "rtx-pro-6000",
}


def known_kind(kind: str) -> str | None:
    """The kind in `GPUS` (or `cpu`) that a name stands for, or None."""
    plain = kind.lower().replace("_", "-").removesuffix("gb")
    found = ALIASES.get(plain, plain)
    return found if found in GPUS or found == "cpu" else None


def figures(kind: str) -> Gpu:
    """Figures of a kind, by any of its names.

    Raises:
        InputError: none are known.
    """
    found = known_kind(kind)
    if found is None:
        raise InputError(
            f"device kind {kind!r}: not on this machine and no published peaks are known; "
            f"use one of {', '.join(('cpu', *GPUS))}, or a problem file with times"
        )
    return CPU if found == "cpu" else GPUS[found]
