"""`Keys`: values of a nested file by their path, each of its type or an error that names it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from gnnplace.errors import FormatError

FileValue = Any
"""A value of a file: what it is is only known once it was looked at."""
DEEPEST = 40
TOML_TABLE = re.compile(r"\s*\[\[?\s*([\w.\-\"' ]+?)\s*\]\]?\s*(#.*)?$")
TOML_KEY = re.compile(r"\s*([\w.\-\"']+)\s*=")


def yaml_lines(text: str) -> dict[str, int]:
    """Return the line of every key of a YAML or JSON text, by its path such as `a.b`."""
    try:
        # A tab is a blank in JSON, and an error in YAML.
        root = yaml.compose(text.replace("\t", " "), Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError):
        return {}
    lines: dict[str, int] = {}
    _collect_lines(root, "", lines, 0)
    return lines


def _collect_lines(
    node: FileValue, path: str, lines: dict[str, int], depth: int
) -> None:
    if not isinstance(node, yaml.MappingNode) or depth > DEEPEST:
        return
    for key, value in node.value:
        name = f"{path}{key.value}"
        lines[name] = key.start_mark.line + 1
        _collect_lines(value, f"{name}.", lines, depth + 1)


def toml_lines(text: str) -> dict[str, int]:
    """Return the line of every key of a TOML text, by its path such as `a.b`."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        heading = TOML_TABLE.match(line)
        key = TOML_KEY.match(line)
        if heading is not None:
            table = re.sub(r"[\"' ]", "", heading[1]) + "."
            lines[table[:-1]] = number
        elif key is not None:
            lines[table + re.sub(r"[\"']", "", key[1])] = number
    return lines


def put_values(
    data: FileValue, values: Mapping[str, str], source: str, known: Sequence[str] = ()
) -> FileValue:
    """Return a file's data with values that were given for its keys.

    Args:
        data: Keys and values of the file.
        values: Text by a key's path; read as YAML reads a value.
        source: The name that errors begin with.
        known: Keys at the top that a file may leave out.

    Raises:
        FormatError: If a path is no key of the file.
    """
    if not isinstance(data, dict):
        return data
    changed = dict(data)
    for path, text in values.items():
        way = path.split(".")
        part: FileValue = changed
        for name in way[:-1]:
            if isinstance(part.get(name), dict):
                copy = dict(part[name])
            else:
                copy = None
            if copy is None:
                raise FormatError(f"{source}: --set {path}: the file has no such key")
            part[name] = copy
            part = copy
        if way[-1] not in part and not (len(way) == 1 and path in known):
            raise FormatError(f"{source}: --set {path}: the file has no such key")
        try:
            part[way[-1]] = yaml.load(text, Loader=yaml.CSafeLoader)
        except (yaml.YAMLError, ValueError, RecursionError):
            raise FormatError(
                f"{source}: --set {path}: {text[:40]!r}: is no value"
            ) from None
    return changed


def format_value(value: object) -> str:
    """Return a value of a file for a message: at most 40 letters, or the type of a container."""
    plain = value is None or isinstance(value, (str, int, float))
    if plain:
        return repr(str(value)[:40])
    return f"a {type(value).__name__}"


@dataclass(frozen=True)
class Keys:
    """The nested keys and values of a file.

    Attributes:
        data: The file's keys and values.
        source: The name that errors begin with.
        lines: Line of every key, by its path.
    """

    data: Any
    source: str
    lines: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.data, dict) or not all(
            isinstance(key, str) for key in self.data
        ):
            raise FormatError(f"{self.source}: must be keys and values")

    def get(self, path: str) -> Any:
        """Return the value at a path such as `a.b`, or None if there is none.

        Raises:
            FormatError: If what is on the way is no mapping.
        """
        value = self.data
        way = path.split(".")
        for k, key in enumerate(way):
            if value is None:
                return None
            if not isinstance(value, dict):
                raise FormatError(
                    f"{self.source}: {'.'.join(way[:k])}: must be keys and values"
                )
            value = value.get(key)
        return value

    def count(
        self, path: str, default: int | None = None, least: int = 1
    ) -> int | None:
        """Return the whole number at a path, or `default` if there is none.

        Raises:
            FormatError: If it is no whole number, or too small.
        """
        value = self.get(path)
        if value is None:
            return default
        if type(value) is not int or not least <= value <= 10**12:
            raise self.fault(path, f"must be a whole number from {least} on")
        return value

    def needed(self, path: str, least: int = 1) -> int:
        """Return the whole number at a path that must be there.

        Raises:
            FormatError: If it is missing.
        """
        value = self.count(path, None, least)
        if value is None:
            raise FormatError(f"{self.source}: {path}: is missing")
        return value

    def switch(self, path: str, default: bool = False) -> bool:
        """Return whether the switch at a path is on, or `default` if there is none.

        Raises:
            FormatError: If it is no switch.
        """
        value = self.get(path)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fault(path, "must be true or false")
        return value

    def word(self, path: str, known: Sequence[str], default: str) -> str:
        """Return which of some words the value at a path is, whatever its case.

        Args:
            path: The key's path, such as `a.b`.
            known: The words that are allowed.
            default: Returned if there is no value.

        Raises:
            FormatError: If it is another word.
        """
        value = self.get(path)
        if value is None:
            return default
        if isinstance(value, (str, int, float)):
            text = str(value).lower()
        else:
            text = ""
        match = next((word for word in known if word.lower() == text), None)
        if match is None:
            raise self.fault(path, f"must be one of {', '.join(known)}")
        return match

    def unknown(self, path: str, known: Sequence[str]) -> list[str]:
        """Return the keys at a path that are not among the known ones. The top's path is ""."""
        part = self.get(path) if path else self.data
        if isinstance(part, dict):
            return [str(k)[:40] for k in part if k not in known]
        return []

    def has(self, path: str) -> bool:
        """Return whether a key is there and not null."""
        part = self.data
        for key in path.split("."):
            if not isinstance(part, dict):
                return False
            part = part.get(key)
        return part is not None

    def line(self, path: str) -> int | None:
        """Return the line of a key."""
        return self.lines.get(path)

    def word_lines(self, keys: Mapping[str, Sequence[str]]) -> dict[str, int | None]:
        """Return the line of every word that a key says.

        Args:
            keys: Paths that say a word, by the word.
        """
        lines: dict[str, int | None] = {}
        for word, paths in keys.items():
            path = next((path for path in paths if self.has(path)), None)
            if path is not None:
                lines[word] = self.line(path)
        return lines

    def walk(self, path: str = "") -> Iterator[tuple[str, FileValue]]:
        """Yield the path and the value of every key that holds no mapping."""
        part = self.get(path) if path else self.data
        yield from _walk(part, f"{path}." if path else "", 0)

    def fault(self, path: str, told: str) -> FormatError:
        """Return the error that says what is wrong with the value at a path."""
        return FormatError(
            f"{self.source}: {path}: {format_value(self.get(path))}: {told}"
        )


def _walk(part: FileValue, path: str, depth: int) -> Iterator[tuple[str, FileValue]]:
    if not isinstance(part, dict) or depth > DEEPEST:
        return
    for key, value in part.items():
        if isinstance(value, dict):
            yield from _walk(value, f"{path}{key}.", depth + 1)
        else:
            yield f"{path}{key}", value
