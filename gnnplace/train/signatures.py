"""Constructors of classes that a recipe names, read from their source without importing them.

To import Lightning and the classes of a recipe takes seconds. Their source says in milliseconds
which arguments a class has and of which types. What cannot be followed (compiled modules, names
made at run time, `**kwargs` of unknown use) is said to be open: any argument may be right.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

MOST_STEPS = 20  # imports and bases that are followed for one name


@dataclass(frozen=True)
class Parameter:
    """An argument of a constructor.

    Attributes:
        annotation: Its type in the source; None where there is none.
        takes_none: Whether its default is None.
        is_required: Whether it has no default.
    """

    annotation: ast.expr | None
    takes_none: bool
    is_required: bool = False


@dataclass(frozen=True)
class Module:
    """The source of a module.

    Attributes:
        name: Its dotted name.
        is_package: Whether it is the `__init__.py` of a folder.
        tree: Its source, parsed.
    """

    name: str
    is_package: bool
    tree: ast.Module

    def definitions(self) -> dict[str, ast.stmt]:
        """Return the statement that binds each name of the module, also under `if` and `try`."""
        names: dict[str, ast.stmt] = {}
        for statement in _flat(self.tree.body):
            for name in _bound_names(statement):
                names.setdefault(name, statement)
        return names

    def list_starred_imports(self) -> list[ast.ImportFrom]:
        """Return the imports of all names of other modules."""
        imports = [
            node for node in _flat(self.tree.body) if isinstance(node, ast.ImportFrom)
        ]
        return [node for node in imports if node.names[0].name == "*"]

    def is_open(self) -> bool:
        """Return whether the module may have names that its source does not show."""
        names = self.definitions()
        return "*" in names or ("__getattr__" in names and not self._is_lazy())

    def _is_lazy(self) -> bool:
        """Return whether `gnnplace.lazy` gives the names, which stand under TYPE_CHECKING."""
        return "lazy_names" in self.definitions()


@dataclass(frozen=True)
class ClassSource:
    """A class or a function, where it is defined.

    Attributes:
        module: The module of its definition.
        node: Its definition.
    """

    module: Module
    node: ast.ClassDef | ast.FunctionDef

    @property
    def name(self) -> str:
        """Return the class's name without the module."""
        return self.node.name


@dataclass(frozen=True)
class Missing:
    """A name that does not exist.

    Attributes:
        module: The dotted name of the module that lacks it, or that is missing itself.
        name: The name that the module lacks; empty where the module is missing.
        names: What the module has.
    """

    module: str
    name: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Constructor:
    """The arguments of a class or a function.

    Attributes:
        name: The name of the class.
        parameters: Arguments by name.
        is_open: Whether it may take others.
    """

    name: str
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    is_open: bool = False


def forget_modules() -> None:
    """Forget the modules that were looked for: files and the folder may have changed."""
    _find_spec.cache_clear()
    _read_module.cache_clear()
    importlib.invalidate_caches()


def is_installed(package: str) -> bool:
    """Return whether a package that stands at the top can be imported from here."""
    return package in sys.builtin_module_names or _find_spec(package) is not None


def find_class(path: str) -> ClassSource | Missing | None:
    """Return the class or function of a dotted path.

    Returns:
        None where the source does not tell, such as in compiled modules.
    """
    module, _, name = path.rpartition(".")
    if module:
        return _find(module, name, MOST_STEPS)
    return None


def list_bases(source: ClassSource) -> Iterator[ClassSource | None]:
    """Yield a class and its bases in the order of their definition; None for one that is hidden."""
    yield source
    if not isinstance(source.node, ast.ClassDef):
        return
    for base in source.node.bases:
        name = _dotted(base.value if isinstance(base, ast.Subscript) else base)
        if name in ("object", "ABC", "Generic", "Protocol"):
            continue
        if name is None:
            parent = None
        else:
            parent = _find_in_module(source.module, name, MOST_STEPS)
        if isinstance(parent, ClassSource):
            yield from list_bases(parent)
        else:
            yield None


def find_constructor(source: ClassSource) -> Constructor:
    """Return the arguments that a class is made with, those of its bases where it hands them on."""
    if isinstance(source.node, ast.FunctionDef):
        return _read_function(source.node, source.name, is_method=False)
    parameters: dict[str, Parameter] = {}
    for owner in list_bases(source):
        if (
            owner is None
            or not isinstance(owner.node, ast.ClassDef)
            or _is_decorated(owner.node)
        ):
            return Constructor(source.name, parameters, is_open=True)
        init = next((f for f in owner.node.body if _is_init(f)), None)
        if init is None:
            continue
        assert isinstance(init, ast.FunctionDef)
        constructor = _read_function(init, source.name, is_method=True)
        parameters = {**constructor.parameters, **parameters}
        if not constructor.is_open:
            return Constructor(source.name, parameters)
        if not _passes_kwargs(init):
            return Constructor(source.name, parameters, is_open=True)
    return Constructor(source.name, parameters, is_open=True)


