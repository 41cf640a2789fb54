"""Uploads the release of the data set to Zenodo, as a draft that a person publishes.

    ZENODO_TOKEN=... python -m benchmarks.upload data_sets/release
    ZENODO_TOKEN=... python -m benchmarks.upload data_sets/release --sandbox

It prints the draft's page and the DOI reserved for it. The second is on sandbox.zenodo.org. Nothing
is published here: the draft's page has the button. What to do before and after stands in
``docs/howto/publish-data.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from gnnplace.errors import GnnplaceError, InputError
from gnnplace.files import read_json
from gnnplace.train.data.croissant import FILE
from gnnplace.train.data.datasets import verify

HOST, SANDBOX = "https://zenodo.org", "https://sandbox.zenodo.org"
TOKEN = "ZENODO_TOKEN"
Send = Callable[[Request], Any]


def metadata(folder: Path) -> dict[str, Any]:
    """Return what the archive says of a folder, from its ``croissant.json``."""
    data = read_json(folder / FILE)
    return {
        "upload_type": "dataset",
        "title": data["name"],
        "description": data["description"],
        "creators": [{"name": data["creator"]["name"]}],
        "license": "cc-by-4.0",
        "version": data["version"],
    }


def send(request: Request) -> Any:
    """Return the answer to a request, as data."""
    with urlopen(request) as answer:
        return json.loads(answer.read() or b"{}")


def upload(folder: Path, token: str, host: str, ask: Send = send) -> str:
    """Make a draft with all files of a folder; return its page and the DOI reserved for it.

    Raises:
        InputError: There is no token.
        FormatError: The folder's files are not those of its checksums.
    """
    if not token:
        raise InputError(
            f"{TOKEN}: is not set; make a token with deposit:write on {host}"
        )
    verify(folder)
    head = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    body = json.dumps({"metadata": metadata(folder)}).encode()
    draft = ask(Request(f"{host}/api/deposit/depositions", body, head, method="POST"))
    for path in sorted(folder.iterdir()):
        target = f"{draft['links']['bucket']}/{path.name}"
        octets = head | {"Content-Type": "application/octet-stream"}
        ask(Request(target, path.read_bytes(), octets, method="PUT"))
    doi = draft["metadata"]["prereserve_doi"]["doi"]
    return f"{draft['links']['html']}\nDOI {doi}, from the moment that the draft is published"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Uploads a release as a draft to Zenodo."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sandbox", action="store_true", help="Use the sandbox.")
    args = parser.parse_args(argv)
    try:
        host = SANDBOX if args.sandbox else HOST
        print(upload(args.folder, os.environ.get(TOKEN, ""), host))
    except GnnplaceError as error:
        print(f"upload: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
