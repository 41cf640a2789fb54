"""What a page's script reads, read back from the page's text."""

from __future__ import annotations

import base64
import json
from html.parser import HTMLParser
from typing import Any

import numpy as np


class _Scripts(HTMLParser):
    """Collects scripts as a browser tells them from markup."""

    def __init__(self) -> None:
        super().__init__()
        self.kind: str | None = None
        self.inside = False
        self.found: list[tuple[str | None, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            self.inside, self.kind = True, dict(attrs).get("id")
            self.found.append((self.kind, ""))

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "script"

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.found[-1] = (self.kind, self.found[-1][1] + data)


def scripts(text: str) -> list[tuple[str | None, str]]:
    """The id and the text of each script element."""
    parser = _Scripts()
    parser.feed(text)
    return parser.found


def held(text: str) -> dict[str, Any]:
    """The data of a page."""
    [found] = [script for name, script in scripts(text) if name == "data"]
    return json.loads(found)


def unpacked(text: str, kind: str) -> np.ndarray:
    """The numbers of a packed column."""
    return np.frombuffer(base64.b64decode(text), dtype=f"<{kind}")


def instants(step: dict[str, Any], text: str) -> np.ndarray:
    """The seconds of a packed column."""
    return step["origin"] + unpacked(text, "u4") * step["tick"]