def _is_init(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "__init__"


def _is_decorated(node: ast.ClassDef) -> bool:
    return bool(node.decorator_list)


def _read_function(
    function: ast.FunctionDef, name: str, *, is_method: bool
) -> Constructor:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (
        len(positional) - len(arguments.defaults)
    )
    defaults += arguments.defaults
    pairs = [*zip(positional, defaults, strict=True)][int(is_method) :]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    parameters = {
        argument.arg: Parameter(
            annotation=argument.annotation,
            takes_none=isinstance(default, ast.Constant) and default.value is None,
            is_required=default is None,
        )
        for argument, default in pairs
    }
    return Constructor(name, parameters, is_open=arguments.kwarg is not None)


def _passes_kwargs(init: ast.FunctionDef) -> bool:
    """Return whether a constructor gives its `**kwargs` to that of its base alone."""
    assert init.args.kwarg is not None
    name = init.args.kwarg.arg
    uses = [
        node
        for node in ast.walk(init)
        if isinstance(node, ast.Name) and node.id == name
    ]
    calls = [node for node in ast.walk(init) if isinstance(node, ast.Call)]
    to_base = [
        keyword.value
        for call in calls
        if ast.unparse(call.func) == "super().__init__"
        for keyword in call.keywords
        if keyword.arg is None
    ]
    return len(uses) == 1 and uses[0] in to_base


@cache
def _find_spec(name: str) -> tuple[Path | None, tuple[str, ...]] | None:
    """Return the source and the folders of a module; nothing is imported.

    Returns:
        None where there is no such module. No source where it is compiled.
    """
    package = name.rpartition(".")[0]
    try:
        if not package:
            spec = PathFinder.find_spec(
                name, [os.getcwd()]
            ) or importlib.util.find_spec(name)
        else:
            parent = _find_spec(package)
            if parent is None or not parent[1]:
                return None
            spec = PathFinder.find_spec(name, parent[1])
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    if spec.origin and spec.origin.endswith(".py"):
        origin = Path(spec.origin)
    else:
        origin = None
    return origin, tuple(spec.submodule_search_locations or ())


@cache
def _read_module(name: str) -> Module | None:
    """Return a module's source, or None if there is none to read."""
    spec = _find_spec(name)
    if spec is None or spec[0] is None:
        return None
    try:
        tree = ast.parse(spec[0].read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    return Module(name, bool(spec[1]), tree)


def _find(module: str, name: str, steps: int) -> ClassSource | Missing | None:
    """Return the definition that a module's name refers to, or None where it is hidden."""
    if _find_spec(module) is None:
        package, _, last = module.rpartition(".")
        if not package:
            if module in sys.builtin_module_names:
                return None
            return Missing(module)
        holder = _find_spec(package)
        if holder is not None and not holder[1]:
            return None  # such as a class in a class
        if steps > 0:
            parent = _find(package, last, steps - 1)
        else:
            parent = None
        if isinstance(parent, Missing):
            return parent
        return None
    source = _read_module(module)
    if source is None:
        return None
    return _find_in_module(source, name, steps)


def _find_in_module(
    module: Module, name: str, steps: int
) -> ClassSource | Missing | None:
    if steps <= 0:
        return None
    first, _, remainder = name.partition(".")
    definitions = module.definitions()
    statement = definitions.get(first)
    if statement is None:
        if _find_spec(f"{module.name}.{first}") is not None:  # a submodule
            if remainder:
                return _find(f"{module.name}.{first}", remainder, steps - 1)
            return None
        for starred in module.list_starred_imports():
            match = _find(_absolute(module, starred), name, steps - 1)
            if isinstance(match, ClassSource):
                return match
        is_open = module.is_open() or hasattr(builtins, first)
        if is_open:
            return None
        return Missing(module.name, first, tuple(sorted(definitions)))
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        if remainder:
            return None
        return ClassSource(module, statement)
    if isinstance(statement, ast.ImportFrom):
        origin = _absolute(module, statement)
        original = next(
            a.name for a in statement.names if (a.asname or a.name) == first
        )
        target = f"{original}.{remainder}" if remainder else original
        holder, _, last = f"{origin}.{target}".rpartition(".")
        return _find(holder, last, steps - 1)
    if isinstance(statement, ast.Import) and remainder:
        alias = next(
            a
            for a in statement.names
            if (a.asname or a.name.partition(".")[0]) == first
        )
        origin = alias.name if alias.asname else first
        holder, _, last = f"{origin}.{remainder}".rpartition(".")
        return _find(holder, last, steps - 1)
    return None


def _absolute(module: Module, statement: ast.ImportFrom) -> str:
    """Return the dotted name of the module that `from` names."""
    if not statement.level:
        return statement.module or ""
    parts = module.name.split(".")
    parts = parts[: len(parts) - statement.level + int(module.is_package)]
    return ".".join([*parts, *([statement.module] if statement.module else [])])


def _flat(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run when a module is imported, or that type checkers read."""
    for statement in statements:
        yield statement
        if isinstance(statement, ast.If):
            yield from _flat(statement.body)
            yield from _flat(statement.orelse)
        elif isinstance(statement, ast.Try):
            yield from _flat(statement.body)
            for handler in statement.handlers:
                yield from _flat(handler.body)
            yield from _flat(statement.orelse)
        elif isinstance(statement, ast.With):
            yield from _flat(statement.body)


def _bound_names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [statement.name]
    if isinstance(statement, ast.Import):
        return [
            alias.asname or alias.name.partition(".")[0] for alias in statement.names
        ]
    if isinstance(statement, ast.ImportFrom):
        return [alias.asname or alias.name for alias in statement.names]
    if isinstance(statement, ast.Assign):
        targets = [node for target in statement.targets for node in ast.walk(target)]
        return [node.id for node in targets if isinstance(node, ast.Name)]
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return [statement.target.id]
    return []


def _dotted(node: ast.expr) -> str | None:
    text = ast.unparse(node)
    if text.replace(".", "").replace("_", "").isalnum():
        return text
    return None
