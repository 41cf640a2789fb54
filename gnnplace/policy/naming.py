"""Features by name: a feature's name, its place and its value stand together, once.

A function marked with ``named_columns("row")`` writes ``row["idle gap"] = value``. The marker reads
the function's source and puts a number in place of every name, in the order in which names first
appear, before anything is compiled; numba sees ``row[3] = value``. ``list_feature_names`` lists the
names. A feature added in the middle is one new line: all numbers behind it, the number of features
and the digest that goes into the version of the features follow.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import textwrap
from collections.abc import Callable
from hashlib import sha256
from types import CodeType, FunctionType
from typing import Any, TypeVar

MEANING = 4  # one more where a formula of a feature changes and its name does not
NamedRow = Any  # an array of numbers whose columns have names
Function = TypeVar("Function", bound=Callable[..., Any])


class _Numbers(ast.NodeTransformer):
    """A transformer that replaces names by numbers where ``array`` is subscripted."""

    def __init__(self, array: str) -> None:
        self.array = array
        self.names: list[str] = []

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Replace one subscript; others than constant strings stay."""
        self.generic_visit(node)
        named = isinstance(node.value, ast.Name) and node.value.id == self.array
        if (
            named
            and isinstance(node.slice, ast.Constant)
            and isinstance(node.slice.value, str)
        ):
            name = node.slice.value
            if name not in self.names:
                self.names.append(name)
            node.slice = ast.copy_location(
                ast.Constant(self.names.index(name)), node.slice
            )
        return node


def name_columns(array: str) -> Callable[[Function], Function]:
    """Mark a function at the top of a module that writes features to ``array`` by name."""

    def mark(function: Function) -> Function:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        numbers = _Numbers(array)
        numbers.visit(tree)
        tree.body[0].decorator_list = []  # type: ignore[attr-defined]
        ast.increment_lineno(tree, first - 1)
        flags = __future__.annotations.compiler_flag
        module = compile(tree, function.__code__.co_filename, "exec", flags, True)
        code = next(
            constant for constant in module.co_consts if isinstance(constant, CodeType)
        )
        marked: Any = FunctionType(code, function.__globals__, function.__name__)
        marked.__doc__ = function.__doc__
        marked.__annotations__ = function.__annotations__
        marked.__module__ = function.__module__
        marked.__defaults__ = function.__defaults__
        marked.feature_names = tuple(numbers.names)
        return marked  # type: ignore[no-any-return]

    return mark


def list_feature_names(function: Any) -> tuple[str, ...]:
    """Return the names of the features that a function writes, compiled or not, in their order."""
    names: tuple[str, ...] = getattr(function, "py_func", function).feature_names
    return names


def compute_version(*names: tuple[str, ...]) -> str:
    """Return the version of features: what changes with any name, any place, and ``MEANING``."""
    digest = sha256(
        "\n\n".join("\n".join(columns) for columns in names).encode()
    ).hexdigest()
    return f"{MEANING}-{digest[:8]}"
