"""Options that are numbers: each has a range, and what is out of it is refused before any work."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from jsonargparse import ArgumentParser, Namespace

from gnnplace.errors import InputError
from gnnplace.files import read_size
from gnnplace.problem.microbatching import MOST_MICROBATCHES

MOST_SEED = 2**32 - 1  # numpy's own limit, and Lightning's
MOST_SECONDS = 31_536_000.0  # a year
MOST_STEPS = 1_000_000
MOST_DEVICES = 65_536


@dataclass(frozen=True)
class Range:
    """What a number may be.

    Attributes:
        least: and no less.
        above: more than this.
        most: and no more.
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None

    def fault(self, value: float) -> str | None:
        """What is wrong with a number, or None."""
        if isinstance(value, float) and not math.isfinite(value):
            return "must be a finite number"
        if self.least is not None and value < self.least:
            return "must not be negative" if self.least == 0 else f"must be at least {self.least:g}"
        if self.above is not None and value <= self.above:
            return f"must be more than {self.above:g}"
        if self.most is not None and value > self.most:
            return f"must be at most {self.most:.15g}"
        return None


COUNT = Range(least=1)
DEVICES = Range(least=1, most=MOST_DEVICES)
NOT_NEGATIVE = Range(least=0)
POSITIVE = Range(above=0)
SEED = Range(least=0, most=MOST_SEED)
BUDGET = Range(least=0, most=MOST_SECONDS)
SECONDS = Range(above=0, most=MOST_SECONDS)
STEPS = Range(least=1, most=MOST_STEPS)
MICROBATCHES = Range(least=1, most=MOST_MICROBATCHES)

_ranges: WeakKeyDictionary[ArgumentParser, dict[str, Range]] = WeakKeyDictionary()


def add_number(
    parser: ArgumentParser, name: str, kind: Any, allowed: Range, *, default: Any, help: str
) -> None:
    """Declares an option that is a number.

    Args:
        parser: the parser of a command.
        name: the name of the option, such as ``--seed``.
        kind: int or float, or a union with words.
        allowed: what ``check_numbers`` lets pass.
        default: where it is not given.
        help: a sentence.
    """
    parser.add_argument(name, type=kind, default=default, help=help)
    _ranges.setdefault(parser, {})[name] = allowed


Made = TypeVar("Made")
Row = tuple[str, str] | tuple[str, Any, Any, str]
"""Of an option its name and a sentence of help, where it is a text that may be left out; of others
also its kind (``str``, ``bool`` for a flag, or a number's type and what ``check_numbers`` lets
pass) and its default, before the sentence."""


def add_options(parser: ArgumentParser, *rows: Row) -> None:
    """Declares options."""
    for name, *kinds, told in rows:
        kind, default = kinds or (str, None)
        if kind is bool:
            parser.add_argument(name, action="store_true", help=told)
        elif isinstance(kind, tuple):
            add_number(parser, name, *kind, default=default, help=told)
        else:
            parser.add_argument(name, default=default, help=told)


def from_args(kind: Callable[..., Made], args: Namespace, **changed: Any) -> Made:
    """A dataclass of the arguments that its fields are named as, and of what else is given."""
    named = [own.name for own in fields(kind) if own.name in args]  # type: ignore[arg-type]
    return kind(**{name: getattr(args, name) for name in named} | changed)


class _Bytes:
    """What reads bytes, as 16e9, "16GB" or "512MiB"; the help shows its ``repr``."""

    def __call__(self, text: str) -> float:
        """The bytes that a text says.

        Raises:
            ValueError: it says none.
        """
        try:
            return float(text)  # of whatever sign: the range says what is wrong with it
        except ValueError:
            return float(read_size(text))

    def __repr__(self) -> str:
        return "bytes"


size = _Bytes()


def check_numbers(parser: ArgumentParser, args: Namespace) -> None:
    """Refuses numbers out of their range.

    Raises:
        InputError: naming the option, the number and the range.
    """
    for name, allowed in _ranges.get(parser, {}).items():
        check_number(name, getattr(args, name.lstrip("-").replace("-", "_")), allowed)


def check_number(name: str, value: Any, allowed: Range) -> None:
    """Refuses one number; None and words pass.

    Raises:
        InputError: naming the option, the number and the range.
    """
    if isinstance(value, int | float) and (fault := allowed.fault(value)) is not None:
        raise InputError(f"{name} {value}: {fault}")
