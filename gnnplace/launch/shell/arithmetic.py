"""`$(( ))`: whole numbers as a shell computes them."""

from __future__ import annotations

import re
from collections.abc import Callable

TOKEN = re.compile(
    r"\s*(\d+#\w+|0[xX][0-9a-fA-F]+|\d+|[A-Za-z_]\w*|\*\*|<<|>>|<=|>=|==|!=|&&|\|\||"
    r"[-+*/%()<>!?:,&|^~])"
)
BINARY = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
    ("**",),
)
LARGEST = 1 << 63
DEEPEST = 60


def compute(text: str, value_of: Callable[[str], int]) -> int:
    """Return the value of an expression.

    Args:
        text: The expression, its `$` already put in.
        value_of: Gives the value of a variable by its name.

    Raises:
        ValueError: If it is no expression of whole numbers.
    """
    tokens: list[str] = []
    position = 0
    text = text.strip()
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"no arithmetic: {text[:60]!r}")
        tokens.append(match[1])
        position = match.end()
    parser = _Parser(tokens, value_of)
    value = parser.ternary(0)
    if parser.position != len(tokens):
        raise ValueError(f"no arithmetic: {text[:60]!r}")
    return value


class _Parser:
    """A parser of arithmetic expressions by precedence of operators."""

    def __init__(self, tokens: list[str], value_of: Callable[[str], int]) -> None:
        self.tokens = tokens
        self.value_of = value_of
        self.position = 0

    def ternary(self, depth: int) -> int:
        """Return the value of `condition ? a : b`, or of what has no `?`."""
        if depth > DEEPEST:
            raise ValueError("nested too deeply")
        value = self.binary(0, depth)
        if self._accept("?"):
            first = self.ternary(depth + 1)
            if not self._accept(":"):
                raise ValueError("? without :")
            second = self.ternary(depth + 1)
            value = first if value else second
        return value

    def binary(self, level: int, depth: int) -> int:
        """Return the value of operators of a precedence, and of those that bind closer."""
        if level == len(BINARY):
            return self.unary(depth)
        value = self.binary(level + 1, depth)
        while self._peek() in BINARY[level]:
            operator = self.tokens[self.position]
            self.position += 1
            value = _apply(operator, value, self.binary(level + 1, depth))
        return value

    def unary(self, depth: int) -> int:
        """Return the value of a number, a name, a sign or a parenthesis."""
        if depth > DEEPEST:
            raise ValueError("nested too deeply")
        for sign, apply in (
            ("-", lambda x: -x),
            ("+", lambda x: x),
            ("!", lambda x: int(not x)),
            ("~", lambda x: ~x),
        ):
            if self._accept(sign):
                return apply(self.unary(depth + 1))
        if self._accept("("):
            value = self.ternary(depth + 1)
            if not self._accept(")"):
                raise ValueError("( without )")
            return value
        token = self._peek()
        if token is None:
            raise ValueError("ends too early")
        self.position += 1
        if token[0].isdigit():
            return _number(token)
        if token[0].isalpha() or token[0] == "_":
            return self.value_of(token)
        raise ValueError(f"{token!r}: no number")

    def _peek(self) -> str | None:
        if self.position < len(self.tokens):
            return self.tokens[self.position]
        return None

    def _accept(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self.position += 1
        return True


def _number(token: str) -> int:
    if "#" in token:
        base, _, digits = token.partition("#")
        return int(digits, int(base))
    if token[:2] in ("0x", "0X"):
        return int(token, 16)
    if token[0] == "0" and len(token) > 1:
        return int(token, 8)
    return int(token)


def _apply(operator: str, left: int, right: int) -> int:
    """Return the value of an operator.

    Raises:
        ValueError: If it divides by 0, or is larger than a shell's numbers.
    """
    if operator in ("/", "%"):
        if right == 0:
            raise ValueError("divides by 0")
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        if operator == "/":
            return quotient
        return left - quotient * right
    if operator in ("**", "<<") and not 0 <= right <= 63:
        raise ValueError("too large")
    value: int = {
        "||": lambda: int(bool(left or right)),
        "&&": lambda: int(bool(left and right)),
        "|": lambda: left | right,
        "^": lambda: left ^ right,
        "&": lambda: left & right,
        "==": lambda: int(left == right),
        "!=": lambda: int(left != right),
        "<": lambda: int(left < right),
        ">": lambda: int(left > right),
        "<=": lambda: int(left <= right),
        ">=": lambda: int(left >= right),
        "<<": lambda: left << right,
        ">>": lambda: left >> max(right, 0),
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "**": lambda: left**right,
    }[operator]()
    if abs(value) >= LARGEST:
        raise ValueError("too large")
    return value
