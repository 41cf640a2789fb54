"""Files beside a launch file, which it names and is read with."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from gnnplace.errors import GnnplaceError
from gnnplace.files import read_text

LARGEST = 1 << 20  # bytes
FOLDERS_ABOVE = 6


def read_neighbour(source: str, path: str) -> str | None:
    """Return the text of a file that stands beside a launch file.

    Args:
        source: Path of the launch file.
        path: The path that the launch file has; its name alone counts if it leads elsewhere. It
            may also begin at a folder above, where such runs are started from.

    Returns:
        None where there is no such file, or it cannot be read.
    """
    folder = Path(source).parent
    name = PurePosixPath(path).name
    if not name or name == Path(source).name:
        return None
    above = [parent / path for parent in folder.resolve().parents[:FOLDERS_ABOVE]]
    for candidate in (folder / path, folder / name, *above):
        try:
            if candidate.is_file() and candidate.stat().st_size <= LARGEST:
                return read_text(candidate)
        except (OSError, ValueError, GnnplaceError):
            continue
    return None
