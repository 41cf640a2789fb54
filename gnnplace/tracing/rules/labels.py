"""Labels of axes as text: their parts, groups and order.

What a label means is said in `rule`. This file needs no torch.
"""

from __future__ import annotations

from typing import NamedTuple

Axes = tuple[str | None, ...]


class Exchanged(NamedTuple):
    """The exchange among parts of a label in the forward pass. The backward pass has as much.

    Attributes:
        elements: in a sum over parts, elements of each part; where rows are sent, those of all
            rows of all parts, there and back.
        sent: rows are sent to other parts, an all-to-all; else parts add up, an all-reduce.
    """

    elements: int
    sent: bool = False


def base_label(label: str) -> str:
    """Return a label without its groups."""
    return label.partition("|")[0]


def count_groups(label: str) -> int:
    """Return how many groups of an axis a label cuts; 1 if it cuts the axis itself."""
    return int(label.partition("|")[2] or 1)


def list_labels(entry: str | None) -> tuple[str, ...]:
    """Return the labels that cut an axis, each with its groups; see `Rule`."""
    if entry is None:
        return ()
    return tuple(entry.split("/"))


def first_label(entry: str | None) -> str | None:
    """Return the first of the labels that cut an axis, if it cuts the axis itself."""
    if entry is None:
        first = None
    else:
        first = entry.partition("/")[0]
    if first is None or "|" in first:
        return None
    return first
