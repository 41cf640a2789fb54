"""`Adapters`: low-rank adapters that are trained beside frozen weights.

LoRA (Hu et al., 2021, arXiv 2106.09685): a product with a frozen matrix W has B A x added, A of
rank x inputs and B of outputs x rank. Every product of a layer has one, experts and their router
apart, as peft's `target_modules="all-linear"` does on transformers 5, whose experts are no modules;
the head has none. Frozen parameters have no gradient, no state and no products of weights'
gradients, and are held in half precision: nothing is added to them.

QLoRA (Dettmers et al., 2023, arXiv 2305.14314): the frozen matrices of layers are held in 4 bits
(NF4), with a scale for each block of 64 numbers. Scales are quantized again, to 8 bits, with a
float32 scale for each 256 of them: 8/64 + 32/(64 * 256) = 0.127 bits a number. Tables and norms
stay in half precision. A matrix is unpacked before every product.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gnnplace.errors import InputError

HALF_BYTES = 2.0
HALF_BITS, QUANTIZED_BITS = 16, 4
SCALE_BITS = 8 / 64 + 32 / (64 * 256)
"""Bits of a quantized number's part of its scales, with double quantization."""
MAX_RANK = 65_536


@dataclass(frozen=True)
class Adapters:
    """Adapters of every product of a layer.

    Attributes:
        rank: Of the two matrices of each.
        bits: Of the frozen matrices of layers: 16, or 4 (NF4).
    """

    rank: int
    bits: int = HALF_BITS

    def __str__(self) -> str:
        """Return the adapters as `--lora` takes them."""
        return f"r={self.rank}" + (f",bits={self.bits}" if self.is_quantized else "")

    @property
    def is_quantized(self) -> bool:
        """Whether frozen matrices are held in 4 bits."""
        return self.bits == QUANTIZED_BITS

    @property
    def matrix_bytes(self) -> float:
        """Bytes of a number of a frozen matrix of a layer."""
        return (self.bits + SCALE_BITS) / 8 if self.is_quantized else HALF_BYTES

    @property
    def script_line(self) -> str:
        """Format what a training script must do, where a launch file has no words for it."""
        load = " on weights loaded in 4 bits (NF4, double quantization)"
        return (
            f'adapters: the script makes them, as peft.LoraConfig(r={self.rank}, target_modules="'
            f'all-linear"){load if self.is_quantized else ""}'
        )

    @property
    def name(self) -> str:
        """What they are called."""
        return "QLoRA" if self.is_quantized else "LoRA"

    @property
    def label(self) -> str:
        """What they are called, with their words."""
        return f"{self.name} {self}"


def parse_adapters(text: str) -> Adapters:
    """Parse the adapters of `--lora`, such as "r=16" or "r=16,bits=4".

    Raises:
        InputError: A word is malformed, unknown or repeated, or the rank is missing.
    """
    values: dict[str, int] = {}
    for pair in text.split(","):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if name == "targets" and value == "all":
            continue
        if not equals or name not in ("r", "bits") or not re.fullmatch(r"[1-9]\d{0,5}", value):
            raise InputError(
                f"--lora {text}: {pair.strip()!r}: must be r=RANK, bits=4 or bits=16; every "
                "product of a layer has adapters (targets=all)"
            )
        if name in values:
            raise InputError(f"--lora {text}: {name!r} is repeated")
        values[name] = int(value)
    rank, bits = values.get("r", 0), values.get("bits", HALF_BITS)
    if not 1 <= rank <= MAX_RANK or bits not in (HALF_BITS, QUANTIZED_BITS):
        raise InputError(
            f"--lora {text}: needs a rank from 1 to {MAX_RANK:,}, and bits=4 or bits=16, such as "
            "r=16 or r=16,bits=4"
        )
    return Adapters(rank, bits)
