"""Placers outside this package: ``module:Class``, ``path/to/file.py:Class``, and entry points.

A class can be named wherever a placer can, with options after it (``mine.tabu:Tabu?tenure=7``),
which become arguments of its constructor. An installed package can also register placers as entry
points of the group ``gnnplace.placers``; they are then known by the entry point's name. Worker
processes import a class from the same folder as the first process. A class that cannot be used is
reported in one line.
"""

from __future__ import annotations

import inspect
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

import yaml

from gnnplace.errors import InputError
from gnnplace.imports import find_callable, said
from gnnplace.placers.rows import Option, PlacerRow, Speed

if TYPE_CHECKING:
    from gnnplace.placers.base import Placer

GROUP = "gnnplace.placers"


class Foreign(PlacerRow):
    """A row of somebody else's class: its options are what its constructor takes."""

    def made(self, given: dict[str, Any]) -> Placer:  # type: ignore[override]
        """Return the placer, with options that are read as YAML: numbers, truth values, text.

        Raises:
            InputError: the constructor has no such option, or fails.
        """
        read = {
            k: yaml.safe_load(v) if isinstance(v, str) else v for k, v in given.items()
        }
        try:
            inspect.signature(self.maker()).bind(**read)
            return self.make(**read)
        except Exception as error:
            raise InputError(
                f"placer {self.name!r}: it cannot be made: {said(error)}"
            ) from None


def load_named_class(spec: str) -> PlacerRow:
    """Return the row of ``module:Class``.

    Raises:
        InputError: there is no such class, or it is no placer.
    """
    module, _, name = spec.rpartition(":")
    return _row(spec, find_callable(module, name, f"placer {spec!r}"))


@cache
def find_installed_placers(
    taken: frozenset[str] = frozenset(),
) -> dict[str, EntryPoint]:
    """Return the entry points of installed packages, by name.

    Args:
        taken: names of the built-in placers.

    Raises:
        InputError: one of them has such a name, or two have one.
    """
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        of = f"entry point {point.name!r} of {point.dist.name if point.dist else point.value}"
        if point.name in taken or point.name in points:
            raise InputError(
                f"{of}: a placer has that name already; rename it, or uninstall it"
            )
        points[point.name] = point
    return points


def load_installed_class(point: EntryPoint) -> PlacerRow:
    """Return the row of an entry point.

    Raises:
        InputError: it cannot be imported, or is no placer.
    """
    try:
        return _row(point.name, point.load())
    except InputError:
        raise
    except Exception as error:
        message = (
            f"placer {point.name!r}: {point.value} cannot be imported: {said(error)}"
        )
        raise InputError(message) from None


def _row(spec: str, found: object) -> PlacerRow:
    from gnnplace.placers.base import Placer

    if not (inspect.isclass(found) and issubclass(found, Placer)):
        raise InputError(
            f"placer {spec!r}: it is no subclass of gnnplace.placers.Placer; write "
            f"class {getattr(found, '__name__', 'Mine')}(Placer) with a name and a search method"
        )
    if not isinstance(getattr(found, "name", None), str):
        raise InputError(
            f'placer {spec!r}: the class has no name; add a line such as name = "mine"'
        )
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise InputError(
            f"placer {spec!r}: the class has no method {', '.join(missing)}"
        )
    names = [n for n in inspect.signature(found).parameters if n != "self"]
    options = {
        name: Option(str, None, "An argument of its constructor.") for name in names
    }
    return Foreign(spec, found, Speed.SEARCH, options=options)
