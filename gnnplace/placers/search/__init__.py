"""What every search stands on: the space, its moves, repair, the clock, chunks and groups."""

from gnnplace.placers.search.space import SearchSpace as SearchSpace
