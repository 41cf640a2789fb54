"""One row of the table of placers: how to make a placer, its options, how long it takes.

A row names the placer's class, which is imported only when an instance is made, so that listing
placers and their options for a help text imports no algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gnnplace.errors import InputError
from gnnplace.foreign import check_installed

if TYPE_CHECKING:
    from gnnplace.placers.base import Placer


class Speed(Enum):
    """Seconds of a placer on a problem of a few hundred ops, without a budget."""

    CONSTRUCTION = "milliseconds: builds one placement"
    SEARCH = "as long as the budget: improves a placement until the time is up"
    SOLVER = "seconds to minutes: searches with a proof"


@dataclass(frozen=True)
class Option:
    """One option of a placer, on the command line, from Python and in suites alike.

    Attributes:
        kind: the type of its value, ``int`` or ``str``.
        default: its value where it is not given.
        help: one sentence that says what it does.
        least: the least value, where the option is a number.
    """

    kind: type
    default: int | str | None
    help: str
    least: int | None = None

    def read(self, placer: str, name: str, value: object) -> int | str:
        """Return the value as the placer takes it; text is parsed.

        Raises:
            InputError: it is not of this kind, or too small.
        """
        try:
            parsed = self.kind(value)
        except ValueError:
            why = f"must be of type {self.kind.__name__}"
            raise InputError(f"placer {placer!r}: {name} {value!r}: {why}") from None
        if self.least is not None and parsed < self.least:
            raise InputError(
                f"placer {placer!r}: {name} {parsed}: must be at least {self.least}"
            )
        return parsed


@dataclass(frozen=True)
class PlacerRow:
    """A placer as others see it.

    Attributes:
        name: what it is called everywhere.
        target: what makes one, with the options as keyword arguments: a class or a function, or
            where one stands, as ``gnnplace.placers.etf:Etf``.
        speed: how long it takes on a problem of a few hundred ops.
        cost: the cost of a construction, for the order they run in; of no meaning for others.
        options: the options that it takes, by name.
        quick: arguments of a shorter variant that runs first where time is short, if there is one.
        shown: whether comparisons show it unasked.
        executed: whether the demo runs what it finds on real workers.
        library: the library of an extra that it needs; empty if it needs none.
    """

    name: str
    target: str | Callable[..., Placer]
    speed: Speed
    cost: float = 0.0
    options: Mapping[str, Option] = field(default_factory=dict)
    quick: Mapping[str, Any] | None = None
    shown: bool = True
    executed: bool = False
    library: str = ""

    @property
    def is_construction(self) -> bool:
        """Return whether it builds one placement and ignores the budget."""
        return self.speed is Speed.CONSTRUCTION

    def make(self, **options: object) -> Placer:
        """Make a placer, importing what makes it."""
        return self.maker()(**options)

    def make_quick(self) -> Placer:
        """Make the shorter variant if there is one, else the placer itself."""
        return self.make(**(self.quick or {}))

    def maker(self) -> Callable[..., Placer]:
        """Return the class or function that makes placers."""
        if not isinstance(self.target, str):
            return self.target
        module, _, name = self.target.partition(":")
        maker: Callable[..., Placer] = getattr(import_module(module), name)
        return maker

    def made(self, given: Mapping[str, Any]) -> Placer:
        """Make a placer with the options that are given, checked.

        Raises:
            InputError: it has no such option, or the value is wrong.
            MissingExtraError: the library that it needs is not installed.
        """
        for name in given:
            if name not in self.options:
                names = ", ".join(self.options) or "none"
                raise InputError(
                    f"placer {self.name!r}: it has no option {name!r}; its options: {names}"
                )
        read = {
            k: self.options[k].read(self.name, k, value) for k, value in given.items()
        }
        if self.library:
            check_installed(self.library)
        return self.make(**read)


def parse_name(text: str) -> tuple[str, dict[str, str]]:
    """Split a placer's name from the options written behind it: ``exact?workers=2&order=...``.

    Raises:
        InputError: an option without a value.
    """
    name, _, query = text.partition("?")
    options = {}
    for part in query.split("&") if query else []:
        key, equals, value = part.partition("=")
        if not (key and equals):
            raise InputError(f"placer {text!r}: write options as {name}?option=value")
        options[key] = value
    return name, options
