"""The user's code among that of torch, of Python and of this package."""

from __future__ import annotations

import inspect
from pathlib import Path

import torch

OUR_MODULES = ("torch.", "gnnplace.")
"""Beginnings of names of modules that are torch's or this package's."""
_ROOMS = (str(Path(__file__).parents[1] / room) for room in ("tracing", "sharding"))
OUR_FILES = (str(Path(torch.__file__).parent), *_ROOMS)
"""Beginnings of paths of files that are torch's or of the rooms that record steps."""
NOT_USERS = (*OUR_FILES, "<")
_PYTHON = str(Path(inspect.__file__).parent)


def is_users(path: str) -> bool:
    """Return whether a file's code is neither torch's nor Python's nor this package's."""
    library = path.startswith(_PYTHON) and "site-packages" not in path
    return not path.startswith(NOT_USERS) and not library


def user_place() -> str:
    """Return the line of the innermost caller outside torch and this package: ' at FILE:LINE'."""
    frame = inspect.currentframe()
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return f" at {frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
