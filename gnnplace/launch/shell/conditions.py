"""Tests of a shell, `[ ... ]`, `[[ ... ]]` and `test`, on values that may be unknown."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gnnplace.launch.shell.patterns import GLOB, matches
from gnnplace.launch.shell.values import Text, find_names, plain

IsUnset = Callable[[Text], bool]
UNARY = ("-z", "-n")
FILE_TESTS = (
    "-a",
    "-b",
    "-c",
    "-d",
    "-e",
    "-f",
    "-g",
    "-h",
    "-k",
    "-L",
    "-p",
    "-r",
    "-s",
    "-S",
    "-t",
    "-u",
    "-w",
    "-x",
    "-v",
    "-o",
)
NUMBERS = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
TEXTS = ("=", "==", "!=", "=~", "<", ">")
LONGEST = 2000


@dataclass(frozen=True)
class Condition:
    """The outcome of a test, which may be unknown.

    Attributes:
        holds: True or False; None where it is not known.
        names: What would have to be known.
    """

    holds: bool | None
    names: tuple[str, ...] = ()

    def negate(self) -> Condition:
        """Return the opposite."""
        return Condition(None if self.holds is None else not self.holds, self.names)

    def joined(self, other: Condition, *, is_and: bool) -> Condition:
        """Return whether both, or one of both, hold."""
        decisive = not is_and
        if self.holds is decisive or other.holds is decisive:
            return Condition(decisive)
        if self.holds is None or other.holds is None:
            return Condition(None, tuple(dict.fromkeys((*self.names, *other.names))))
        return Condition(is_and)


def evaluate_test_words(words: Sequence[Text], is_unset: IsUnset) -> Condition:
    """Return whether `test WORDS` holds."""
    operators = (*UNARY, *FILE_TESTS, *NUMBERS, *TEXTS, "!", "(", ")")
    tokens: list[str | Text] = []
    for word in words:
        letters = plain(word)
        is_operator = letters in operators and not all(
            part.quoted and part.line == 0 for part in word
        )
        tokens.append(letters if is_operator and letters is not None else word)
    return evaluate_test_tokens(tokens, is_unset)


def evaluate_test_tokens(tokens: Sequence[str | Text], is_unset: IsUnset) -> Condition:
    """Return whether a test holds.

    Args:
        tokens: Operators (text) and operands (values), in order.
        is_unset: Tells whether a value is a variable that nothing sets.
    """
    reader = _ConditionReader(list(tokens), is_unset)
    status = reader.either()
    if reader.position < len(reader.tokens):
        return Condition(None, ("a test that cannot be followed",))
    return status


class _ConditionReader:
    """A reader of tests by precedence: `!`, then `-a` and `&&`, then `-o` and `||`."""

    def __init__(self, tokens: list[str | Text], is_unset: IsUnset) -> None:
        self.tokens = tokens
        self.is_unset = is_unset
        self.position = 0

    def either(self) -> Condition:
        """Return whether one of several conditions holds."""
        status = self.both()
        while self._peek() in ("-o", "||"):
            self.position += 1
            status = status.joined(self.both(), is_and=False)
        return status

    def both(self) -> Condition:
        """Return whether all of several conditions hold."""
        status = self.single()
        while self._peek() in ("-a", "&&"):
            self.position += 1
            status = status.joined(self.single(), is_and=True)
        return status

    def single(self) -> Condition:
        """Return whether one condition holds."""
        token = self._take()
        if token == "!":
            return self.single().negate()
        if token == "(":
            status = self.either()
            if self._peek() == ")":
                self.position += 1
            return status
        if isinstance(token, str) and token in UNARY and self._peek() not in TEXTS:
            return self._is_empty(self._take(), wants_empty=token == "-z")
        if isinstance(token, str) and token in FILE_TESTS:
            operand = self._take()
            if isinstance(operand, tuple):
                shown = "".join(part.text for part in operand)
            else:
                shown = ""
            return Condition(None, (f"whether {shown or 'a file'} is there ({token})",))
        operator = self._peek()
        if isinstance(operator, str) and (operator in TEXTS or operator in NUMBERS):
            self.position += 1
            return self._compare(token, operator, self._take())
        return self._is_empty(token, wants_empty=False)

    def _peek(self) -> str | Text | None:
        if self.position < len(self.tokens):
            return self.tokens[self.position]
        return None

    def _take(self) -> str | Text:
        token = self._peek()
        self.position += 1
        if token is None:
            return ()
        return token

    def _is_empty(self, token: str | Text, *, wants_empty: bool) -> Condition:
        if isinstance(token, str):
            return Condition((not token) is wants_empty)
        letters = plain(token)
        if letters is not None:
            return Condition((not letters) is wants_empty)
        if self.is_unset(token):
            return Condition(wants_empty)
        if any(part.text for part in token):
            return Condition(not wants_empty)
        return Condition(None, find_names(token))

    def _compare(self, left: str | Text, operator: str, right: str | Text) -> Condition:
        texts = [
            token if isinstance(token, str) else plain(token) for token in (left, right)
        ]
        first, second = texts
        if first is None or second is None:
            names = [
                n for t in (left, right) if isinstance(t, tuple) for n in find_names(t)
            ]
            return Condition(None, tuple(dict.fromkeys(names)))
        if operator in NUMBERS:
            if not all(re.fullmatch(r"\s*-?\d+\s*", text) for text in (first, second)):
                return Condition(False)
            return Condition(NUMBERS[operator](int(first), int(second)))
        if operator == "=~":
            return _matches_expression(first, second)
        if operator in ("<", ">"):
            return Condition(first < second if operator == "<" else first > second)
        is_pattern = isinstance(right, tuple) and not all(part.quoted for part in right)
        has_glob = any(sign in second for sign in "*?[")
        if has_glob or is_pattern:
            equal = matches(first, GLOB + second)
        else:
            equal = first == second
        return Condition(equal is (operator != "!="))


def _matches_expression(text: str, expression: str) -> Condition:
    if len(text) > LONGEST or len(expression) > 200:
        return Condition(None, ("a test that cannot be followed",))
    try:
        return Condition(re.search(expression, text) is not None)
    except re.error:
        return Condition(None, ("a test that cannot be followed",))
