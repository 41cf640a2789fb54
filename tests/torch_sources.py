"""Private names of torch, looked up in the sources of other versions: ``make torch-names``.

A version is downloaded as a wheel (that for macOS, which is a tenth of the others), read, and
neither installed nor run. For every name of torch that the package reaches through
``gnnplace.torch_names`` the report says whether the version has it, and whether a function takes
other arguments. C's own names are looked up in torch's stubs. What a name does is not checked: run
the tests with a version for that.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from zipfile import ZipFile

import torch

from gnnplace.foreign import WORKING_VERSIONS
from tests.test_foreign import PACKAGE, dotted, imports_of

NAMES_FILE = PACKAGE / "torch_names.py"
PLATFORM = "macosx_14_0_arm64"
OWN_MODULE = "gnnplace.torch_names"
SPELLINGS = {
    "torch.utils.checkpoint._checkpoint_without_reentrant_generator": (
        "torch.utils.checkpoint._checkpoint_without_reentrant_generator_impl",
    ),
    "torch.distributed.all_gather_into_tensor": (
        "torch.distributed.all_gather_single",
    ),
    "torch.distributed.reduce_scatter_tensor": (
        "torch.distributed.reduce_scatter_single",
    ),
    "builtins.RuntimeError": (
        "torch._subclasses.fake_tensor.FakeTensorDeviceMismatchError",
    ),
}
"""Names in place of which another one is taken where a version has it (`gnnplace.torch_names`)."""


def used_names() -> list[str]:
    """Return full paths of all names of torch that the package reaches through its list."""
    tree = ast.parse(NAMES_FILE.read_text(encoding="utf-8"))
    listed = {
        local: path for local, path in imports_of(tree) if path.startswith("torch.")
    }
    paths = set(listed.values())
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if "torch_names" not in text:
            continue
        module = ast.parse(text)
        of_torch = {
            local: listed[path.removeprefix(f"{OWN_MODULE}.")]
            for local, path in imports_of(module)
            if path.removeprefix(f"{OWN_MODULE}.") in listed
            and path.startswith(OWN_MODULE)
        }
        for node in ast.walk(module):
            root, _, attributes = dotted(node).partition(".")
            if root in of_torch and attributes:
                paths.add(f"{of_torch[root]}.{attributes}")
    paths |= {name for pair in SPELLINGS.items() for name in (pair[0], *pair[1])}
    return sorted(paths)


@dataclass(frozen=True)
class Sources:
    """The Python files and stubs of one version of torch.

    Attributes:
        read: Returns the text of a file by its path, such as ``torch/utils/checkpoint.py``; None
            if there is none.
    """

    read: Callable[[str], str | None]
    _trees: dict[str, ast.Module | None] = field(default_factory=dict)

    @classmethod
    def of_folder(cls, folder: Path) -> Sources:
        """Return the sources of an installed version, as its package lies in a folder."""

        def read(name: str) -> str | None:
            path = folder.parent / name
            return path.read_text(encoding="utf-8") if path.is_file() else None

        return cls(read)

    @classmethod
    def of_wheel(cls, wheel: Path) -> Sources:
        """Return the sources in a wheel."""
        with ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.startswith("torch/")]
            texts = {
                n: archive.read(n).decode()
                for n in names
                if n.endswith((".py", ".pyi"))
            }
        return cls(texts.get)

    def find(self, path: str) -> ast.AST | None:
        """Return the node that defines a name; None if no source does."""
        parts = path.split(".")
        for length in range(len(parts), 0, -1):
            module = self.module(parts[:length])
            if module is not None:
                return self.find_in(module, parts[:length], parts[length:])
        return None

    def module(self, parts: list[str]) -> ast.Module | None:
        """Return a module's tree; None if it has no file."""
        stem = "/".join(parts)
        for name in (
            f"{stem}.py",
            f"{stem}/__init__.py",
            f"{stem}.pyi",
            f"{stem}/__init__.pyi",
        ):
            if name not in self._trees:
                text = self.read(name)
                self._trees[name] = None if text is None else ast.parse(text)
            if self._trees[name] is not None:
                return self._trees[name]
        return None

    def find_in(
        self, owner: ast.AST, module: list[str], names: list[str]
    ) -> ast.AST | None:
        """Return the node of a dotted name in a module or a class."""
        if not names:
            return owner
        name, *inner = names
        for node in definitions(owner):
            if isinstance(node, ast.ImportFrom):
                found = self.find_imported(node, module, name)
                if found is not None:
                    return self.find_in(found, module, inner) if inner else found
            elif name in defined_names(node):
                # What stands behind an assigned name is not followed.
                return (
                    self.find_in(node, module, inner)
                    if isinstance(node, ast.ClassDef)
                    else node
                )
        return None

    def find_imported(
        self, node: ast.ImportFrom, module: list[str], name: str
    ) -> ast.AST | None:
        """Return what ``from ... import`` makes of a name; None if it is not among its names."""
        alias = next((a for a in node.names if name == (a.asname or a.name)), None)
        if alias is None and not any(a.name == "*" for a in node.names):
            return None
        is_package = self.module([*module, "__init__"]) is not None
        base = module[: len(module) - node.level + is_package] if node.level else []
        source = [*base, *(node.module or "").split(".")] if node.module else base
        found = self.find(".".join([*source, alias.name if alias else name]))
        return found if found is not None or alias is None else node


