"""A drawn SVG made small and self-contained, with a tooltip on each of its marks.

What a plotting library writes names its own address, a DTD's, and an id for every group. Here only
what is seen stays: no address but SVG's namespace, no group but for a reason, coordinates to a
hundredth of a pixel. A group whose id is a JSON list of texts has a mark for each of them; the text
becomes the mark's ``<title>``, which browsers show where the pointer rests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

SPACE = "http://www.w3.org/2000/svg"
FONT = "font-family: 'DejaVu Sans', sans-serif"
NUMBERS = ("d", "x", "y", "transform", "width", "height")
LONG = re.compile(r"-?\d+\.\d+")
UNTURNED = re.compile(r"rotate\(-?0 [^)]*\)")


def told(texts: Sequence[str]) -> str:
    """The id of a group whose marks have these tooltips; "" for a mark without one."""
    return json.dumps(list(texts))


def cleaned(drawn: str, name: str) -> str:
    """The picture as the text of an SVG file that may also stand inside a page.

    Args:
        drawn: an SVG document of matplotlib's.
        name: what the picture is called, for who cannot see it.

    Raises:
        ValueError: a group has not as many marks as texts.
    """
    root = ElementTree.fromstring(drawn)
    for element in root.iter():
        _shorten(element)
    for group in root.iter("g"):
        called = group.attrib.pop("id", "")
        if called.startswith("["):
            _tell(group, json.loads(called))
    _flatten(root)
    ElementTree.indent(root, "")
    box = root.get("viewBox", "0 0 0 0")
    size = dict(zip(("width", "height"), box.split()[2:], strict=True))
    look = {"font-family": "DejaVu Sans, sans-serif", "stroke-linejoin": "round"}
    root.attrib = {
        "xmlns": SPACE,
        "viewBox": box,
        **size,
        "role": "img",
        "aria-label": name,
        **look,
    }
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _shorten(element: Element) -> None:
    """Names without namespaces, short numbers, and no rule that holds for the whole picture."""
    element.tag = element.tag.rpartition("}")[2]
    found = {key.rpartition("}")[2]: text for key, text in element.attrib.items()}
    for key in found.keys() & set(NUMBERS):
        text = " ".join(UNTURNED.sub("", found[key]).split())
        found[key] = LONG.sub(lambda number: f"{round(float(number[0]), 2):g}", text)
    if "C" not in found.get("d", "C"):  # a move's further points are lines
        found["d"] = found["d"].replace(" L ", " ")
    rules = [rule for rule in found.get("style", "").split("; ") if rule != FONT]
    found["style"] = ";".join(rules).replace(": ", ":").replace("#ffffff", "#fff")
    element.attrib = {key: text for key, text in found.items() if text}


def _tell(group: Element, texts: Sequence[str]) -> None:
    """A title in each of the group's marks: its markers, or its paths where it has none."""
    marks = group.findall(".//use") or group.findall(".//path")
    for mark, text in zip(marks, texts, strict=True):
        if text:
            title = Element("title")
            title.text = text
            mark.insert(0, title)


def _flatten(element: Element) -> None:
    """Takes out what is not seen, and groups that say nothing of what is in them."""
    kept: list[Element] = []
    for child in element:
        _flatten(child)
        if child.tag == "g" and not child.attrib:
            kept += list(child)
        elif child.tag not in ("metadata", "style") and (child.tag != "defs" or len(child)):
            kept.append(child)
    element[:] = kept
