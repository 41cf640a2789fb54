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
    from gnnplace.placers.search.space import NO_BUDGET as NO_BUDGET
    from gnnplace.placers.search.space import SearchSpace as SearchSpace
    from gnnplace.placers.search.space import expired as expired
    from gnnplace.placers.search.space import now as now
    from gnnplace.placers.starts import read_start as read_start
    from gnnplace.placers.starts import space_with_start as space_with_start

__getattr__, __dir__ = lazy_names(__name__)
