"""Stages of whole layers, as launch scripts name them: `layers=12+12+12+12` or `layers=equal`.

A layer is an outermost numbered module, such as `transformer.h.3` or `encoder.block.0`; it begins
at the first segment that computes in it. What comes before the first layer is of the first stage,
what comes after the last is of the last.
"""

from __future__ import annotations

from gnnplace.errors import InputError
from gnnplace.plans.segments.chain import Chain

EQUAL = "equal"


def layer_of(module: str) -> str:
    """The outermost numbered module on the way to a module: `h.3` of `h.3.attn.0`; else empty."""
    parts = module.split(".")
    number = next((k for k, part in enumerate(parts) if part.isdecimal()), None)
    return "" if number is None else ".".join(parts[: number + 1])


def layer_starts(chain: Chain) -> dict[str, int]:
    """The first segment of every layer, by its name, in order."""
    found: dict[str, int] = {}
    for k, segment in enumerate(chain.segments):
        for module in segment.modules:
            if layer := layer_of(module):
                found.setdefault(layer, k)
    return found


def layer_bounds(chain: Chain, words: str, stages: int) -> list[int]:
    """Cuts after so many layers each. [stages + 1]

    Args:
        chain: the model.
        words: the layers of every stage, such as "6+6+4", or "equal".
        stages: how many there are.

    Raises:
        InputError: the numbers are not those of the model's layers and stages, or two layers that
            are to be cut apart are of one segment.
    """
    starts = layer_starts(chain)
    counts = _counts(words, len(starts), stages)
    names, position, bounds = list(starts), 0, [0]
    for count in counts[:-1]:
        position += count
        bounds.append(starts[names[position]])
        if bounds[-1] <= bounds[-2]:
            raise InputError(
                f"--given: layers={words}: {names[position]} cannot be cut from what is before it"
            )
    return [*bounds, len(chain)]


def _counts(words: str, layers: int, stages: int) -> list[int]:
    """The layers of every stage."""
    if words == EQUAL:
        if layers == 0 or layers % stages:
            raise InputError(
                f"--given: layers=equal: the model's {layers} layers are no multiple of {stages} "
                "stages; say how many each has, such as layers=6+6+4"
            )
        return [layers // stages] * stages
    parts = words.split("+")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise InputError(f"--given: layers={words}: must be 'equal', or numbers such as 6+6+4")
    counts = [int(part) for part in parts]
    if len(counts) != stages or sum(counts) != layers:
        raise InputError(
            f"--given: layers={words}: must be {stages} numbers, one a stage, whose sum is the "
            f"model's {layers} layers"
        )
    return counts
