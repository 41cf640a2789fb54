"""``Found``: what a search hands back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gnnplace.arrays import IntArray

if TYPE_CHECKING:
    from gnnplace.placers.search.space import SearchSpace


@dataclass(frozen=True)
class Found:
    """A placement as a search hands it back; it may not fit in memory yet.

    Attributes:
        device: device of each op. [n]
        order: all ops; a device runs its ops in this order. [n]
        note: a remark in a few words.
        bound: seconds that the search proved no placement to be below, if it proves anything.
    """

    device: IntArray
    order: IntArray
    note: str = ""
    bound: float = 0.0


def better(space: SearchSpace, one: Found, other: Found) -> Found:
    """The one of less score; the first among equals."""
    return min(one, other, key=lambda found: space.score(found.device, found.order))
