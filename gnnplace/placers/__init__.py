"""The placers room: one algorithm a file, behind one contract (``base.Placer``).

``registry.PLACERS`` is the table of all of them.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.placers.base import Found as Found
    from gnnplace.placers.base import Placer as Placer
    from gnnplace.placers.base import Result as Result
    from gnnplace.placers.rows import parse_name as parse_name
    from gnnplace.placers.search.space import SearchSpace as SearchSpace

__getattr__, __dir__ = lazy_names(__name__)
