"""The folder of a study: made where it is missing; its rows are what is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gnnplace.bench.rows import read_rows
from gnnplace.errors import InputError


def rows_of_folder(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a file in a folder, which is made if it is not there.

    Raises:
        InputError: the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"study folder {str(folder)!r}: {error.strerror}") from None
    return read_rows(folder / name)
