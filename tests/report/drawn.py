"""What a drawn picture says, read back from its text."""

from __future__ import annotations

from xml.etree import ElementTree

SPACE = "{http://www.w3.org/2000/svg}"


def tooltips(svg: str) -> list[str]:
    """Of all marks, in the order in which they were drawn."""
    return [
        title.text or "" for title in ElementTree.fromstring(svg).iter(f"{SPACE}title")
    ]


def texts(svg: str) -> list[str]:
    """All words and numbers that are seen."""
    return [
        text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SPACE}text")
    ]
