"""Private names of other libraries: one file a library, and a line where one is missing."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

from gnnplace.errors import VersionError
from gnnplace.foreign import WORKING_VERSIONS, check_version, read_private, release

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gnnplace"
LIBRARIES = {
    "accelerate", "jsonargparse", "lightning", "llvmlite", "matplotlib",
    "networkx", "numba", "numpy", "optuna", "ortools", "pydantic", "rich", "scipy", "sqlalchemy",
    "torch", "torch_geometric", "transformers",
}  # fmt: skip
OWNERS = (
    "foreign.py",
    "geometric_names.py",
    "graph/jit.py",
    "lightning_names.py",
    "torch_names.py",
    "transformers_names.py",
)
"""Where private names may stand. `jit.py` is numba's: it writes parts of its compiler anew."""
NAMES_MAX = 0
"""Private names that other files still reach through a library's module. May only fall."""
ATTRIBUTES_MAX = 46
"""Private attributes that other files still read of a library's objects. May only fall."""
OF_PYTHON = {"_replace", "_asdict", "_fields", "_exit", "_getframe", "_config"}
PRIVATE = re.compile(r"(?:^|\.)_[^_]")


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Yield every module of the package that may not have private names of libraries."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(OWNERS):
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def dotted(node: ast.AST) -> str:
    """Return a chain such as ``torch.nn.Module``; nothing for another expression."""
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return node.id if isinstance(node, ast.Name) else ""


def imports_of(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the local name of everything that is imported, and its full path."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                yield alias.asname or root, alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def private_names() -> list[str]:
    """Return private names that are imported from a library or reached through its modules.

    Those of ATen's ops, such as `torch.ops.aten._to_copy`, are no names of Python.
    """
    lines = []
    for file, tree in trees():
        libraries = {
            k: v for k, v in imports_of(tree) if v.partition(".")[0] in LIBRARIES
        }
        paths = {path for path in libraries.values() if PRIVATE.search(path)}
        for node in ast.walk(tree):
            root, _, attributes = dotted(node).partition(".")
            if root in libraries and PRIVATE.search(attributes):
                paths.add(f"{libraries[root]}.{attributes}")
        # A chain holds shorter ones: `torch._C._nn` is one name, not two.
        longest = [p for p in paths if not any(q.startswith(f"{p}.") for q in paths)]
        lines += [
            f"{file}: {path}" for path in longest if not path.startswith("torch.ops.")
        ]
    return lines


def private_attributes() -> list[str]:
    """Return private attributes of objects that no class of the package has."""
    reads: list[tuple[str, int, str]] = []
    own: set[str] = set()
    for file, tree in trees():
        libraries = {k for k, v in imports_of(tree) if v.partition(".")[0] in LIBRARIES}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                own.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                own.add(node.target.id)
            elif isinstance(node, ast.Attribute) and PRIVATE.match(node.attr):
                root = dotted(node).partition(".")[0]
                if root in ("self", "cls") and isinstance(node.value, ast.Name):
                    own.add(node.attr)
                elif root not in libraries and root != "aten":
                    # Ops, as in `aten._to_copy`.
                    reads.append((file, node.lineno, node.attr))
    return [
        f"{f}:{line}: {name}" for f, line, name in reads if name not in own | OF_PYTHON
    ]


def test_no_other_file_has_private_names() -> None:
    names = private_names()
    assert len(names) <= NAMES_MAX, "\n".join(names)
    assert len(names) == NAMES_MAX, f"NAMES_MAX can fall to {len(names)}"


def test_no_other_file_reads_more_private_attributes() -> None:
    attributes = private_attributes()
    assert len(attributes) <= ATTRIBUTES_MAX, "\n".join(attributes)
    assert len(attributes) == ATTRIBUTES_MAX, (
        f"ATTRIBUTES_MAX can fall to {len(attributes)}"
    )


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*_names.py")), ids=str)
def test_every_name_is_there(path: Path) -> None:
    module = import_module(f"gnnplace.{path.stem}")
    for name in dir(module):
        assert getattr(module, name) is not None or name.startswith("__")


def find_module_path(text: str, folder: Path) -> ModuleType:
    """Return a module with that text, such as `torch_names.py`."""
    path = folder / "sample_names.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("sample_names", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import_module("sys").modules["sample_names"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "missing", ["torch import _gone as gone", "torch._gone import x as gone"]
)
def test_a_missing_name_says_which_releases_work(missing: str, tmp_path: Path) -> None:
    module = find_module_path(
        "from typing import TYPE_CHECKING\n"
        "from gnnplace.foreign import foreign_names\n"
        f"if TYPE_CHECKING:\n    from {missing}\n"
        "__getattr__, __dir__ = foreign_names(__name__, 'torch')\n",
        tmp_path,
    )
    message = (
        r"torch 2\.\S+ lacks what gnnplace needs of it \(.*_gone.*\); torch 2\.12 to "
    )
    with pytest.raises(VersionError, match=message) as caught:
        _ = module.gone
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    with pytest.raises(AttributeError, match="other"):
        _ = module.other


def test_a_missing_attribute_says_which_releases_work() -> None:
    with pytest.raises(
        VersionError, match=r"lightning \S+ lacks .*'_gone'.*pip install 'light"
    ):
        read_private(object(), "_gone", "lightning")


@pytest.mark.parametrize("version", ["2.11.0", "2.15.0+cpu", "3.0.0a0+gitf00"])
def test_a_release_that_was_not_tried_is_one_line(version: str) -> None:
    with pytest.raises(
        VersionError, match=r"gnnplace was not tried .*'torch>=2.12,<2.15'"
    ) as told:
        check_version("torch", version)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "version", ["2.12.0", "2.13.0+cpu", "2.14.9", "2.14.0a0+gitf00"]
)
def test_a_release_in_the_range_is_taken(version: str) -> None:
    check_version("torch", version)


def test_the_releases_are_those_that_are_declared_and_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    extras = project["optional-dependencies"].values()
    texts = [*project["dependencies"], *(text for extra in extras for text in extra)]
    declared = {r.name: r.specifier for r in map(Requirement, texts)}
    tried = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
        if "==" in line
    )
    for library, (first, last) in WORKING_VERSIONS.items():
        name = library.replace("_", "-")
        assert f">={first}" in map(str, declared[name])
        # The tests run with one release of torch, the first and the last are tried by hand.
        assert last == tried[name] or library == "torch"
        assert release(first) <= release(tried[name]) <= release(last)
