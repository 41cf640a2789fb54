"""Branches on the numbers of a tensor that only raise: assertions.

A step is recorded on tensors without numbers. `if labels.max() >= size: raise ...` reads a number,
but whatever it is, the step is the same unless it ends in an error. So such a branch is recorded as
not taken. `answer` recognises it from the code that reads the number:

* The statement is an `assert`, or an `if` in which all branches after the condition end in `raise`
  (with an `else`: one of the two).
* Up to the step, no `try` that would continue after the error and no `suppress` is around it.
* The bytecode shows which way of the condition's jump does not raise. Parts of a condition (`a and
  b`, `0 < x < 5`) are answered such that the whole condition does not raise.
* If a call reads the number inside a condition, such as `any`, `bool` or `math.isnan`, the syntax
  shows which answer does not raise. `item()` inside a condition stays a tensor, which comparisons
  accept; a variable for such a number may only be used in conditions.

In all other code, reading a number is refused. So is it in code whose source cannot be read.
"""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType

import torch

from gnnplace.tracing.step import StepModule

_TORCH = str(Path(torch.__file__).parent)
_PACKAGE = str(Path(__file__).parents[2])
_DISPATCHERS = tuple(
    str(Path(_TORCH, part))
    for part in ("overrides.py", "_tensor.py", "_export", "_functorch", "fx", "utils")
)
"""Code of torch that stands between a line that asks and the mode that answers."""
_RETURNS = ("RETURN_VALUE", "RETURN_CONST", "YIELD_VALUE")
_RAISES = ("RAISE_VARARGS", "RERAISE")
_PASSED_ON = ("any", "all", "bool")
"""Functions whose answer is that of what they are given, or of one of these."""
_OF_A_NUMBER: dict[object, tuple[float, float]] = {
    math.isnan: (0.0, math.nan),
    math.isinf: (0.0, math.inf),
    math.isfinite: (math.nan, 0.0),
}
"""Numbers for which such functions say no, and yes."""
_NUMERIC_CALLS = (*_PASSED_ON, "abs", "isnan", "isinf", "isfinite")
"""Functions of numbers that take a tensor as well."""
_CHECKS = ("_check", "_check_value", "_check_index", "_check_type")
"""Functions of torch that raise an error unless their first argument holds."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DECIDING = (
    ast.IfExp,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.NamedExpr,
    ast.Await,
)
"""Expressions within a condition that may do more than lead to its outcome."""


def answer(name: str, tensor: torch.Tensor) -> torch.Tensor | bool | float | None:
    """Return the answer to an assertion that asks for a tensor's number; None: it is no assertion.

    Args:
        name: Name of the function that asks, as torch has it: "__bool__", "item" and the like.
        tensor: The tensor that is asked.
    """
    frame = _asking_frame()
    if frame is None:
        assertion = None
    else:
        assertion = _find_assertion(frame)
    if frame is None or assertion is None or _is_caught(frame):
        return None
    if name == "item":
        if assertion.reads_number():
            return tensor
        return None
    if assertion.test is None:
        return None
    if name == "__bool__" and (jump := _find_jump(frame)) is not None:
        inside = (
            assertion.node is assertion.statement
            or assertion.find_outcome(name) is not None
        )
        if inside:
            return _truth_without_error(frame.f_code, jump, assertion.test)
        return None
    outcome = assertion.find_outcome(name)
    if name != "__float__" or outcome is None:
        return outcome
    call = assertion.node
    if isinstance(call, ast.Call):
        function = _look_up(call.func, frame)
    else:
        function = None
    if callable(function):
        numbers = _OF_A_NUMBER.get(function)
    else:
        numbers = None
    if numbers is None:
        return None
    return numbers[outcome]


@dataclass(frozen=True)
class _Syntax:
    """A parsed file, with the parent of each of its nodes."""

    tree: ast.Module
    parents: dict[ast.AST, ast.AST]

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, the innermost first, up to its function."""
        while not isinstance(node, _FUNCTIONS) and node in self.parents:
            node = self.parents[node]
            yield node

    def is_within(self, node: ast.AST, outer: ast.AST) -> bool:
        """Return whether a node is another one or inside of it."""
        return node is outer or outer in self.ancestors(node)


