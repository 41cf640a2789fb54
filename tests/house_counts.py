"""What ``make house`` counts in the source, room by room, without running it.

A *room* is a folder of ``gnnplace/`` with an ``__init__.py``, its *face*; files beside the rooms
are counted as the room ``root``. A room that has packages alone, and no
names in its ``__init__.py``, has no face of its own: the faces are those of its packages.
Each count gives a list of places, so that a table of totals can also say where to go.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gnnplace"
ROOT_ROOM = "root"

DENSITY = "tokens a code line"
FORMATTER_OFF = "fmt: skip"
RUFF_RULES = ("D401", "PLR0913", "ANN401", "SLF001")
PAST_FACES = "imports past faces"
VAGUE_NAMES = "vague names"
UNCOMMENTED = "long without comment"
HANDED_ON = "handed on"
COUNTS = (
    DENSITY,
    FORMATTER_OFF,
    *RUFF_RULES,
    PAST_FACES,
    VAGUE_NAMES,
    UNCOMMENTED,
    HANDED_ON,
)
"""All that is held, in the order of the table."""

MOST_PARAMETERS = 7
LONG_FUNCTION = 40  # lines, without the docstring
LAYERS = 3  # functions that a parameter passes through before it counts as handed on
VAGUE_WORDS = """
    own told found made many known some here other others mine again asked given left beside once
    few most said each whole odd more less there what where now done seen kept held after before
    rest least chosen moved
"""
VAGUE = frozenset(VAGUE_WORDS.split())
"""Names that say how a thing came about, not what it is."""

NO_CODE = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.COMMENT,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DIRECTIVE = re.compile(r"#\s*(fmt|noqa|type|pragma|ruff|mypy)\b")
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Place:
    """One place in the source that a count adds up or points to."""

    room: str
    file: str
    line: int
    name: str
    value: float = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name} {self.value:,.4g}"


@dataclass(frozen=True)
class Function:
    """A function or method, with the module and the class that it stands in."""

    module: str
    name: str
    node: FunctionNode
    owner: ast.ClassDef | None
    top_level: bool

    @cached_property
    def parameters(self) -> tuple[list[str], list[str]]:
        """Names by position and by keyword alone, without ``self`` or ``cls``."""
        arguments = self.node.args
        positional = [
            argument.arg for argument in arguments.posonlyargs + arguments.args
        ]
        decorators = [ast.unparse(decorator) for decorator in self.node.decorator_list]
        if self.owner and "staticmethod" not in decorators:
            positional = positional[1:]
        return positional, [argument.arg for argument in arguments.kwonlyargs]


@dataclass
class Source:
    """One file of the package, parsed and tokenized once for all counts."""

    path: Path
    room: str
    module: str
    tree: ast.Module
    nodes: list[ast.AST]
    functions: list[Function] = field(default_factory=list)
    tokens: Counter[int] = field(default_factory=Counter)
    code_lines: set[int] = field(default_factory=set)
    comments: dict[int, str] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """Return the path as seen from the folder above the package."""
        return "gnnplace" + self.path.as_posix().rpartition("gnnplace")[2]

    def place(self, line: int, name: str, value: float = 1) -> Place:
        """Return a place in this file."""
        return Place(self.room, self.file, line, name, value)

    def function_at(self, line: int) -> str:
        """Return the name of the innermost function around a line, or the module's name."""
        enclosing = [
            function
            for function in self.functions
            if function.node.lineno <= line <= (function.node.end_lineno or 0)
        ]
        return enclosing[-1].name if enclosing else self.module.rpartition(".")[2]


def read_sources(package: Path = PACKAGE) -> list[Source]:
    """Parse and tokenize every Python file of a package."""
    sources = []
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package).with_suffix("").parts
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        source = Source(
            path=path,
            room=inside[0] if len(inside) > 1 else ROOT_ROOM,
            module=".".join(("gnnplace", *inside)).removesuffix(".__init__"),
            tree=tree,
            nodes=list(ast.walk(tree)),
        )
        source.functions = list(_find_functions(source.module, tree, "", None, True))
        _tokenize(source, text)
        sources.append(source)
    return sources


def _find_functions(
    module: str,
    parent: ast.AST,
    prefix: str,
    owner: ast.ClassDef | None,
    top_level: bool,
) -> Iterator[Function]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, FunctionNode):
            yield Function(module, prefix + node.name, node, owner, top_level)
            yield from _find_functions(
                module, node, f"{prefix}{node.name}.", None, False
            )
        elif isinstance(node, ast.ClassDef):
            yield from _find_functions(
                module, node, f"{prefix}{node.name}.", node, top_level
            )
        elif isinstance(node, ast.stmt):
            yield from _find_functions(module, node, prefix, owner, top_level)


