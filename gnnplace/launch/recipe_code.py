"""What a function of a Python recipe sets, found by reading its statements; nothing is run.

`RecipeReader` follows a function as Python would: assignments, branches, loops over known
sequences, calls of functions in the same file and in files around it. It knows literals,
arithmetic, comparisons and a few methods of texts, lists and dictionaries. Everything else has a
value that stands for itself: `Made` for an object that a call makes, `Symbol` for a name of
another module, `UnknownValue` for what cannot be computed. Where a branch depends on an unknown
value, neither side is followed, and what it would set is unknown.

Complexity: linear in the statements that are followed, at most `MOST_STATEMENTS`.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from gnnplace.errors import FormatError, GnnplaceError
from gnnplace.files import read_text
from gnnplace.launch.launch_plan import BYTES

MOST_STATEMENTS = 50_000
MOST_ELEMENTS = 100_000
DEEPEST_CALL = 12
FOLDERS_ABOVE = 8
"""Folders above a file in which the modules that it imports are looked for."""
BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Mult: operator.mul,
}
COMPARISONS: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda value, container: value in container,
    ast.NotIn: lambda value, container: value not in container,
}
BUILTINS: Mapping[str, Callable[..., Any]] = {
    "len": len,
    "list": list,
    "tuple": tuple,
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "max": max,
    "min": min,
    "sum": sum,
    "sorted": sorted,
    "divmod": divmod,
    "round": round,
    "dict": dict,
    "range": range,
    "enumerate": lambda values: list(enumerate(values)),
    "zip": lambda *sequences: list(zip(*sequences, strict=False)),
}
INSPECTING = ("isinstance", "getattr", "hasattr", "cast")
PARTIAL = "partial"
NOT_KNOWN = object()
"""What the value of an expression is that cannot be computed."""
METHODS: Mapping[type, tuple[str, ...]] = {
    str: (
        "lower",
        "upper",
        "strip",
        "split",
        "startswith",
        "endswith",
        "join",
        "replace",
    ),
    list: ("append", "extend", "copy", "index", "count"),
    dict: ("get", "keys", "values", "items", "copy", "update", "setdefault"),
}
TYPES: Mapping[str, type] = {
    "str": str,
    "int": int,
    "list": list,
    "tuple": tuple,
    "dict": dict,
    "bool": bool,
    "float": float,
}


@dataclass(frozen=True)
class UnknownValue:
    """A value that cannot be computed.

    Attributes:
        text: The expression that it is of.
    """

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Symbol:
    """A name of another module, such as `torch.bfloat16`."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass
class Made:
    """An object that a call makes which is not followed.

    Attributes:
        name: What is called, as it is written.
        arguments: Values of its positional arguments.
        fields: Values by keyword, and of attributes that are set later.
        lines: Line of the recipe's file on which an attribute is set; None in another file.
    """

    name: str
    arguments: list[object] = field(default_factory=list)
    fields: dict[str, object] = field(default_factory=dict)
    lines: dict[str, int | None] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Undecided:
    """A branch or loop that is not followed.

    Attributes:
        settings: Names of attributes that it would set.
        condition: What it depends on.
        line: Its line in the recipe's file; None in another file.
    """

    settings: tuple[str, ...]
    condition: str
    line: int | None


@dataclass
class _Module:
    """A file of Python.

    Attributes:
        path: Its path.
        functions: Its functions by name.
        imports: Module and name of what it imports, by the name that it has here.
        constants: Its expressions by name, of assignments at the top.
        is_first: Whether it is the recipe's own file, whose lines are told.
    """

    path: Path
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    is_first: bool = False


@dataclass
class _Frame:
    """A function that is being followed.

    Attributes:
        module: The file that it is in.
        names: Values of its variables.
        depth: Functions that led here.
    """

    module: _Module
    names: dict[str, object]
    depth: int


class _Returned(Exception):
    """The end of a function, which is no error."""

    def __init__(self, value: object) -> None:
        self.value = value


