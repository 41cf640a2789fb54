"""What every search stands on: the space, its moves, repair, the clock, chunks and groups."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.placers.search.space import SearchSpace as SearchSpace

__getattr__, __dir__ = lazy_names(__name__)