def _is_text(node: ast.AST) -> bool:
    """Return whether a statement is a docstring, of a module, class, function or attribute."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _line_range(node: ast.AST) -> range:
    """Return the lines of a statement; a function's do not include its decorators."""
    assert isinstance(node, ast.stmt | ast.expr)
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _tokenize(source: Source, text: str) -> None:
    text_lines: set[int] = set()
    for node in source.nodes:
        if _is_text(node):
            text_lines.update(_line_range(node))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            source.comments[line] = token.string
        elif token.type not in NO_CODE and line not in text_lines:
            source.tokens[line] += 1
            source.code_lines.update(range(line, token.end[0] + 1))


def list_rooms(sources: Sequence[Source]) -> list[str]:
    """Return all rooms, by name."""
    return sorted({source.room for source in sources})


def count_standing(sources: Sequence[Source]) -> dict[str, dict[str, int]]:
    """Count files, lines, code lines and tokens by room. They are printed and not held."""
    standing: dict[str, Counter[str]] = defaultdict(Counter)
    for source in sources:
        room = standing[source.room]
        room["files"] += 1
        room["lines"] += source.path.read_text(encoding="utf-8").count("\n")
        room["code lines"] += len(source.code_lines)
        room["tokens"] += source.tokens.total()
    return {room: dict(figures) for room, figures in standing.items()}


def count_places(sources: Sequence[Source]) -> dict[str, list[Place]]:
    """Return the places of every count but density, whose values add up to the count."""
    return {
        FORMATTER_OFF: find_formatter_off(sources),
        **run_ruff(sources),
        PAST_FACES: find_imports_past_faces(sources),
        VAGUE_NAMES: find_vague_names(sources),
        UNCOMMENTED: find_uncommented(sources),
        HANDED_ON: [chain.place for chain in find_chains(sources)],
    }


def count_by_room(
    sources: Sequence[Source], places: dict[str, list[Place]]
) -> dict[str, dict[str, float]]:
    """Return every held figure of every room."""
    standing = count_standing(sources)
    counted: dict[str, dict[str, float]] = {}
    for room in list_rooms(sources):
        figures: dict[str, float] = {DENSITY: compute_density(standing[room])}
        for name in COUNTS[1:]:
            figures[name] = sum(place.room == room for place in places[name])
        counted[room] = figures
    return counted


def compute_density(standing: dict[str, int]) -> float:
    """Return tokens per code line, to two digits."""
    return round(standing["tokens"] / max(1, standing["code lines"]), 2)


def find_dense_functions(sources: Sequence[Source], at_least: int = 10) -> list[Place]:
    """Return the tokens per code line of functions with at least some code lines."""
    places = []
    for source in sources:
        for function in source.functions:
            lines = source.code_lines.intersection(_line_range(function.node))
            if len(lines) >= at_least:
                tokens = sum(source.tokens[line] for line in lines)
                line = function.node.lineno
                places.append(source.place(line, function.name, tokens / len(lines)))
    return places


def find_formatter_off(sources: Sequence[Source]) -> list[Place]:
    """Return the lines that the formatter must leave as they are."""
    return [
        source.place(line, source.function_at(line))
        for source in sources
        for line, comment in source.comments.items()
        if FORMATTER_OFF in comment
    ]


def run_ruff(
    sources: Sequence[Source], package: Path = PACKAGE
) -> dict[str, list[Place]]:
    """Return the offences of the standard rules, those listed in ``pyproject.toml`` included."""
    by_file = {source.path.resolve(): source for source in sources}
    completed = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "ruff",
                "check",
                "--isolated",
                "--no-cache",
                "--exit-zero",
            ),
            *("--select", ",".join(RUFF_RULES), "--output-format", "json"),
            *("--config", f"lint.pylint.max-args={MOST_PARAMETERS}"),
            str(package),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    places: dict[str, list[Place]] = {rule: [] for rule in RUFF_RULES}
    for offence in json.loads(completed.stdout):
        source = by_file[Path(offence["filename"]).resolve()]
        line = offence["location"]["row"]
        number = re.search(r"\((\d+) > \d+\)", offence["message"])
        value = int(number.group(1)) if number else 1
        places[offence["code"]].append(
            source.place(line, source.function_at(line), value)
        )
    return places


