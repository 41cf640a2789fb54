"""Patterns of a shell: globs of `case` and `[[`, and the operators of `${X#...}`."""

from __future__ import annotations

import fnmatch
import re
from functools import lru_cache

GLOB = "glob:"
LONGEST = 4096


def matches(word: str, pattern: str) -> bool:
    """Return whether a word matches a pattern.

    Args:
        word: The word.
        pattern: A regular expression, or a glob behind "glob:".
    """
    if pattern.startswith(GLOB):
        return (
            len(word) < LONGEST
            and glob_expression(pattern[len(GLOB) :]).fullmatch(word) is not None
        )
    return word == re.sub(r"\\(.)", r"\1", pattern)


@lru_cache(maxsize=512)
def glob_expression(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a glob."""
    return re.compile(fnmatch.translate(pattern[:LONGEST]))


def expand_operator(text: str, operator: str, operand: str) -> str | None:
    """Return a value that `${X<operator><operand>}` changes, or None if it is not followed."""
    if len(text) > LONGEST:
        return None
    if operator in ("#", "##", "%", "%%"):
        return _without_end(text, operator, operand)
    if operator in ("/", "//", "/#", "/%"):
        pattern, _, replacement = operand.partition("/")
        expression = re.compile(
            fnmatch.translate(pattern).removesuffix(r"\Z").removesuffix(r"\z")
        )
        return expression.sub(
            lambda _: replacement, text, count=1 if operator == "/" else 0
        )
    if operator in ("^^", ",,"):
        if operator == "^^":
            return text.upper()
        return text.lower()
    if operator in ("^", ","):
        if operator == "^":
            first = text[:1].upper()
        else:
            first = text[:1].lower()
        return first + text[1:]
    if operator == ":":
        numbers = re.fullmatch(r"\s*(-?\d+)\s*(?::\s*(-?\d+))?\s*", operand)
        if numbers is None:
            return None
        start = int(numbers[1])
        if numbers[2] is None:
            end = None
        else:
            end = int(numbers[2])
        tail = text[start:]
        if end is None:
            return tail
        return tail[:end]
    return None


def _without_end(text: str, operator: str, pattern: str) -> str:
    """Return a text without the shortest or longest part at one end that matches a glob."""
    expression = glob_expression(pattern)
    lengths = range(len(text) + 1)
    for length in lengths if len(operator) == 1 else reversed(lengths):
        if operator[0] == "#":
            part = text[:length]
        else:
            part = text[len(text) - length :]
        if expression.fullmatch(part) is not None:
            if operator[0] == "#":
                return text[length:]
            return text[: len(text) - length]
    return text