@dataclass(frozen=True)
class _Assertion:
    """A condition that raises, and the part of it that asks.

    Attributes:
        statement: The statement.
        test: Its condition; None where it names a number that conditions alone read.
        passes: The outcome of the condition that does not raise.
        node: The innermost expression that asks; the whole statement where it is not known.
        syntax: The file.
    """

    statement: ast.stmt
    test: ast.expr | None
    passes: bool
    node: ast.AST
    syntax: _Syntax

    def find_outcome(self, name: str) -> bool | None:
        """Return which value of the part lets the condition pass; None where it does not say.

        Args:
            name: Name of the function that asks, as of `answer`.
        """
        outcome = self.passes
        node = self.node
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            takers = {"__bool__": _PASSED_ON, "__float__": _NUMERIC_CALLS}
            if called not in takers.get(name, (name,)):
                return None
        elif isinstance(node, ast.Compare) and isinstance(
            node.ops[0], ast.In | ast.NotIn
        ):
            outcome ^= isinstance(node.ops[0], ast.NotIn)
            if len(node.ops) > 1:
                return None
        elif name != "__bool__":
            return None
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            outcome = not outcome
        while node is not self.test:
            node = self.syntax.parents[node]
            if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
                outcome = not outcome
            elif isinstance(node, ast.Call):
                if (
                    not isinstance(node.func, ast.Name)
                    or node.func.id not in _PASSED_ON
                ):
                    return None
            elif not isinstance(
                node, ast.BoolOp | ast.GeneratorExp | ast.List | ast.Tuple
            ):
                return None
        return outcome

    def reads_number(self) -> bool:
        """Return whether nothing but arithmetic and comparisons read the part."""
        for parent in self.syntax.ancestors(self.node):
            if parent is self.statement:
                return True
            called = ""
            if isinstance(parent, ast.Call):
                called = getattr(parent.func, "attr", getattr(parent.func, "id", ""))
            arithmetic = ast.Compare | ast.BinOp | ast.UnaryOp | ast.BoolOp
            if called not in (*_NUMERIC_CALLS, *_CHECKS) and not isinstance(
                parent, arithmetic
            ):
                return False
        return False