def find_imports_past_faces(sources: Sequence[Source]) -> list[Place]:
    """Return names that a file imports from inside another room, each once a file.

    ``from gnnplace.ROOM import NAME`` is an import through the face and does not count, and in a
    room of packages ``from gnnplace.ROOM.PACKAGE import NAME`` neither.
    """
    rooms = set(list_rooms(sources)) - {ROOT_ROOM}
    faces = _list_package_faces(sources)
    places: dict[tuple[str, str], Place] = {}
    for source in sources:
        for node in source.nodes:
            if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
                continue
            package, *inside = node.module.split(".")
            if package != "gnnplace" or len(inside) < 2:
                continue
            if (
                inside[0] in rooms
                and inside[0] != source.room
                and node.module not in faces
            ):
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    places.setdefault(
                        (source.file, name), source.place(node.lineno, name)
                    )
    return list(places.values())


def _list_package_faces(sources: Sequence[Source]) -> set[str]:
    """Return the packages of rooms that have packages alone and no names of their own."""
    packages = {
        source.module for source in sources if source.path.name == "__init__.py"
    }
    mixed = {
        source.module.rpartition(".")[0]
        for source in sources
        if source.module not in packages
    }
    naming = {
        source.module
        for source in sources
        if any(isinstance(node, ast.Import | ast.ImportFrom) for node in source.nodes)
    }
    rooms = {
        package for package in packages - mixed - naming if package.count(".") == 1
    }
    return {package for package in packages if package.rpartition(".")[0] in rooms}


def find_vague_names(sources: Sequence[Source]) -> list[Place]:
    """Return every assignment, loop and comprehension that binds a vague name."""
    return [
        source.place(node.lineno, node.id)
        for source in sources
        for node in source.nodes
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and node.id in VAGUE
    ]


def find_uncommented(sources: Sequence[Source]) -> list[Place]:
    """Return functions of more than forty lines, docstring left out, without any comment."""
    places = []
    for source in sources:
        for function in source.functions:
            lines = set(_line_range(function.node))
            if _is_text(function.node.body[0]):
                lines.difference_update(_line_range(function.node.body[0]))
            comments = [
                source.comments[line]
                for line in lines.intersection(source.comments)
                if not DIRECTIVE.match(source.comments[line])
            ]
            if len(lines) > LONG_FUNCTION and not comments:
                places.append(
                    source.place(function.node.lineno, function.name, len(lines))
                )
    return places


@dataclass(frozen=True)
class Chain:
    """A parameter that functions only hand on, from the first of them to the one that uses it."""

    place: Place
    steps: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.place.file}:{self.place.line} " + " > ".join(self.steps)


def find_chains(sources: Sequence[Source], layers: int = LAYERS) -> list[Chain]:
    """Return parameters that pass through three functions or more of the package.

    A function only hands a parameter on if its one use is as an argument of one call. Calls are
    followed by name: functions of a module, imported functions, methods of ``self``, ``cls`` and
    ``super()``, and methods of a named class. A constructor ends a chain, for the
    parameter becomes part of an object.
    """
    calls = _Calls(sources)
    chains = []
    for source in sources:
        for function in source.functions:
            if not function.top_level:
                continue
            for parameter in (*function.parameters[0], *function.parameters[1]):
                steps = calls.follow(function, parameter)
                if len(steps) >= layers:
                    name = f"{function.name}({parameter})"
                    place = source.place(function.node.lineno, name, len(steps))
                    chains.append(Chain(place, steps))
    return chains


