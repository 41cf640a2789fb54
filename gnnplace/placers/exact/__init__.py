"""The exact placer: a CP-SAT model, a bound, and a tree over the devices of units."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.placers.exact.placer import Exact as Exact

__getattr__, __dir__ = lazy_names(__name__)