def definitions(owner: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a module or a class, those under ``if``, ``try``, ``with`` too."""
    for node in getattr(owner, "body", []):
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from definitions(node)
            for branch in (getattr(node, "orelse", []), *getattr(node, "handlers", [])):
                yield from branch if isinstance(branch, list) else branch.body


def defined_names(node: ast.stmt) -> set[str]:
    """Return the names that a statement binds."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, ast.Import):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [getattr(node, "target", None)]
    )
    return {
        inner.id
        for target in targets
        if target is not None
        for inner in ast.walk(target)
        if isinstance(inner, ast.Name)
    }


def arguments_of(node: ast.AST | None) -> list[str] | None:
    """Return the names of a function's arguments; None of anything else."""
    if not isinstance(node, ast.FunctionDef):
        return None
    given = node.args
    names = [one.arg for one in (*given.posonlyargs, *given.args)]
    names += [f"*{given.vararg.arg}"] if given.vararg else []
    names += [f"{one.arg}=" for one in given.kwonlyargs]
    return names + ([f"**{given.kwarg.arg}"] if given.kwarg else [])


@dataclass(frozen=True)
class VersionReport:
    """How a version differs from the installed one, in the names that are used.

    Attributes:
        missing: Names that only the installed version has.
        added: Names that only this version has.
        changed: Functions that take other arguments, and which.
    """

    missing: tuple[str, ...]
    added: tuple[str, ...]
    changed: tuple[str, ...]


def compare(names: list[str], installed: Sources, version: Sources) -> VersionReport:
    """Compare the names of two versions. Those that neither has in its sources are C's own."""
    missing, added, changed = [], [], []
    for name in names:
        here, there = installed.find(name), version.find(name)
        if (here is None) != (there is None):
            (missing if there is None else added).append(name)
        before, after = arguments_of(here), arguments_of(there)
        if before is not None and after is not None and before != after:
            changed.append(f"{name}: ({', '.join(before)}) is ({', '.join(after)})")
    return VersionReport(tuple(missing), tuple(added), tuple(changed))


def download(version: str, folder: Path) -> Path:
    """Return the wheel of a version, downloaded into a folder.

    Raises:
        SystemExit: The package index has none.
    """
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
    ]
    kind = ["--no-deps", "--only-binary=:all:", "--platform", PLATFORM]
    done = subprocess.run(
        [*pip, *kind, "--dest", folder, f"torch=={version}"], check=False
    )
    wheels = sorted(folder.glob(f"torch-{version}-*.whl"))
    if done.returncode or not wheels:
        sys.exit(f"torch {version}: the package index has no wheel for {PLATFORM}")
    return wheels[0]


@cache
def installed_sources() -> Sources:
    """Return the sources of the torch that is installed."""
    return Sources.of_folder(Path(torch.__file__).parent)


def main(versions: list[str]) -> int:
    """Print a report for each version; return 1 if one lacks a name that has no other spelling."""
    names, lacking = used_names(), 0
    print(f"{len(names)} names; torch {torch.__version__} is installed")
    spelled = {name for pair in SPELLINGS.items() for name in (pair[0], *pair[1])}
    for version in versions or list(WORKING_VERSIONS["torch"]):
        full = version if version.count(".") > 1 else f"{version}.0"
        with tempfile.TemporaryDirectory() as folder:
            sources = Sources.of_wheel(download(full, Path(folder)))
        report = compare(names, installed_sources(), sources)
        lines = [f"lacks {name}" for name in report.missing]
        lines += [f"has {name}" for name in report.added]
        lines += [f"other arguments: {line}" for line in report.changed]
        print("\n  ".join([f"torch {full}: {len(lines)} differences", *lines]))
        lacking += len(set(report.missing) - spelled)
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
