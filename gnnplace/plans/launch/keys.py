"""`Keys`: values of a nested file by their path, each of its type or an error that names it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gnnplace.errors import FormatError


def shown(value: Any) -> str:
    """A value of a file in a message: few letters, and never what a list or mapping holds."""
    plain = value is None or isinstance(value, (str, int, float))
    return repr(str(value)[:40]) if plain else f"a {type(value).__name__}"


@dataclass(frozen=True)
class Keys:
    """What a file of nested keys says.

    Attributes:
        data: its keys and values.
        source: what errors begin with.
    """

    data: Any
    source: str

    def __post_init__(self) -> None:
        if not isinstance(self.data, dict) or not all(isinstance(key, str) for key in self.data):
            raise FormatError(f"{self.source}: must be keys and values")

    def get(self, path: str) -> Any:
        """The value at a path such as `a.b`; None where there is none.

        Raises:
            FormatError: what is on the way is no mapping.
        """
        value, way = self.data, path.split(".")
        for k, key in enumerate(way):
            if value is None:
                return None
            if not isinstance(value, dict):
                raise FormatError(f"{self.source}: {'.'.join(way[:k])}: must be keys and values")
            value = value.get(key)
        return value

    def count(self, path: str, default: int | None = None, least: int = 1) -> int | None:
        """A whole number.

        Raises:
            FormatError: it is none, or too small.
        """
        value = self.get(path)
        if value is None:
            return default
        if type(value) is not int or not least <= value <= 10**12:
            raise self.fault(path, f"must be a whole number from {least} on")
        return value

    def needed(self, path: str, least: int = 1) -> int:
        """A whole number that must be there.

        Raises:
            FormatError: it is not.
        """
        value = self.count(path, None, least)
        if value is None:
            raise FormatError(f"{self.source}: {path}: is missing")
        return value

    def switch(self, path: str, default: bool = False) -> bool:
        """Whether a switch is on.

        Raises:
            FormatError: it is no switch.
        """
        value = self.get(path)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fault(path, "must be true or false")
        return value

    def word(self, path: str, known: Sequence[str], default: str) -> str:
        """One of some words, in their letters.

        Raises:
            FormatError: it is another.
        """
        value = self.get(path)
        if value is None:
            return default
        told = str(value).lower() if isinstance(value, (str, int, float)) else ""
        found = next((word for word in known if word.lower() == told), None)
        if found is None:
            raise self.fault(path, f"must be one of {', '.join(known)}")
        return found

    def unknown(self, path: str, known: Sequence[str]) -> list[str]:
        """Keys at a path, empty for the top, that are not among the known ones."""
        part = self.get(path) if path else self.data
        return [str(k)[:40] for k in part if k not in known] if isinstance(part, dict) else []

    def fault(self, path: str, told: str) -> FormatError:
        """What is wrong with a value."""
        return FormatError(f"{self.source}: {path}: {shown(self.get(path))}: {told}")
