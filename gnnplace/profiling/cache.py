"""A cache of measurements on disk, keyed by content: program, versions, machine."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch

from gnnplace.cluster.machine import processor_name
from gnnplace.errors import FormatError, GnnplaceError
from gnnplace.files import read_json, write_json
from gnnplace.tracing.program import Program

VERSION = 1  # of what is measured and how; a change makes old entries unread


def cache_folder() -> Path:
    """`$GNNPLACE_CACHE`, else `gnnplace` in `$XDG_CACHE_HOME` or `~/.cache`."""
    own = os.environ.get("GNNPLACE_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gnnplace"


def program_digest(program: Program) -> str:
    """SHA-256 of what a program computes: ops, arguments, shapes; not the numbers in tensors."""
    text = hashlib.sha256()
    for op in program.ops:
        target = f"{getattr(op.target, '__module__', '')}.{op.target}"
        name = getattr(op.target, "__name__", target)
        text.update(repr((op.name, name, op.args, op.kwargs, op.results)).encode())
    for name, info in program.values.items():
        text.update(repr((name, info)).encode())
    return text.hexdigest()


@cache
def machine() -> dict[str, Any]:
    """What measured times depend on beside the program."""
    return {
        "cpu": processor_name(),
        "system": platform.system(),
        "torch": torch.__version__,
        "version": VERSION,
    }


def key(*parts: Any) -> str:
    """Key of what the parts and this machine determine."""
    return hashlib.sha256(repr((parts, sorted(machine().items()))).encode()).hexdigest()


def load(room: str, name: str) -> Any:
    """The entry of a key, or None: a missing or broken one is measured anew."""
    try:
        return read_json(cache_folder() / room / f"{name}.json")["value"]
    except (FormatError, KeyError, TypeError):
        return None


def store(room: str, name: str, value: Any) -> None:
    """Write an entry atomically; a folder that cannot be written to is no error."""
    folder = cache_folder() / room
    with contextlib.suppress(OSError, GnnplaceError):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{name}.json", {"machine": machine(), "value": value})
