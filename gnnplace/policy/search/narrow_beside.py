"""Search on narrow groups beside the search on the ops, by turns: where memory is tight.

Where the batch is cut and memory is tight, a problem of some size gains from moves of whole chunks
(``placers.narrow``), or from moves of ops, and which is not known before. So both have their turn:
the search on groups does ``SHARE`` of the work of that on ops, and offers what it expanded. Turns
depend on what was done, never on the budget. Complexity: as ``placers.narrow`` and ``anytime``.
"""

from __future__ import annotations

from collections.abc import Callable

from gnnplace.placers.narrow import NarrowSearch
from gnnplace.placers.search.clock import expired
from gnnplace.policy.search.anytime import Anytime

SHARE = 1.0  # moves times ops of the search on groups over those of the ops'


class NarrowBeside:
    """The search on narrow groups of one problem.

    Args:
        begin: makes it; called at the first turn.
    """

    def __init__(self, begin: Callable[[], NarrowSearch]) -> None:
        self.begin = begin
        self.groups: NarrowSearch | None = None

    @property
    def note(self) -> str:
        """What was done, empty if nothing was."""
        return "" if self.groups is None else f"; {self.groups.found.note}"

    def turn(self, local: Anytime, deadline: float) -> None:
        """Laps of groups while it is their turn; what they find is offered to ``local``."""
        if expired(deadline):
            return
        self.groups = groups = self.groups or self.begin()
        while groups.chunks.ops < SHARE * local.ops and groups.has_time(deadline):
            groups.lap()
        local.offer(groups.found.device, groups.found.order, groups.expansion.score)
