"""Which ops a pattern over module names matches.

``encoder`` matches the module ``encoder`` and all inside it, and so does ``encoder.*``; in general
a pattern matches an op if it matches the name of the op's module or that of a module around it
(``fnmatch``, case and all; ``*`` also matches dots). Where no op has a module, as in problems of
other programs, patterns are over the names of ops, without the number of a micro-batch.
Complexity: O(distinct names x depth) a pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

import numpy as np

from gnnplace.arrays import BoolArray
from gnnplace.errors import InputError

INSIDE = ".*"
NEAR, LIKENESS = 3, 0.5  # names that an error shows, and how alike they are at least


@dataclass(frozen=True, eq=False)
class Matched:
    """What a pattern matches.

    Attributes:
        what: the constraint in words, such as "pin encoder.*=gpu:0".
        ops: whether it matches each op. [n]
        modules: number of distinct modules of these ops.
    """

    what: str
    ops: BoolArray
    modules: int

    def __str__(self) -> str:
        return f"{self.what}: {_count(self.modules, 'module')}, {_count(int(self.ops.sum()), 'op')}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class Names:
    """The names that patterns are over.

    Args:
        modules: module of each op, or None. [n]
        ops: name of each op. [n]
    """

    def __init__(self, modules: Sequence[str | None], ops: Sequence[str]) -> None:
        self.of_modules = any(modules)
        shown = modules if self.of_modules else [name.partition("#")[0] for name in ops]
        known: dict[str, int] = {}
        self.index = np.array([known.setdefault(name or "", len(known)) for name in shown])
        self.names = list(known)

    def matched(self, pattern: str, what: str) -> Matched:
        """The ops that a pattern matches.

        Raises:
            InputError: it matches none; shows names that are like it.
        """
        plain = pattern.removesuffix(INSIDE)
        hit = np.array([name != "" and _matches(name, plain) for name in self.names])
        if not hit.any():
            raise InputError(f"{what}: no {self._noun} matches {pattern!r}{self._near(plain)}")
        return Matched(what, hit[self.index], int(hit.sum()))

    @property
    def _noun(self) -> str:
        return "module" if self.of_modules else "op"

    def _near(self, pattern: str) -> str:
        known = dict.fromkeys(part for name in self.names for part in _around(name) if part)
        near = get_close_matches(pattern, known, NEAR, LIKENESS)
        if near:
            return f"; near: {', '.join(map(repr, near))}"
        first = ", ".join(map(repr, list(dict.fromkeys(n.split(".")[0] for n in known))[:8]))
        return f"; {self._noun}s are {first}" if first else ""


def _around(name: str) -> list[str]:
    """A module's name and those of the modules around it, the innermost first."""
    parts = name.split(".")
    return [".".join(parts[:k]) for k in range(len(parts), 0, -1)]


def _matches(name: str, pattern: str) -> bool:
    return any(fnmatchcase(part, pattern) for part in _around(name))


def devices_matched(patterns: Sequence[str], devices: Sequence[str], what: str) -> BoolArray:
    """The devices that one of some names or patterns matches. [D]

    Raises:
        InputError: one matches none; shows the devices there are.
    """
    found = np.zeros(len(devices), dtype=bool)
    for pattern in patterns:
        hit = np.array([fnmatchcase(name, pattern) for name in devices])
        if not hit.any():
            shown = get_close_matches(pattern, devices, NEAR, LIKENESS) or list(devices[:4])
            more = ", ..." if len(shown) < len(devices) else ""
            raise InputError(
                f"{what}: no device is named {pattern!r}; devices: {', '.join(shown)}{more}"
            )
        found |= hit
    return found