def _asking_frame() -> FrameType | None:
    """Return the frame of the code that asks, behind the modes of torch and of this package."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(
        (_PACKAGE, *_DISPATCHERS)
    ):
        frame = frame.f_back
    return frame


def _find_assertion(frame: FrameType) -> _Assertion | None:
    """Return the assertion that a frame is in; None where it is in none."""
    node, syntax = _find_running_node(frame)
    if node is None or syntax is None:
        return None
    around = (node, *syntax.ancestors(node))
    statement = next((x for x in around if isinstance(x, ast.stmt)), None)
    if statement is None:
        return None
    condition = _read_condition(statement)
    if condition is not None:
        inside = node is statement or syntax.is_within(node, condition[0])
        if inside:
            return _Assertion(statement, *condition, node, syntax)
        return None
    if _is_check(statement) or _is_for_conditions(statement, syntax):
        return _Assertion(statement, None, True, node, syntax)
    return None


def _read_condition(statement: ast.AST) -> tuple[ast.expr, bool] | None:
    """Return the condition of an assertion and the outcome of it that does not raise."""
    if not isinstance(statement, ast.If | ast.Assert):
        return None
    if any(isinstance(node, _DECIDING) for node in ast.walk(statement.test)):
        return None
    if isinstance(statement, ast.Assert):
        return statement.test, True
    raises = _always_raises(statement.body), _always_raises(statement.orelse)
    if raises[0] == raises[1]:
        return None
    return (statement.test, raises[1])


def _always_raises(body: list[ast.stmt]) -> bool:
    """Return whether every way through statements ends in `raise`, and none leaves them before."""
    leaving = (
        ast.Return,
        ast.Break,
        ast.Continue,
        ast.Yield,
        ast.YieldFrom,
        ast.Await,
        ast.Try,
    )
    if any(
        isinstance(node, leaving) for statement in body for node in ast.walk(statement)
    ):
        return False
    last = body[-1] if body else None
    if isinstance(last, ast.If):
        return _always_raises(last.body) and _always_raises(last.orelse)
    return isinstance(last, ast.Raise)


def _is_check(statement: ast.AST) -> bool:
    """Return whether a statement is a call of `torch._check` or one of its kind."""
    if isinstance(statement, ast.Expr):
        call = statement.value
    else:
        call = None
    if isinstance(call, ast.Call):
        function = call.func
    else:
        function = None
    return isinstance(function, ast.Attribute) and function.attr in _CHECKS


def _is_for_conditions(statement: ast.stmt, syntax: _Syntax) -> bool:
    """Return whether a statement names a number that nothing but assertions read."""
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
    else:
        target = None
    function = next(
        (x for x in syntax.ancestors(statement) if isinstance(x, _FUNCTIONS)), None
    )
    if not isinstance(target, ast.Name) or function is None:
        return False
    for node in ast.walk(function):
        if isinstance(node, ast.Global | ast.Nonlocal) and target.id in node.names:
            return False
        if not isinstance(node, ast.Name) or node.id != target.id or node is target:
            continue
        if not isinstance(node.ctx, ast.Load) or not _is_in_assertion(node, syntax):
            return False
    return True


def _is_in_assertion(node: ast.AST, syntax: _Syntax) -> bool:
    """Return whether an expression is read by an assertion alone: its condition or its error."""
    for parent in syntax.ancestors(node):
        if isinstance(parent, ast.Raise) or _is_check(parent):
            return True
        if (condition := _read_condition(parent)) is not None:
            return isinstance(parent, ast.Assert) or syntax.is_within(
                node, condition[0]
            )
        if isinstance(parent, ast.stmt):
            return False
    return False


def _is_caught(frame: FrameType) -> bool:
    """Return whether code around a frame, within the step, may go on after an error of it."""
    current: FrameType | None = frame
    while current is not None and not isinstance(
        current.f_locals.get("self"), StepModule
    ):
        code = current.f_code
        theirs = not code.co_filename.startswith((_TORCH, _PACKAGE))
        if theirs and code.co_exceptiontable:
            node, syntax = _find_running_node(current)
            if node is None or syntax is None or _is_tried(node, syntax):
                return True
        current = current.f_back
    return False


def _is_tried(node: ast.AST, syntax: _Syntax) -> bool:
    """Return whether a `try` around a node may go on after its error, or a `suppress` does."""
    for parent in syntax.ancestors(node):
        if isinstance(parent, ast.Try | ast.TryStar):
            inside = any(syntax.is_within(node, statement) for statement in parent.body)
            if inside and not all(_always_raises(x.body) for x in parent.handlers):
                return True
        elif isinstance(parent, ast.With) and any(
            "suppress" in ast.dump(item.context_expr) for item in parent.items
        ):
            return True
    return False


def _truth_without_error(
    code: CodeType, jump: dis.Instruction, test: ast.expr
) -> bool | None:
    """Return the truth value by which a conditional jump does not lead to an error.

    A part of a condition leads to an error by the next part at most. It is answered so that the
    condition is left without one, or that the next part is asked.
    """
    instructions = _instructions(code)
    index = _find_instruction(code, jump.offset)
    onward = instructions[index + 1].offset
    target = int(jump.argval)
    truth_of_jump = "_IF_TRUE" in jump.opname
    onward_raises = not _may_return(code, onward)
    target_raises = not _may_return(code, target)
    if onward_raises and target_raises:
        return None
    if onward_raises or target_raises:
        if onward_raises:
            return truth_of_jump
        return not truth_of_jump
    onward_asks = _covers(test, _position(code, onward))
    target_asks = _covers(test, _position(code, target))
    if onward_asks and not target_asks:
        return truth_of_jump
    return not truth_of_jump


@lru_cache(16)
def _instructions(code: CodeType) -> tuple[dis.Instruction, ...]:
    """Return the instructions of code."""
    return tuple(dis.get_instructions(code))


def _find_instruction(code: CodeType, offset: int) -> int:
    """Return the index of the instruction at an offset, or before the caches that are there."""
    return bisect_right(_instructions(code), offset, key=lambda x: x.offset) - 1


def _may_return(code: CodeType, start: int) -> bool:
    """Return whether code from an offset on can end otherwise than by an error."""
    instructions = _instructions(code)
    waiting = [_find_instruction(code, start)]
    visited = set[int]()
    while waiting:
        index = waiting.pop()
        if index in visited:
            continue
        visited.add(index)
        instruction = instructions[index]
        if instruction.opname in _RETURNS:
            return True
        if instruction.opname in _RAISES:
            continue
        jumps = instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs
        if jumps:
            waiting.append(_find_instruction(code, int(instruction.argval)))
        if (
            not jumps
            or "_IF_" in instruction.opname
            or instruction.opname in ("FOR_ITER", "SEND")
        ):
            waiting.append(index + 1)
    return False


def _find_jump(frame: FrameType) -> dis.Instruction | None:
    """Return the conditional jump for which a frame asks, if it does."""
    instructions = _instructions(frame.f_code)
    index = _find_instruction(frame.f_code, frame.f_lasti)
    if instructions[index].opname == "TO_BOOL":  # Python 3.13 asks before it jumps
        index += 1
    instruction = instructions[index]
    if instruction.opname.startswith("POP_JUMP"):
        return instruction
    return None


_Position = tuple[int, int, int, int]
"""First line, last line, first column, column behind the last."""


def _position(code: CodeType, offset: int) -> _Position | None:
    """Return the place in the source of the instruction at an offset."""
    place = _instructions(code)[_find_instruction(code, offset)].positions
    if place is None or place.lineno is None or place.end_lineno is None:
        return None
    if place.col_offset is None or place.end_col_offset is None:
        return None
    return place.lineno, place.end_lineno, place.col_offset, place.end_col_offset


def _covers(node: ast.AST, place: _Position | None) -> bool:
    """Return whether a place in the source lies within a node of the syntax that has one."""
    if place is None or not isinstance(node, ast.expr | ast.stmt | ast.ExceptHandler):
        return False
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    first = (node.lineno, node.col_offset)
    last = (node.end_lineno, node.end_col_offset)
    return first <= (place[0], place[2]) and (place[1], place[3]) <= last


def _find_running_node(frame: FrameType) -> tuple[ast.AST | None, _Syntax | None]:
    """Return the innermost node of the code that a frame is running, and its file."""
    code = frame.f_code
    source = "".join(linecache.getlines(code.co_filename, frame.f_globals))
    return _find_node(code, _position(code, frame.f_lasti), source)


@lru_cache(256)
def _find_node(
    code: CodeType, place: _Position | None, source: str
) -> tuple[ast.AST | None, _Syntax | None]:
    """Return the innermost node at a place, and the file; None for what is not found."""
    syntax = _parse(source)
    if syntax is None:
        return None, None
    node: ast.AST | None = None
    inner = next((x for x in ast.walk(syntax.tree) if _compiles_to(x, code)), None)
    while inner is not None:
        node = inner
        inner = next(
            (x for x in _list_placed_children(node) if _covers(x, place)), None
        )
    return node, syntax


def _compiles_to(node: ast.AST, code: CodeType) -> bool:
    """Return whether a node is the function that was compiled to the code."""
    if not isinstance(node, ast.FunctionDef) or node.name != code.co_name:
        return False
    lines = [node.lineno, *(x.lineno for x in node.decorator_list)]
    return min(lines) == code.co_firstlineno


def _list_placed_children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below a node that have a place; those that have none have nodes below."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr | ast.stmt | ast.ExceptHandler):
            yield child
        else:
            yield from _list_placed_children(child)


@lru_cache(64)
def _parse(source: str) -> _Syntax | None:
    """Parse a file; None where there is none, or it is no Python."""
    if not source:
        return None
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    children = (
        (node, child) for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
    )
    return _Syntax(tree, {child: node for node, child in children})


def _look_up(expression: ast.expr, frame: FrameType) -> object:
    """Return what a name, or an attribute of a name, is bound to in a frame; None: nothing."""
    if isinstance(expression, ast.Attribute):
        owner = _look_up(expression.value, frame)
        return getattr(owner, expression.attr, None)
    if not isinstance(expression, ast.Name):
        return None
    return frame.f_locals.get(expression.id, frame.f_globals.get(expression.id))
