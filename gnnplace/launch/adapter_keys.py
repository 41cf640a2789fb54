"""Low-rank adapters that a launch file states: their rank and products, as `--lora` has them.

Modules are those of peft's `target_modules` on transformers' classes, NeMo's and
Megatron-Bridge's. What is no product of a layer (an embedding, the head, a regular expression) is a
line of the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gnnplace.launch.yaml_reading import YamlReading
from gnnplace.plans import HALF_BITS, MAX_RANK, TARGETS, Adapters

ALL = ("all", "all-linear")
MODULES: Mapping[str, tuple[str, ...]] = {
    **{f"{name}_proj": (name,) for name in TARGETS},
    "qkv_proj": ("q", "k", "v"),
    "query_key_value": ("q", "k", "v"),
    "Wqkv": ("q", "k", "v"),
    "c_attn": ("q", "k", "v"),
    "out_proj": ("o",),
    "gate_up_proj": ("gate", "up"),
    "dense_h_to_4h": ("up",),
    "dense_4h_to_h": ("down",),
    "attention_qkv": ("q", "k", "v"),
    "attention_dense": ("o",),
    "attention": ("q", "k", "v", "o"),
    "mlp_fc1": ("gate", "up"),
    "mlp_fc2": ("down",),
    "mlp": ("gate", "up", "down"),
    "linear_qkv": ("q", "k", "v"),
    "linear_proj": ("o",),
    "linear_fc1": ("gate", "up"),
    "linear_fc2": ("down",),
}
"""Products of a layer by the names of modules."""
PROJECTIONS = re.compile(r"(?:\(([^()]{1,200})\)|\b([a-z]{1,9}))_proj")
LAYER_NUMBERS = re.compile(r"layers\\*\.\(?\d")
UNREAD = "adapters (LoRA); priced as training of all parameters"


@dataclass(frozen=True)
class AdapterKeys:
    """The keys that low-rank adapters have in a file.

    Attributes:
        rank: The key of the rank.
        targets: The key of the modules.
        default_rank: The rank where the file has none; None: a file must have it.
        default_targets: The modules where the file has none; empty: a file must have them.
    """

    rank: str
    targets: str
    default_rank: int | None = None
    default_targets: tuple[str, ...] = ()


def read_adapters(
    reading: YamlReading,
    keys: AdapterKeys,
    *,
    bits: int = HALF_BITS,
    expert_bits: int = HALF_BITS,
) -> str | None:
    """Return the adapters of a file in the words of `--lora`, or None if they cannot be read.

    What is not read is noted as a key that no price counts.

    Args:
        reading: The file.
        keys: The keys that the adapters have in the file.
        bits: Bits of the frozen matrices of layers.
        expert_bits: Bits of the frozen matrices of experts.

    Raises:
        FormatError: If the rank is no whole number.
    """
    rank = reading.count(keys.rank, keys.default_rank)
    if rank is None or rank > MAX_RANK:
        reading.refuse_price(keys.rank, f"the rank is not known: {UNREAD}")
        return None
    listed = reading.get(keys.targets)
    if isinstance(listed, str):
        listed = [name.strip() for name in listed.split(",") if name.strip()]
    modules = (
        listed if isinstance(listed, list) and listed else list(keys.default_targets)
    )
    if not modules:
        reading.refuse_price(keys.targets, f"the products are not known: {UNREAD}")
        return None
    if any(LAYER_NUMBERS.search(str(module)) for module in modules):
        reading.refuse_price(keys.targets, "some layers have adapters; priced as all")
    named, unread = find_products(modules)
    if not named:
        reading.refuse_price(keys.targets, f"{', '.join(unread)}: {UNREAD}")
        return None
    if unread:
        effect = (
            f"{', '.join(unread)}: no product of a layer; priced without adapters of it"
        )
        reading.refuse_price(keys.targets, effect)
    return lora_words(rank, named, bits=bits, expert_bits=expert_bits)


def find_products(modules: Sequence[object]) -> tuple[set[str], list[str]]:
    """Return the products of a layer that modules are, and the names that are of none."""
    named: set[str] = set()
    unread: list[str] = []
    for module in modules:
        if "(" in str(module) or "\\" in str(module):  # a regular expression
            matched = _match_products(str(module))
            named |= matched
            if not matched:
                unread.append(str(module)[:40])
            continue
        name = str(module).rpartition(".")[2]
        named.update(TARGETS if name in ALL else MODULES.get(name, ()))
        if name not in ALL and name not in MODULES:
            unread.append(str(module)[:40])
    return named, unread


def _match_products(pattern: str) -> set[str]:
    """Return the products that a regular expression of names has, such as `(q|k|v|o)_proj`."""
    products: set[str] = set()
    for match in PROJECTIONS.finditer(pattern):
        names = (match[1] or match[2]).split("|")
        products.update(name for name in names if name in TARGETS)
    return products


def lora_words(
    rank: int,
    products: set[str],
    *,
    bits: int = HALF_BITS,
    expert_bits: int = HALF_BITS,
) -> str:
    """Return adapters of some products of a layer in the words of `--lora`."""
    targets = tuple(name for name in TARGETS if name in products)
    if len(targets) == len(TARGETS):
        targets = ()
    return str(Adapters(rank, bits, targets, expert_bits))