class _Calls:
    """The package's functions and classes by name, and which parameters they only hand on."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.functions = {id(f.node): f for source in sources for f in source.functions}
        self.names = {source.module: _index_names(source) for source in sources}
        self.find_module_path = {
            id(node): source.module
            for source in sources
            for node in source.nodes
            if isinstance(node, ast.ClassDef)
        }
        self._handed: dict[int, dict[str, tuple[Function, str]]] = {}

    def follow(self, function: Function, parameter: str) -> tuple[str, ...]:
        """Return the functions that a parameter passes through, the given one first."""
        steps = [f"{function.name}({parameter})"]
        visited = {(id(function.node), parameter)}
        while parameter in self._handed_on(function):
            function, parameter = self._handed_on(function)[parameter]
            if (id(function.node), parameter) in visited:
                break
            visited.add((id(function.node), parameter))
            steps.append(f"{function.name}({parameter})")
        return tuple(steps)

    def _handed_on(self, function: Function) -> dict[str, tuple[Function, str]]:
        """Return the callee and its parameter for each parameter that is only handed on."""
        key = id(function.node)
        if key not in self._handed:
            self._handed[key] = dict(self._find_handed_on(function))
        return self._handed[key]

    def _find_handed_on(
        self, function: Function
    ) -> Iterator[tuple[str, tuple[Function, str]]]:
        positional, keywords = function.parameters
        uses: dict[str, list[ast.Name]] = {
            name: [] for name in (*positional, *keywords)
        }
        arguments: dict[int, tuple[ast.Call, int | str]] = {}
        for statement in function.node.body:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and node.id in uses:
                    uses[node.id].append(node)
                elif isinstance(node, ast.Call):
                    arguments.update(_bind_arguments(node))
        for parameter, names in uses.items():
            if len(names) != 1 or id(names[0]) not in arguments:
                continue
            call, position = arguments[id(names[0])]
            callee = self._find_callee(call.func, function)
            received = _bound_parameter(callee, position) if callee else None
            if callee and received:
                yield parameter, (callee, received)

    def _find_callee(self, called: ast.expr, caller: Function) -> Function | None:
        """Return the function of the package that a call names, if the name alone says which."""
        match called:
            case ast.Name(id=name):
                return self._as_function(self._resolve(caller.module, name))
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if (
                caller.owner
            ):
                return self._method(caller.owner, name)
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
                return self._inherited(caller.owner, name) if caller.owner else None
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                target = self._resolve(caller.module, owner)
                if isinstance(target, ast.ClassDef):
                    return self._method(target, name)
                if isinstance(target, str):
                    return self._as_function(self._resolve(target, name))
        return None

    def _as_function(self, target: ast.AST | str | None) -> Function | None:
        return (
            self.functions.get(id(target)) if isinstance(target, FunctionNode) else None
        )

    def _resolve(self, module: str, name: str) -> ast.AST | str | None:
        """Return the definition that a name of a module stands for, or a module's name."""
        for _ in range(8):  # a chain of exports is shorter
            if f"{module}.{name}" in self.names and name not in self.names.get(
                module, {}
            ):
                return f"{module}.{name}"
            target = self.names.get(module, {}).get(name)
            if not isinstance(target, tuple):
                return target
            module, name = target
        return None

    def _method(self, owner: ast.ClassDef, name: str) -> Function | None:
        for node in owner.body:
            if isinstance(node, FunctionNode) and node.name == name:
                return self.functions[id(node)]
        return self._inherited(owner, name)

    def _inherited(self, owner: ast.ClassDef, name: str) -> Function | None:
        for base in owner.bases:
            expression = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(expression, ast.Name):
                target = self._resolve(self.find_module_path[id(owner)], expression.id)
                if isinstance(target, ast.ClassDef) and target is not owner:
                    method = self._method(target, name)
                    if method:
                        return method
        return None


def _index_names(source: Source) -> dict[str, ast.AST | str | tuple[str, str]]:
    """Return what names of a module stand for: a definition, a module, or (module, name)."""
    names: dict[str, ast.AST | str | tuple[str, str]] = {}
    for node in source.nodes:  # imports inside of functions count as the module's
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = (node.module, alias.name)
        elif isinstance(node, ast.Import):
            names.update({a.asname: a.name for a in node.names if a.asname})
    for statement in source.tree.body:
        if isinstance(statement, FunctionNode | ast.ClassDef):
            names[statement.name] = statement
    return names


def _bind_arguments(call: ast.Call) -> Iterable[tuple[int, tuple[ast.Call, int | str]]]:
    """Return the position or keyword of each argument of a call, by the argument's identity."""
    for position, argument in enumerate(call.args):
        if isinstance(argument, ast.Starred):
            break  # positions after it are unknown
        yield id(argument), (call, position)
    for keyword in call.keywords:
        if keyword.arg:
            yield id(keyword.value), (call, keyword.arg)


def _bound_parameter(callee: Function, position: int | str) -> str | None:
    """Return the parameter of a callee that an argument binds."""
    positional, keywords = callee.parameters
    if isinstance(position, str):
        return position if position in (*positional, *keywords) else None
    return positional[position] if position < len(positional) else None


def worst_places(name: str, places: Sequence[Place], limit: int = 10) -> list[Place]:
    """Return the places to begin with, the worst first.

    Where places have values, those with the highest. Imports are added up by the name that is
    imported, all others by file: the place is then the first line, with the name that occurs most
    often.
    """
    if any(place.value != 1 for place in places):
        return sorted(places, key=lambda place: -place.value)[:limit]
    groups: dict[str, list[Place]] = defaultdict(list)
    for place in places:
        groups[place.name if name == PAST_FACES else place.file].append(place)
    ranked = sorted(groups.values(), key=len, reverse=True)[:limit]
    return [
        Place(
            room=group[0].room,
            file=group[0].file,
            line=group[0].line,
            name=Counter(place.name for place in group).most_common(1)[0][0],
            value=len(group),
        )
        for group in ranked
    ]
