"""Data sets of others that do not come with the package: copied from a clone of their repository.

Their folder has a description (``croissant.json``), which says where in the repository each file
stands and what its SHA-256 is.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from gnnplace.errors import FormatError, InputError
from gnnplace.files import read_text, write_text
from gnnplace.train.data.croissant import FILE
from gnnplace.train.data.datasets import SHIPPED_FOLDERS, SUMS, verify


def find_described_folder(folder: str | Path) -> Path | None:
    """Return the folder that describes a set of that name: itself, else the shipped one."""
    name = Path(folder).resolve().name
    candidates = [Path(folder), *(shipped / name for shipped in SHIPPED_FOLDERS)]
    return next((path for path in candidates if (path / FILE).is_file()), None)


def how_to_collect(folder: str | Path) -> str | None:
    """Return the commands that bring the files of a set; None if they come with the package."""
    described = find_described_folder(folder)
    if described is None:
        return None
    data = json.loads(read_text(described / FILE))
    if not any("://" in entry["contentUrl"] for entry in data["distribution"]):
        return None
    return f"git clone {data['url']} CLONE, then gnnplace data collect {folder} --from CLONE"


def path_in_clone(address: str) -> str:
    """Return the path of https://raw.githubusercontent.com/OWNER/NAME/COMMIT/PATH."""
    return address.split("/", 6)[6]


def collect_data(folder: str | Path, clone: str | Path) -> int:
    """Copy the files of a data set from a clone of the repository that has them.

    Args:
        folder: Where they go; its name is that of the set.
        clone: A folder with the repository's files, at the commit of the description or another
            that has the same files.

    Returns:
        How many there are.

    Raises:
        InputError: No such set is described, it comes with the package, or the folder cannot be
            made.
        FormatError: A file is not in the clone, or is another than described.
    """
    described = find_described_folder(folder)
    if described is None or how_to_collect(folder) is None:
        raise InputError(
            f"data: {str(folder)!r} names no set that is collected from a clone"
        )
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder {str(folder)!r}: {error.strerror}") from None
    entries = json.loads(read_text(described / FILE))["distribution"]
    for entry in entries:
        path = Path(clone) / path_in_clone(entry["contentUrl"])
        if not path.is_file():
            raise FormatError(
                f"{clone}: no file {path.relative_to(clone)}; is it the right clone?"
            )
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise FormatError(f"{path}: not the file that {described / FILE} describes")
        write_text(target / entry["name"], content.decode("utf-8"))
    if target.resolve() != described.resolve():
        for name in (FILE, SUMS):
            write_text(target / name, read_text(described / name))
    return verify(target)
