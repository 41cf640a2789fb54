"""Names of a package that are imported when somebody first uses them.

A package lists its public names once, as imports under ``if TYPE_CHECKING:``, and assigns
``__getattr__, __dir__ = lazy_names(__name__)``. Type checkers follow the imports; at run time
``__getattr__`` reads the same list, so that to import one module of the package does not import all
of them. A command that needs no kernel then starts without numba, and one that needs no model
without torch.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path


def _imports_under_if(path: Path) -> dict[str, tuple[str, str]]:
    """Return module and original name of what a file imports under an ``if``, by public name."""
    places: dict[str, tuple[str, str]] = {}
    for block in ast.parse(path.read_text()).body:
        if not isinstance(block, ast.If):
            continue
        for node in block.body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    places[alias.asname or alias.name] = node.module or "", alias.name
    return places


def lazy_names(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package, for the names under ``TYPE_CHECKING``.

    Args:
        package: Name of the package, ``__name__`` in its ``__init__.py``.
    """

    @cache
    def homes() -> dict[str, tuple[str, str]]:
        """Return, for each public name, its module and its name there."""
        source = sys.modules[package].__file__
        assert source is not None
        return _imports_under_if(Path(source))

    def get_name(name: str) -> object:
        if name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = homes()[name]
        if module == package:  # a submodule
            return import_module(f"{module}.{original}")
        owner = import_module(module)
        try:
            value = getattr(owner, original)
        except AttributeError:
            # What ``from module import name`` binds else: a submodule.
            submodule = f"{module}.{original}"
            if find_spec(submodule) is None:
                raise ImportError(
                    f"cannot import name {original!r} from {module!r}"
                ) from None
            value = import_module(submodule)
        vars(sys.modules[package])[name] = value
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes()})

    return get_name, list_names
