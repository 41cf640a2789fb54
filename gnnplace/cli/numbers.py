"""Options that are numbers: each has a range, which is checked before any work."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

from jsonargparse import ArgumentParser, Namespace

from gnnplace.errors import InputError
from gnnplace.files import read_size
from gnnplace.problem import MOST_MICROBATCHES

MOST_SEED = 2**32 - 1  # numpy's own limit, and Lightning's
MOST_SECONDS = 31_536_000.0  # a year
MOST_STEPS = 1_000_000
MOST_DEVICES = 65_536


@dataclass(frozen=True)
class Range:
    """The range that a number must be in.

    Attributes:
        minimum: The least number allowed, or None.
        above: A bound that the number must exceed, or None.
        maximum: The largest number allowed, or None.
    """

    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None

    def fault(self, value: float) -> str | None:
        """Return what is wrong with a number, or None if it is in the range."""
        if isinstance(value, float) and not math.isfinite(value):
            return "must be a finite number"
        if self.minimum is not None and value < self.minimum:
            if self.minimum == 0:
                return "must not be negative"
            return f"must be at least {self.minimum:g}"
        if self.above is not None and value <= self.above:
            return f"must be more than {self.above:g}"
        if self.maximum is not None and value > self.maximum:
            return f"must be at most {self.maximum:.15g}"
        return None


COUNT = Range(minimum=1)
NOT_NEGATIVE = Range(minimum=0)
POSITIVE = Range(above=0)
SEED = Range(minimum=0, maximum=MOST_SEED)
BUDGET = Range(minimum=0, maximum=MOST_SECONDS)
SECONDS = Range(above=0, maximum=MOST_SECONDS)

Record = TypeVar("Record")


def from_args(
    kind: Callable[..., Record], args: Namespace, **changed: object
) -> Record:
    """Make a dataclass of the arguments that its fields are named as, and of `changed`."""
    values: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name in args:
            values[field.name] = getattr(args, field.name)
    values.update(changed)
    return kind(**values)


class _Bytes:
    """A parser of bytes, as 16e9, "16GB" or "512MiB". Its ``repr`` is shown by the help."""

    def __call__(self, text: str) -> float:
        """Return the bytes that a text says.

        Raises:
            ValueError: The text is no number of bytes.
        """
        try:
            return float(text)  # of whatever sign: the range says what is wrong with it
        except ValueError:
            return float(read_size(text))

    def __repr__(self) -> str:
        return "bytes"


size = _Bytes()


KINDS: Mapping[str, tuple[Any, Range]] = {
    "count": (int, COUNT),
    "count or none": (int | None, COUNT),
    "whole": (int, NOT_NEGATIVE),
    "devices": (int, Range(minimum=1, maximum=MOST_DEVICES)),
    "processes": (int, Range(minimum=0, maximum=1024)),
    "steps": (int, Range(minimum=1, maximum=MOST_STEPS)),
    "seed": (int, SEED),
    "microbatches": (int, Range(minimum=1, maximum=MOST_MICROBATCHES)),
    "microbatches or auto": (
        int | Literal["auto"],
        Range(minimum=1, maximum=MOST_MICROBATCHES),
    ),
    "budget": (float, BUDGET),
    "seconds": (float, SECONDS),
    "positive": (float, POSITIVE),
    "not negative": (float, NOT_NEGATIVE),
    "imbalance": (float, Range(minimum=1, maximum=64)),
    "bytes": (size, POSITIVE),
    "bytes or none": (size, NOT_NEGATIVE),
}
"""Numbers as ``options.json`` names their kinds: the type, and what ``check_numbers`` lets pass."""
_ranges: WeakKeyDictionary[ArgumentParser, dict[str, Range]] = WeakKeyDictionary()


def list_ranges(parser: ArgumentParser) -> dict[str, Range]:
    """Return the range of each option of a parser that is a number, by the option's name."""
    return _ranges.setdefault(parser, {})


def check_numbers(parser: ArgumentParser, args: Namespace) -> None:
    """Refuse numbers out of their range.

    Raises:
        InputError: A number is out of its range; the message names option, number and range.
    """
    for name, allowed in list_ranges(parser).items():
        destination = name.lstrip("-").replace("-", "_")
        value = getattr(args, destination)
        check_number(name, value, allowed)


def check_number(name: str, value: object, allowed: Range) -> None:
    """Refuse one number; None and words pass.

    Raises:
        InputError: A number is out of its range; the message names option, number and range.
    """
    if not isinstance(value, int | float):
        return
    fault = allowed.fault(value)
    if fault is not None:
        raise InputError(f"{name} {value}: {fault}")
