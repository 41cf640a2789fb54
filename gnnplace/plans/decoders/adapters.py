"""`Adapters`: low-rank adapters that are trained beside frozen weights.

LoRA (Hu et al., 2021, arXiv 2106.09685): a product with a frozen matrix W has B A x added, A of
rank x inputs and B of outputs x rank. By default every product of a layer has one, experts and
their router apart, as peft's `target_modules="all-linear"` does on transformers 5, whose experts
are no modules; the head has none. `targets` names the products that have one. Frozen parameters
have no gradient, no state and no products of weights' gradients, and are held in half precision:
nothing is added to them.

QLoRA (Dettmers et al., 2023, arXiv 2305.14314): the frozen matrices of layers are held in 4 bits
(NF4), with a scale for each block of 64 numbers. Scales are quantized again, to 8 bits, with a
float32 scale for each 256 of them: 8/64 + 32/(64 * 256) = 0.127 bits a number. Tables and norms
stay in half precision. A matrix is unpacked before every product. Experts stay in half precision,
too, where the script does no more than bitsandbytes, which knows linear layers alone (its issue
1849); `expert_bits=4` holds them in 4 bits, as axolotl's `quantize_moe_experts` does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gnnplace.errors import InputError

HALF_BYTES = 2.0
HALF_BITS = 16
QUANTIZED_BITS = 4
SCALE_BITS = 8 / 64 + 32 / (64 * 256)
"""Bits of a quantized number's part of its scales, with double quantization."""
MAX_RANK = 65_536


TARGETS = ("q", "k", "v", "o", "gate", "up", "down")
"""Products of a layer that may have adapters; of a feed-forward without a gate up and down."""


@dataclass(frozen=True)
class Adapters:
    """Adapters of the products of a layer.

    Attributes:
        rank: Rank of the two matrices of each adapter.
        bits: Bits of the frozen matrices of layers: 16, or 4 (NF4).
        targets: The products that have adapters, of `TARGETS`; empty: all of them.
        expert_bits: Bits of the frozen matrices of experts: 16, or 4.
    """

    rank: int
    bits: int = HALF_BITS
    targets: tuple[str, ...] = ()
    expert_bits: int = HALF_BITS

    def __str__(self) -> str:
        """Return the adapters as `--lora` takes them."""
        words = [f"r={self.rank}"]
        if self.targets:
            words.append(f"targets={'+'.join(self.targets)}")
        if self.is_quantized:
            words.append(f"bits={self.bits}")
        if self.quantizes_experts:
            words.append(f"expert_bits={self.expert_bits}")
        return ",".join(words)

    @property
    def is_quantized(self) -> bool:
        """Return whether frozen matrices are held in 4 bits."""
        return self.bits == QUANTIZED_BITS

    @property
    def quantizes_experts(self) -> bool:
        """Return whether frozen matrices of experts are held in 4 bits."""
        return self.expert_bits == QUANTIZED_BITS

    @property
    def matrix_bytes(self) -> float:
        """Return the bytes of one number of a layer's frozen matrix."""
        return _count_frozen_bytes(self.bits)

    @property
    def expert_bytes(self) -> float:
        """Return the bytes of one number of an expert's frozen matrix."""
        return _count_frozen_bytes(self.expert_bits)

    @property
    def script_line(self) -> str:
        """Format what a training script must do, where a launch file has no words for it."""
        load = ""
        if self.is_quantized:
            load = " on weights loaded in 4 bits (NF4, double quantization)"
        if self.quantizes_experts:
            load += ", experts too, as axolotl's quantize_moe_experts does"
        modules = ", ".join(f'"{name}_proj"' for name in self.targets)
        if self.targets:
            targets = f"[{modules}]"
        else:
            targets = '"all-linear"'
        return (
            f"adapters: the script makes them, as peft.LoraConfig(r={self.rank}, "
            f"target_modules={targets}){load}"
        )

    @property
    def name(self) -> str:
        """Return "QLoRA" if frozen matrices are quantized, else "LoRA"."""
        if self.is_quantized:
            return "QLoRA"
        return "LoRA"

    @property
    def label(self) -> str:
        """Return the name of the adapters with their words."""
        return f"{self.name} {self}"

    def has(self, members: Sequence[str]) -> bool:
        """Return whether a product has an adapter.

        Args:
            members: What it makes, of `TARGETS`; several where one matrix makes them.

        Raises:
            InputError: If some of these are named and some are not.
        """
        if not self.targets:
            return True
        named = [name for name in members if name in self.targets]
        if named and len(named) < len(members):
            raise InputError(
                f"--lora {self}: {', '.join(members)} are made by one product of this model; name "
                "all of them, or none"
            )
        return bool(named)


def _count_frozen_bytes(bits: int) -> float:
    """Return the bytes of a frozen number of `bits` bits, with its part of quantization scales."""
    if bits == QUANTIZED_BITS:
        return (bits + SCALE_BITS) / 8
    return HALF_BYTES


def parse_adapters(text: str) -> Adapters:
    """Parse the adapters of `--lora`, such as "r=16", "r=16,targets=q+v" or "r=16,bits=4".

    Raises:
        InputError: If a word is malformed, unknown or repeated, or the rank is missing.
    """
    values: dict[str, int] = {}
    targets: tuple[str, ...] | None = None
    for pair in text.split(","):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if name == "targets" and targets is None:
            targets = _parse_targets(value, text)
            continue
        counts = ("r", "bits", "expert_bits")
        if name in values or name == "targets":
            raise InputError(f"--lora {text}: {name!r} is repeated")
        if not equals or name not in counts or not re.fullmatch(r"[1-9]\d{0,5}", value):
            raise InputError(
                f"--lora {text}: {pair.strip()!r}: must be r=RANK, targets=q+k+v (by default all "
                "of a layer), bits=4 or bits=16, or expert_bits=4"
            )
        values[name] = int(value)
    rank = values.get("r", 0)
    bits = values.get("bits", HALF_BITS)
    expert_bits = values.get("expert_bits", HALF_BITS)
    allowed = (HALF_BITS, QUANTIZED_BITS)
    if not 1 <= rank <= MAX_RANK or bits not in allowed or expert_bits not in allowed:
        raise InputError(
            f"--lora {text}: needs a rank from 1 to {MAX_RANK:,}, and bits=4 or bits=16, such as "
            "r=16 or r=16,bits=4"
        )
    if expert_bits < bits:
        raise InputError(f"--lora {text}: expert_bits=4 needs bits=4")
    return Adapters(rank, bits, targets or (), expert_bits)


def _parse_targets(value: str, text: str) -> tuple[str, ...]:
    """Return the products of `targets=`, in the order of `TARGETS`; none for all of them.

    Raises:
        InputError: If one is unknown, or there is none.
    """
    names = value.split("+")
    if names == ["all"]:
        return ()
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        raise InputError(
            f"--lora {text}: targets={value}: {unknown[0]!r} is no product of a layer; name "
            f"some of {'+'.join(TARGETS)}, or all"
        )
    if set(names) != set(TARGETS):
        return tuple(name for name in TARGETS if name in names)
    return ()
