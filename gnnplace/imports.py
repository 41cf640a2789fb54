"""Code that a user names: ``module:name`` or ``path/to/file.py:name``, found and imported.

A module is looked for in the current directory too. A file is imported as Python would import it
with its folder on the path, so that it finds the files beside it; one of a package (a folder with
``__init__.py``) under its name in the package. Where another module has that name already, the file
gets one of its own. What goes wrong is told in one line that begins with what was named.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from gnnplace.errors import InputError, suggestion

SUFFIX = ".py"
LIBRARY = sysconfig.get_paths()["stdlib"]
OWN = tuple(
    str(Path(__file__).parent / name) for name in ("imports.py", "tracing", "placers")
)


def find_callable(module: str, name: str, spec: str) -> Callable[..., Any]:
    """Return the function of a module or a file.

    Args:
        module: A module's name, or the path of a file that ends in ``.py``.
        name: The function there, or a dotted path to it.
        spec: What the user wrote it for, such as ``model 'mine:build'``; errors begin with it.

    Raises:
        InputError: there is no such file, module or function, or its code failed.
    """
    with importable(module):
        try:
            if module.endswith(SUFFIX):
                holder = _import_file(module, spec)
            else:
                holder = _import_by_name(module)
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            raise InputError(
                f"{spec}: cannot import {module!r}: {said(error)}{_hint_at_file(module, error)}"
            ) from None
    target: Any = holder
    for part in name.split("."):
        target = getattr(target, part, None)
    if not callable(target):
        near = suggestion(name, _functions(holder))
        raise InputError(f"{spec}: module {module!r} has no callable {name!r}{near}")
    return target


@contextmanager
def importable(module: str) -> Iterator[None]:
    """Let the files beside a module be imported inside.

    A console script has its own folder on the path instead of the current one.
    """
    if module.endswith(SUFFIX):
        folders = [str(_root(Path(module).resolve()))]
    else:
        folders = []
    folders.append(os.getcwd())
    sys.path[:0] = folders
    try:
        yield
    finally:
        for folder in folders:
            with suppress(ValueError):  # the code may have changed the path itself
                sys.path.remove(folder)


def said(error: BaseException) -> str:
    """Return what an error of the user's code says, and the last line of that code."""
    lines = str(error).splitlines() or ["no message"]
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        file = frame.filename
        if file.startswith((*OWN, "<")):
            continue
        # Python's own library is not the user's, but what he installed may be.
        if file.startswith(LIBRARY) and "site-packages" not in file:
            continue
        place = f" at {file}:{frame.lineno}"
    return f"{type(error).__name__}: {lines[0]}{place}"


def _import_by_name(module: str) -> ModuleType:
    importlib.invalidate_caches()
    return importlib.import_module(module)


def _import_file(module: str, spec: str) -> ModuleType:
    path = Path(module).resolve()
    if not path.is_file():
        raise InputError(f"{spec}: there is no file {module!r}; check the path")
    parts = path.relative_to(_root(path)).with_suffix("").parts
    name = ".".join(parts)
    is_importable = all(part.isidentifier() for part in parts)
    if is_importable and parts[0] not in sys.stdlib_module_names:
        loaded = sys.modules.get(name)
        # Another module may have that name already.
        if loaded is None or _find_file(loaded) == path:
            module_of_name = _import_by_name(name)
            if _find_file(module_of_name) == path:
                return module_of_name
    return _import_by_itself(path)


def _root(path: Path) -> Path:
    """Return the folder that must be on the path: the first one above that is no package."""
    folder = path.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _find_file(module: ModuleType) -> Path | None:
    if module.__file__:
        return Path(module.__file__).resolve()
    return None


def _import_by_itself(path: Path) -> ModuleType:
    """Return a file under a name of its own."""
    name = f"{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    try:
        module_spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _functions(holder: object) -> list[str]:
    """Return the names of public functions and classes that a module defines itself."""
    module_name = getattr(holder, "__name__", None)
    names = []
    for name, value in vars(holder).items():
        if name.startswith("_") or not callable(value):
            continue
        if getattr(value, "__module__", None) == module_name:
            names.append(name)
    return names


def _hint_at_file(module: str, error: BaseException) -> str:
    """Return a hint where a module's file lies, if the import failed because it was not found."""
    missing = (
        isinstance(error, ModuleNotFoundError)
        and error.name == module.partition(".")[0]
    )
    path = Path(module.replace(".", "/") + SUFFIX)
    if not missing:
        return ""
    if path.is_file():
        return f"; write {path}:NAME for a file"
    return "; start in its folder, or write the path of its file, as in path/to/file.py:NAME"