def parse_module(
    text: str,
    path: Path,
    *,
    is_first: bool = False,
) -> _Module | None:
    """Return a file's functions, imports and constants, or None if it is not Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    module = _Module(path, is_first=is_first)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            module.functions[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            add_imports(node, module)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    module.constants[target.id] = node.value
        elif (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and node.value is not None
        ):
            module.constants[node.target.id] = node.value
    return module


def add_imports(
    statement: ast.ImportFrom,
    module: _Module,
) -> None:
    """Add what a statement imports to a module."""
    source = "." * statement.level + (statement.module or "")
    for alias in statement.names:
        module.imports.setdefault(alias.asname or alias.name, (source, alias.name))


class RecipeReader:
    """Follows functions of a recipe.

    Args:
        source: The file's path, which errors begin with.
        known_functions: What functions of other files return, by name, given their arguments by
            position and by keyword. They are not followed.
        absent_functions: The same of functions that are followed if their file is around.

    Attributes:
        unread: Functions that change the recipe's object and whose file is not here.
        undecided: Branches that depend on unknown values.
    """

    def __init__(
        self,
        source: str,
        known_functions: Mapping[str, Callable[..., object]],
        absent_functions: Mapping[str, Callable[..., object]],
    ) -> None:
        self.source = source
        self.known_functions = known_functions
        self.absent_functions = absent_functions
        self.unread: list[str] = []
        self.undecided: list[Undecided] = []
        self._modules: dict[Path, _Module | None] = {}
        self._statements = 0

    def result(
        self,
        module: _Module,
        function: str,
    ) -> object:
        """Return what a function returns or, without a return, its `cfg` or `config`.

        Raises:
            FormatError: If it has more statements than are followed, or ends in an error.
        """
        names: dict[str, object] = {}
        try:
            value = self._call(module, module.functions[function], [], {}, 0, names)
        except RecursionError:
            raise FormatError(f"{self.source}: is nested too deeply") from None
        if value is None:
            return names.get("cfg", names.get("config"))
        return value

    # Statements.

    def _call(
        self,
        module: _Module,
        function: ast.FunctionDef,
        arguments: Sequence[object],
        keywords: Mapping[str, object],
        depth: int,
        names: dict[str, object] | None = None,
    ) -> object:
        """Return what a function returns for some arguments."""
        frame = _Frame(module, {} if names is None else names, depth)
        parameters = [*function.args.posonlyargs, *function.args.args]
        defaults = function.args.defaults
        with_defaults = parameters[len(parameters) - len(defaults) :]
        for parameter, default in zip(with_defaults, defaults, strict=True):
            frame.names[parameter.arg] = self._value(default, frame)
        keyword_only = function.args.kwonlyargs
        for parameter, value in zip(
            keyword_only, function.args.kw_defaults, strict=True
        ):
            if value is not None:
                frame.names[parameter.arg] = self._value(value, frame)
        for parameter, argument in zip(parameters, arguments, strict=False):
            frame.names[parameter.arg] = argument
        named = {parameter.arg for parameter in (*parameters, *keyword_only)}
        frame.names.update({k: v for k, v in keywords.items() if k in named})
        for name in named:
            frame.names.setdefault(name, UnknownValue(name))
        if function.args.vararg is not None:
            frame.names[function.args.vararg.arg] = tuple(arguments[len(parameters) :])
        if function.args.kwarg is not None:
            extra_keywords = {k: v for k, v in keywords.items() if k not in named}
            frame.names[function.args.kwarg.arg] = extra_keywords
        try:
            self._run(function.body, frame)
        except _Returned as end:
            return end.value
        return None

    def _run(
        self,
        body: Iterable[ast.stmt],
        frame: _Frame,
    ) -> None:
        """Follow statements.

        Raises:
            FormatError: If there are more than are followed, or one of them raises.
        """
        followers: Mapping[type, Callable[[Any, _Frame], None]] = {
            ast.Assign: self._assignment,
            ast.AnnAssign: self._read_annotation,
            ast.AugAssign: self._augment,
            ast.Expr: self._evaluate,
            ast.Return: self._return,
            ast.If: self._branch,
            ast.For: self._loop,
            ast.With: self._run_block,
            ast.Try: self._run_block,
            ast.While: self._forget,
            ast.Raise: self._refuse,
            ast.ImportFrom: self._import,
        }
        for statement in body:
            self._statements += 1
            if self._statements > MOST_STATEMENTS:
                raise FormatError(
                    f"{self.source}: has more than {MOST_STATEMENTS} statements to follow"
                )
            follow = followers.get(type(statement))
            if follow is not None:
                follow(statement, frame)

    def _evaluate(
        self,
        statement: ast.Expr,
        frame: _Frame,
    ) -> None:
        self._value(statement.value, frame)

    def _run_block(
        self,
        statement: ast.With | ast.Try,
        frame: _Frame,
    ) -> None:
        self._run(statement.body, frame)
        if isinstance(statement, ast.Try):
            self._run(statement.orelse, frame)

    def _import(
        self,
        statement: ast.ImportFrom,
        frame: _Frame,
    ) -> None:
        add_imports(statement, frame.module)

    def _assignment(
        self,
        statement: ast.Assign,
        frame: _Frame,
    ) -> None:
        value = self._value(statement.value, frame)
        for target in statement.targets:
            self._assign(target, value, frame)

    def _read_annotation(
        self,
        statement: ast.AnnAssign,
        frame: _Frame,
    ) -> None:
        if statement.value is not None:
            value = self._value(statement.value, frame)
            self._assign(statement.target, value, frame)

    def _return(
        self,
        statement: ast.Return,
        frame: _Frame,
    ) -> NoReturn:
        node = statement.value
        value: object = None
        if node is not None:
            value = self._value(node, frame)
        raise _Returned(value)

    def _refuse(
        self,
        statement: ast.Raise,
        frame: _Frame,
    ) -> NoReturn:
        text = "an error"
        if statement.exc is not None:
            text = ast.unparse(statement.exc)[:120]
        location = f"line {statement.lineno}: " if frame.module.is_first else ""
        raise FormatError(f"{self.source}: {location}the recipe raises {text}")

    def _augment(
        self,
        statement: ast.AugAssign,
        frame: _Frame,
    ) -> None:
        """Assign `target op value` to a target."""
        target = statement.target
        read = ast.parse(ast.unparse(target), mode="eval").body
        expression = ast.BinOp(read, statement.op, statement.value)
        self._assign(target, self._value(expression, frame), frame)

    def _branch(
        self,
        statement: ast.If,
        frame: _Frame,
    ) -> None:
        test = self._value(statement.test, frame)
        if not _is_open(test):
            followed = statement.orelse
            if test:
                followed = statement.body
            self._run(followed, frame)
        elif _only_raises(statement.body):
            # A side that raises is not the one that trains.
            self._run(statement.orelse, frame)
        elif _only_raises(statement.orelse):
            self._run(statement.body, frame)
        else:
            self._forget(statement, frame)

    def _forget(
        self,
        statement: ast.If | ast.For | ast.While,
        frame: _Frame,
    ) -> None:
        """Make unknown what a statement sets that cannot be followed."""
        if isinstance(statement, ast.For):
            condition = statement.iter
        else:
            condition = statement.test
        targets: list[ast.expr] = []
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign):
                targets += node.targets
            elif isinstance(node, ast.AnnAssign | ast.AugAssign):
                targets.append(node.target)
        for target in targets:
            self._assign(target, UnknownValue(ast.unparse(target)), frame)
        settings = tuple(
            target.attr for target in targets if isinstance(target, ast.Attribute)
        )
        line = statement.lineno if frame.module.is_first else None
        self.undecided.append(Undecided(settings, ast.unparse(condition), line))

    def _loop(
        self,
        statement: ast.For,
        frame: _Frame,
    ) -> None:
        values = self._value(statement.iter, frame)
        if not isinstance(values, list | tuple | range | str | dict):
            self._forget(statement, frame)
            return
        for value in list(values):
            self._assign(statement.target, value, frame)
            self._run(statement.body, frame)
        self._run(statement.orelse, frame)

    def _assign(
        self,
        target: ast.expr,
        value: object,
        frame: _Frame,
    ) -> None:
        if isinstance(target, ast.Name):
            frame.names[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self._owner(target.value, frame)
            if owner is not None:
                owner.fields[target.attr] = value
                is_first = frame.module.is_first
                owner.lines[target.attr] = target.lineno if is_first else None
        elif isinstance(target, ast.Tuple | ast.List):
            values: list[object] = []
            if isinstance(value, list | tuple):
                values = list(value)
            if len(values) != len(target.elts):
                values = [UnknownValue(ast.unparse(part)) for part in target.elts]
            for part, value_of_part in zip(target.elts, values, strict=True):
                self._assign(part, value_of_part, frame)
        elif isinstance(target, ast.Subscript):
            container = self._value(target.value, frame)
            key = self._value(target.slice, frame)
            if isinstance(container, dict) and isinstance(key, str | int):
                container[key] = value

    def _owner(
        self,
        node: ast.expr,
        frame: _Frame,
    ) -> Made | None:
        """Return the object whose attribute is set; one that is not known becomes one."""
        value = self._value(node, frame)
        if isinstance(value, Made):
            return value
        if value is None or isinstance(value, str | UnknownValue | Symbol):
            # A text may be the name of a preset whose fields are set afterwards.
            preset = ""
            if value is not None:
                preset = str(value)
            owner = Made(preset)
            self._assign(node, owner, frame)
            return owner
        return None

    # Expressions.

    def _value(
        self,
        node: ast.expr,
        frame: _Frame,
    ) -> object:
        """Return the value of an expression."""
        evaluators: Mapping[type, Callable[[Any, _Frame], object]] = {
            ast.Constant: self._literal,
            ast.Name: self._variable,
            ast.Attribute: self._attribute,
            ast.Call: self._read_call,
            ast.List: self._elements,
            ast.Set: self._elements,
            ast.Tuple: self._tuple,
            ast.Dict: self._dictionary,
            ast.Subscript: self._element,
            ast.BinOp: self._arithmetic,
            ast.IfExp: self._choice,
            ast.BoolOp: self._boolean,
            ast.UnaryOp: self._negation,
            ast.Compare: self._comparison,
            ast.JoinedStr: self._read_formatted,
            ast.ListComp: self._comprehension,
            ast.GeneratorExp: self._comprehension,
        }
        unknown = UnknownValue(ast.unparse(node)[:200])
        evaluate = evaluators.get(type(node))
        if evaluate is None:
            return unknown
        try:
            value = evaluate(node, frame)
        except GnnplaceError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return unknown
        return unknown if value is NOT_KNOWN else value

    def _literal(
        self,
        node: ast.Constant,
        frame: _Frame,
    ) -> object:
        del frame  # every evaluator is called with one
        return node.value

    def _variable(
        self,
        node: ast.Name,
        frame: _Frame,
    ) -> object:
        return self._named(node.id, frame)

    def _tuple(
        self,
        node: ast.Tuple,
        frame: _Frame,
    ) -> object:
        return tuple(self._elements(node, frame))

    def _named(
        self,
        name: str,
        frame: _Frame,
    ) -> object:
        if name in frame.names:
            return frame.names[name]
        module = frame.module
        if frame.depth > DEEPEST_CALL:
            return NOT_KNOWN
        if name in module.constants:
            top = _Frame(module, {}, frame.depth + 1)
            return self._value(module.constants[name], top)
        origin = self._find_import(module, name)
        if origin is not None and origin[1] in origin[0].constants:
            return self._named(origin[1], _Frame(origin[0], {}, frame.depth + 1))
        return Symbol(name)

    def _attribute(
        self,
        node: ast.Attribute,
        frame: _Frame,
    ) -> object:
        owner = self._value(node.value, frame)
        if isinstance(owner, Symbol):
            return Symbol(f"{owner.text}.{node.attr}")
        if isinstance(owner, Made) and node.attr in owner.fields:
            return owner.fields[node.attr]
        return NOT_KNOWN

    def _elements(
        self, node: ast.List | ast.Tuple | ast.Set, frame: _Frame
    ) -> list[object]:
        elements: list[object] = []
        for part in node.elts:
            if not isinstance(part, ast.Starred):
                elements.append(self._value(part, frame))
                continue
            values = self._value(part.value, frame)
            if isinstance(values, list | tuple):
                elements.extend(values)
            else:
                elements.append(values)
        return elements

    def _element(
        self,
        node: ast.Subscript,
        frame: _Frame,
    ) -> object:
        container = self._value(node.value, frame)
        if isinstance(node.slice, ast.Slice):
            ends: list[object] = []
            for end in (node.slice.lower, node.slice.upper, node.slice.step):
                value = None
                if end is not None:
                    value = self._value(end, frame)
                ends.append(value)
            part = slice(*ends)
            is_sequence = isinstance(container, list | tuple | str)
            return container[part] if is_sequence else NOT_KNOWN  # type: ignore[index]
        key = self._value(node.slice, frame)
        if isinstance(container, dict):
            return container[key]
        if isinstance(container, list | tuple | str) and isinstance(key, int):
            return container[key]
        return NOT_KNOWN

    def _dictionary(
        self,
        node: ast.Dict,
        frame: _Frame,
    ) -> dict[object, object]:
        entries: dict[object, object] = {}
        for key, part in zip(node.keys, node.values, strict=True):
            value = self._value(part, frame)
            if key is not None:
                entries[self._value(key, frame)] = value
            elif isinstance(value, dict):
                entries.update(value)
        return entries

    def _arithmetic(
        self,
        node: ast.BinOp,
        frame: _Frame,
    ) -> object:
        first_operand = self._value(node.left, frame)
        second_operand = self._value(node.right, frame)
        operands = int | float | str | list | tuple
        if not isinstance(first_operand, operands) or not isinstance(
            second_operand, operands
        ):
            return NOT_KNOWN
        if isinstance(node.op, ast.Mod) and isinstance(first_operand, str):
            return NOT_KNOWN
        is_number = [
            isinstance(x, int | float) for x in (first_operand, second_operand)
        ]
        if isinstance(node.op, ast.Mult) and not all(is_number):
            sequence, count = (
                (second_operand, first_operand)
                if is_number[0]
                else (first_operand, second_operand)
            )
            if not isinstance(count, int) or isinstance(sequence, int | float):
                return NOT_KNOWN
            if len(sequence) * count > MOST_ELEMENTS:
                return NOT_KNOWN
        compute = BINARY.get(type(node.op))
        if compute is None:
            return NOT_KNOWN
        value: object = compute(first_operand, second_operand)
        is_long = isinstance(value, str | list | tuple) and len(value) > MOST_ELEMENTS
        if is_long:
            return NOT_KNOWN
        return value

    def _choice(
        self,
        node: ast.IfExp,
        frame: _Frame,
    ) -> object:
        test = self._value(node.test, frame)
        if _is_open(test):
            return NOT_KNOWN
        followed = node.orelse
        if test:
            followed = node.body
        return self._value(followed, frame)

    def _negation(
        self,
        node: ast.UnaryOp,
        frame: _Frame,
    ) -> object:
        value = self._value(node.operand, frame)
        if isinstance(node.op, ast.Not) and not _is_open(value):
            return not value
        if isinstance(node.op, ast.USub) and isinstance(value, int | float):
            return -value
        return NOT_KNOWN

    def _boolean(
        self,
        node: ast.BoolOp,
        frame: _Frame,
    ) -> object:
        """Return the value of `and` and `or`, which one part may decide."""
        is_and = isinstance(node.op, ast.And)
        value: object = NOT_KNOWN
        has_unknown = False
        for part in node.values:
            value = self._value(part, frame)
            if _is_open(value):
                has_unknown = True
            elif bool(value) is not is_and:
                # Parts before it that are not known may decide, if they decide alike.
                return NOT_KNOWN if has_unknown and not is_and else value
        return NOT_KNOWN if has_unknown else value

    def _comparison(
        self,
        node: ast.Compare,
        frame: _Frame,
    ) -> object:
        first_operand = self._value(node.left, frame)
        for comparison, part in zip(node.ops, node.comparators, strict=True):
            second_operand = self._value(part, frame)
            has_object = isinstance(first_operand, UnknownValue | Made) or isinstance(
                second_operand, UnknownValue | Made
            )
            if has_object and (_is_open(first_operand) or _is_open(second_operand)):
                return NOT_KNOWN
            is_symbol = [isinstance(x, Symbol) for x in (first_operand, second_operand)]
            if (
                any(is_symbol)
                and not all(is_symbol)
                and None not in (first_operand, second_operand)
            ):
                return NOT_KNOWN
            if not COMPARISONS[type(comparison)](first_operand, second_operand):
                return False
            first_operand = second_operand
        return True

    def _read_formatted(
        self,
        node: ast.JoinedStr,
        frame: _Frame,
    ) -> object:
        text = ""
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                value = self._value(part.value, frame)
                if part.format_spec is not None or not isinstance(value, str | int):
                    return NOT_KNOWN
                text += str(value)
            elif isinstance(part, ast.Constant):
                text += str(part.value)
        return text

    def _comprehension(
        self, node: ast.ListComp | ast.GeneratorExp, frame: _Frame
    ) -> object:
        """Return the list of a comprehension over one known sequence without conditions."""
        loop = node.generators[0]
        values = self._value(loop.iter, frame)
        if len(node.generators) > 1 or loop.ifs:
            return NOT_KNOWN
        if not isinstance(values, list | tuple | range):
            return NOT_KNOWN
        inner = _Frame(frame.module, dict(frame.names), frame.depth)
        elements = []
        for value in values[:MOST_ELEMENTS]:
            self._assign(loop.target, value, inner)
            elements.append(self._value(node.elt, inner))
        return elements

    # Calls.

    def _read_call(
        self,
        node: ast.Call,
        frame: _Frame,
    ) -> object:
        arguments = self._elements(ast.List(node.args), frame)
        keywords: dict[str, object] = {}
        for keyword in node.keywords:
            value = self._value(keyword.value, frame)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif isinstance(value, dict):
                keywords.update(value)
        if isinstance(node.func, ast.Name):
            return self._read_function(node, node.func.id, arguments, keywords, frame)
        if not isinstance(node.func, ast.Attribute):
            return NOT_KNOWN
        owner = self._value(node.func.value, frame)
        for kind, methods in METHODS.items():
            if isinstance(owner, kind) and node.func.attr in methods:
                return _method(owner, node.func.attr, arguments)
        # A method of an object that another call makes: what it is made of stays known.
        if isinstance(owner, Made):
            arguments = [owner, *arguments]
        name = ast.unparse(node.func)
        return _make(name, arguments, keywords, node, frame)

    def _read_function(
        self,
        node: ast.Call,
        name: str,
        arguments: list[object],
        keywords: dict[str, object],
        frame: _Frame,
    ) -> object:
        """Return what a function returns that is called by its name."""
        variable = frame.names.get(name)
        if isinstance(variable, Symbol):
            name = variable.text
        elif isinstance(variable, Made) and variable.name == PARTIAL:
            name = str(variable.arguments[0])
            arguments = [*variable.arguments[1:], *arguments]
            keywords = {**variable.fields, **keywords}
        module = frame.module
        original = name
        origin: tuple[_Module, str] | None = (module, name)
        if name not in module.functions:
            original = module.imports.get(name, ("", name))[1]
            if original in BUILTINS or original in INSPECTING:
                return _call_builtin(original, arguments)
            if original in self.known_functions:
                return self.known_functions[original](*arguments, **keywords)
            origin = self._find_import(module, name)
        if origin is not None and frame.depth < DEEPEST_CALL:
            function = origin[0].functions.get(origin[1])
            if function is not None:
                depth = frame.depth + 1
                return self._call(origin[0], function, arguments, keywords, depth)
        if original in self.absent_functions:
            return self.absent_functions[original](*arguments, **keywords)
        self._note_unread(original, arguments)
        return _make(original, arguments, keywords, node, frame)

    def _note_unread(
        self,
        function: str,
        arguments: Sequence[object],
    ) -> None:
        """Note a function whose file is not here, if it makes or changes a recipe."""
        takes_recipe = any(isinstance(x, Made) for x in arguments)
        makes_recipe = function.endswith(("_config", "_common", "_provider"))
        is_noted = _is_class(function) or function in (*self.unread, PARTIAL)
        if (takes_recipe or makes_recipe) and not is_noted:
            self.unread.append(function)

    def _find_import(
        self,
        module: _Module,
        name: str,
    ) -> tuple[_Module, str] | None:
        """Return the module that has a function or constant, and its name there.

        A module may only hand on what it imports from another one. None: no file around the
        recipe has it.
        """
        for _ in range(DEEPEST_CALL):
            if name not in module.imports:
                return None
            source, name = module.imports[name]
            next_module = self._find(module.path, source)
            if next_module is None:
                return None
            module = next_module
            if name in module.functions or name in module.constants:
                return module, name
        return None

    def _find(
        self,
        path: Path,
        source: str,
    ) -> _Module | None:
        """Return the module of an import, if its file is around another one."""
        level = len(source) - len(source.lstrip("."))
        parts = source.lstrip(".").split(".")
        parents = list(path.resolve().parents)[:FOLDERS_ABOVE]
        folders = parents[level - 1 : level] if level else parents
        for folder in folders:
            base = folder.joinpath(*parts)
            for candidate in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
                if candidate in self._modules:
                    return self._modules[candidate]
                try:
                    if candidate.is_file() and candidate.stat().st_size < BYTES:
                        module = parse_module(read_text(candidate), candidate)
                        self._modules[candidate] = module
                        return module
                except (OSError, GnnplaceError):
                    return None
        return None


def _make(
    name: str,
    arguments: list[object],
    keywords: Mapping[str, object],
    node: ast.Call,
    frame: _Frame,
) -> Made:
    """Return the object of a call. Keywords of a class are its fields; functions keep none."""
    if not _is_class(name) and name != PARTIAL:
        return Made(name, arguments)
    lines = {
        keyword.arg: keyword.value.lineno if frame.module.is_first else None
        for keyword in node.keywords
        if keyword.arg is not None
    }
    return Made(name, arguments, dict(keywords), lines)


def _is_open(value: object) -> bool:
    """Return whether a value may be true or false: that of a function that is not followed, too."""
    if isinstance(value, Made):
        return not _is_class(value.name)
    return isinstance(value, UnknownValue | Symbol)


def _is_class(name: str) -> bool:
    return name.rpartition(".")[2].lstrip("_")[:1].isupper()


def _only_raises(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Raise)


def _method(
    owner: object,
    name: str,
    arguments: list[object],
) -> object:
    """Return what a method of a text, list or dictionary returns."""
    if name == "extend" and isinstance(owner, list):
        # Elements that are not known stay in the list as one, so that nothing counts them.
        values = arguments[0]
        if isinstance(values, list | tuple):
            owner.extend(values)
        else:
            owner.append(values)
        return None
    is_known = not any(isinstance(x, UnknownValue | Symbol | Made) for x in arguments)
    if not is_known and name not in ("append", "get", "setdefault"):
        return NOT_KNOWN
    value: object = getattr(owner, name)(*arguments)
    if isinstance(value, Iterable) and name in ("keys", "values", "items"):
        return list(value)
    return value


def _call_builtin(
    name: str,
    arguments: list[object],
) -> object:
    """Return what a built-in function returns."""
    if name == "isinstance":
        return _is_instance(arguments[0], arguments[1])
    if name == "cast":
        return arguments[1]
    if name in ("getattr", "hasattr"):
        owner, attribute = arguments[:2]
        if not isinstance(owner, Made) or not isinstance(attribute, str):
            return NOT_KNOWN
        if attribute not in owner.fields:
            return NOT_KNOWN
        return name == "hasattr" or owner.fields[attribute]
    if any(isinstance(x, UnknownValue | Symbol | Made) for x in arguments):
        return NOT_KNOWN
    value: object = BUILTINS[name](*arguments)
    is_long = isinstance(value, range | list) and len(value) > MOST_ELEMENTS
    return NOT_KNOWN if is_long else value


def _is_instance(
    value: object,
    kind: object,
) -> object:
    """Return whether a value is of a type: of a built-in one, or of the class that made it."""
    kinds: tuple[object, ...] = (kind,)
    if isinstance(kind, tuple):
        kinds = kind
    names = [str(part).rpartition(".")[2] for part in kinds]
    if isinstance(value, UnknownValue | Symbol):
        return NOT_KNOWN
    if isinstance(value, Made):
        if value.name.rpartition(".")[2] in names:
            return True
        if all(name in TYPES for name in names):
            return False
        return NOT_KNOWN
    types = tuple(TYPES[name] for name in names if name in TYPES)
    return isinstance(value, types)
