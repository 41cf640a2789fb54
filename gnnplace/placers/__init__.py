"""The placers room: one algorithm a file, behind one contract (``base.Placer``).

``registry.PLACERS`` is the table of all of them.
"""

from gnnplace.placers.base import Found as Found
from gnnplace.placers.base import Placer as Placer
from gnnplace.placers.base import Result as Result
from gnnplace.placers.search.space import SearchSpace as SearchSpace
