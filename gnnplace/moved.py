"""Where modules are that had another name: an import by the old name is told the new one.

``moved.json`` has a row for every module or room that moved: its old dotted name, with a dot behind
where it was a folder, and its new one, or a sentence where it is gone. The longest name that fits
counts, so a room has one row and what moved elsewhere out of it another. There are no shims: a
recipe's ``class_path``, a ``module:Class`` or an import that names the old place ends in one line
with the new one. An old folder is an empty module until something is asked of it, since Python
imports it before what was inside.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import NoReturn

PACKAGE = __name__.rpartition(".")[0]


class MovedFinder(MetaPathFinder, Loader):
    """The last finder of ``sys.meta_path``: it is asked for what no other found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """An empty module for an old folder; None for what was never in the package.

        Raises:
            ModuleNotFoundError: the module has moved or is gone; says where to look.
        """
        if not fullname.startswith(f"{PACKAGE}."):
            return None
        if f"{fullname.removeprefix(f'{PACKAGE}.')}." in _rows():
            return ModuleSpec(fullname, self, is_package=True)
        if new_name(fullname) is not None:
            raise ModuleNotFoundError(moved_line(fullname), name=fullname)
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Has the empty module refuse what is asked of it."""

        def refuse(name: str) -> NoReturn:
            if name.startswith("__"):
                raise AttributeError(name)
            raise ImportError(moved_line(f"{module.__name__}.{name}"), name=module.__name__)

        module.__getattr__ = refuse  # type: ignore[method-assign]


def moved_line(old: str) -> str:
    """The line that an import by an old name ends in."""
    return f"{old} has moved: {new_name(old)}"


def new_name(old: str) -> str | None:
    """The new dotted name of a module, or a sentence where it is gone; None: it never was one."""
    parts = old.removeprefix(f"{PACKAGE}.").split(".")
    for end in range(len(parts), 0, -1):
        known = ".".join(parts[:end])
        new = _rows().get(known) or _rows().get(f"{known}.")
        if new is not None:
            return new if " " in new else ".".join([PACKAGE, new, *parts[end:]])
    return None


@cache
def _rows() -> dict[str, str]:
    text = Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    return dict(json.loads(text))
