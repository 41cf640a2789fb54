"""Values of OmegaConf inside of YAML: `${a.b}`, `${.c}`, `${multiply:4, ${.c}}`, `${oc.env:X}`.

NeMo and llm-foundry write their files so. What only the environment has (`${oc.env:X}` without a
default, `???`) becomes a `MissingValue` with its name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import yaml

from gnnplace.launch.keys import FileValue

INNERMOST = re.compile(r"\$\{([^${}]*)\}")
ROUNDS = 50  # rounds of replacement in one value
DEEPEST = 20
OPERATIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "multiply": math.prod,
    "sum": sum,
    "add": sum,
    "subtract": lambda numbers: numbers[0] - sum(numbers[1:]),
    "divide": lambda numbers: numbers[0] / numbers[1],
    "int_div": lambda numbers: numbers[0] // numbers[1],
    "divide_floor": lambda numbers: numbers[0] // numbers[1],
    "divide_ceil": lambda numbers: -(-numbers[0] // numbers[1]),
}


@dataclass(frozen=True)
class MissingValue:
    """A value that the file does not have.

    Attributes:
        name: What would have to be known.
    """

    name: str


def resolve(data: FileValue, values: Mapping[str, str]) -> FileValue:
    """Return plain data with every interpolation put in.

    Args:
        data: Keys and values of a file.
        values: Values of the environment, by name.
    """
    return _Resolver(data, values).resolve(data, ())


@dataclass(frozen=True)
class _Resolver:
    """A replacer of interpolations by their values.

    Attributes:
        root: The whole of the file.
        values: Values of the environment, by name.
    """

    root: FileValue
    values: Mapping[str, str]

    def resolve(self, part: FileValue, way: tuple[str, ...]) -> FileValue:
        """Return a part of the file, which stands at a path, with its interpolations put in."""
        if len(way) > DEEPEST:
            return part
        if isinstance(part, dict):
            return {
                key: self.resolve(value, (*way, str(key)))
                for key, value in part.items()
            }
        if isinstance(part, list):
            return [self.resolve(value, (*way, "")) for value in part]
        if isinstance(part, str):
            return self._text(part, way)
        return part

    def _text(self, text: str, way: tuple[str, ...]) -> FileValue:
        """Return the value of a text, read as YAML where it held an interpolation."""
        if text == "???":
            return MissingValue(".".join(way))
        if "${" not in text:
            return text
        for _ in range(ROUNDS):
            match = INNERMOST.search(text)
            if match is None:
                break
            value = self._look_up_value(match[1].strip(), way)
            if isinstance(value, MissingValue) or (
                isinstance(value, (dict, list)) and match[0] == text
            ):
                return value
            if isinstance(value, (dict, list)):
                return text
            if value is None:
                shown = "null"
            else:
                shown = str(value)
            text = text[: match.start()] + shown + text[match.end() :]
        try:
            return yaml.load(text, Loader=yaml.CSafeLoader)
        except (yaml.YAMLError, ValueError):
            return text

    def _look_up_value(self, expression: str, way: tuple[str, ...]) -> FileValue:
        """Return the value of one `${...}`."""
        name, colon, argument = expression.partition(":")
        if colon and name in OPERATIONS:
            return _compute(name, argument)
        if colon and name in ("oc.env", "env"):
            variable, comma, default = argument.partition(",")
            variable = variable.strip()
            if variable in self.values:
                return self.values[variable]
            if comma:
                return default.strip()
            return MissingValue(variable)
        if colon:
            return MissingValue(expression[:40])
        return self._at(expression, way)

    def _at(self, path: str, way: tuple[str, ...]) -> FileValue:
        """Return the value at a path, which begins with dots where it is relative."""
        dots = len(path) - len(path.lstrip("."))
        start = way[: len(way) - dots] if dots else ()
        place = (*start, *(name for name in path[dots:].split(".") if name))
        part = self.root
        for name in place:
            if not isinstance(part, dict) or name not in part:
                return self.values.get(path, MissingValue(path))
            part = part[name]
        if not isinstance(part, str) or "${" not in part:
            return part
        # A chain of interpolations ends after a few, or stands for itself.
        if f"${{{path}}}" in part or len(place) + len(way) > DEEPEST:
            return MissingValue(path)
        return self._text(part, (*way, *place))


def _compute(name: str, argument: str) -> FileValue:
    """Return the number that an operation gives, or `MissingValue` if it cannot be computed."""
    try:
        number = OPERATIONS[name]([float(word) for word in argument.split(",")])
    except (ValueError, ZeroDivisionError, IndexError, OverflowError):
        return MissingValue(f"{name}:{argument}"[:40])
    if float(number).is_integer():
        return int(number)
    return number
