"""Values of OmegaConf inside of YAML: `${a.b}`, `${.c}`, `${multiply:4, ${.c}}`, `${oc.env:X}`.
from gnnplace.plans.launch.keys import FileValue


NeMo and llm-foundry write their files so. What only the environment has (`${oc.env:X}` without a
default, `???`) becomes a `Missing` with its name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import yaml

from gnnplace.plans.launch.keys import FileValue

INNERMOST = re.compile(r"\$\{([^${}]*)\}")
ROUNDS = 50  # of one value
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
class Missing:
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
    return _resolve(data, data, (), values, 0)


def _resolve(
    part: FileValue, root: FileValue, way: tuple[str, ...], values: Mapping[str, str], depth: int
) -> FileValue:
    if depth > DEEPEST:
        return part
    if isinstance(part, dict):
        return {
            key: _resolve(value, root, (*way, str(key)), values, depth + 1)
            for key, value in part.items()
        }
    if isinstance(part, list):
        return [_resolve(value, root, way, values, depth + 1) for value in part]
    if not isinstance(part, str):
        return part
    return _resolve_text(part, root, way, values)


def _resolve_text(
    text: str, root: FileValue, way: tuple[str, ...], values: Mapping[str, str]
) -> FileValue:
    """Return the value of a text, read as YAML where it held an interpolation."""
    if text == "???":
        return Missing(".".join(way))
    if "${" not in text:
        return text
    for _ in range(ROUNDS):
        match = INNERMOST.search(text)
        if match is None:
            break
        value = _looked_up(match[1].strip(), root, way, values)
        if isinstance(value, (Missing, dict, list)):
            whole = match[0] == text
            if whole:
                return value
            return value if isinstance(value, Missing) else text
        shown = "null" if value is None else str(value)
        text = text[: match.start()] + shown + text[match.end() :]
    try:
        return yaml.load(text, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError):
        return text


def _looked_up(
    expression: str, root: FileValue, way: tuple[str, ...], values: Mapping[str, str]
) -> FileValue:
    """Return the value of one `${...}`."""
    name, colon, rest = expression.partition(":")
    if colon and name in OPERATIONS:
        try:
            numbers = [float(word) for word in rest.split(",")]
            number = OPERATIONS[name](numbers)
        except (ValueError, ZeroDivisionError, IndexError, OverflowError):
            return Missing(expression[:40])
        return int(number) if float(number).is_integer() else number
    if colon and name in ("oc.env", "env"):
        variable, comma, default = rest.partition(",")
        variable = variable.strip()
        if variable in values:
            return values[variable]
        return default.strip() if comma else Missing(variable)
    if colon:
        return Missing(expression[:40])
    return _value_at(expression, root, way, values)


def _value_at(
    path: str, root: FileValue, way: tuple[str, ...], values: Mapping[str, str]
) -> FileValue:
    """Return the value at a path, which begins with dots where it is relative."""
    dots = len(path) - len(path.lstrip("."))
    start = way[: len(way) - dots] if dots else ()
    names = [name for name in path[dots:].split(".") if name]
    part = root
    for name in (*start, *names):
        if not isinstance(part, dict) or name not in part:
            return values.get(path, Missing(path))
        part = part[name]
    if isinstance(part, str) and "${" in part and part != f"${{{path}}}":
        inner = INNERMOST.search(part)
        if inner is not None and inner[1].strip() != path:
            return _resolve_once(part, root, (*start, *names), values)
    return part


def _resolve_once(
    text: str, root: FileValue, way: tuple[str, ...], values: Mapping[str, str]
) -> FileValue:
    """Return a value that is an interpolation itself; a chain of more than a few is left."""
    if len(way) > DEEPEST or text.count("${") > DEEPEST:
        return Missing(text[:40])
    try:
        return _resolve_text(text, root, way, values)
    except RecursionError:
        return Missing(text[:40])
