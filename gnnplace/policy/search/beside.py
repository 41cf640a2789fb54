"""Search on groups of ops beside the search on the ops themselves, by turns.

Where a transfer takes longer than an op, a move of one op gains nothing until its neighbours have
followed, and a search on ops stays near its start. So a problem of some size gets a second search,
on ``GROUPS`` groups (``placers.search.coarse_problem``), from decodes of its own. What it finds is
projected in the order in which the groups start, justified, and offered to the search on ops. It
begins once that has cost ``BEGUN``, so that short budgets are the ops' alone, and gets a share of
the moves times ops: ``LEADING`` as long as its last placement was the best of all, ``FOLLOWING``
else. The scheme is multilevel search by turns, as in ``coarse-annealing``.

Where the batch is cut and memory is tight, a problem of some size gains from moves of whole chunks
(``placers.narrow``), or from moves of ops, and which is not known before. So both have their turn
(``NarrowBeside``): the search on narrow groups does ``SHARE`` of the work of that on ops, and
offers what it expanded.

Turns depend on what was done, never on the budget.
Complexity: one coarsening, then as ``anytime`` and ``placers.narrow``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gnnplace.placers.coarse_annealing import GROUPS, MOST_OPS, has_time, projected
from gnnplace.placers.narrow import NarrowSearch
from gnnplace.placers.search.clock import expired
from gnnplace.placers.search.coarse_problem import CoarseProblem, coarse_problem
from gnnplace.placers.search.found import Found
from gnnplace.placers.search.space import SearchSpace
from gnnplace.policy.search.anytime import Anytime
from gnnplace.simulation.justification import justify

BEGUN = 10_000_000  # moves times ops of the search on ops before that on groups begins
LEADING, FOLLOWING = 1.0, 0.1  # moves times ops of the search on groups over those of the ops'
LEAST_OPS = 800  # of a problem that gets groups; at most ``MOST_OPS`` of one micro-batch

Begin = Callable[[SearchSpace, np.random.Generator, float], Anytime | None]
SHARE = 1.0  # moves times ops of the search on groups over those of the ops'


class Beside:
    """The search on groups of one problem.

    Args:
        space: the problem whose ops are grouped.
        begin: makes the search on groups; None where there is no time.
        rng: of the search on groups.
        open: False leaves it out.
    """

    def __init__(
        self, space: SearchSpace, begin: Begin, rng: np.random.Generator, *, open: bool = True
    ) -> None:
        self.space, self.begin, self.rng = space, begin, rng
        self.open = open and worth_it(space)
        self.groups: tuple[CoarseProblem, Anytime] | None = None
        self.shown, self.share = np.inf, LEADING

    @property
    def note(self) -> str:
        """What was done, empty if nothing was."""
        if self.groups is None:
            return ""
        coarse, search = self.groups
        return f"; {search.moves} moves of {coarse.problem.num_ops} groups"

    def turn(self, local: Anytime, deadline: float) -> None:
        """Cycles of groups while it is their turn; what they find is offered to ``local``."""
        if not self.open or local.ops < BEGUN or expired(deadline):
            return
        self.groups = self.groups or self._begun(deadline)
        self.open = self.groups is not None
        while self.groups and not expired(deadline):
            coarse, search = self.groups
            if search.ops >= self.share * (local.ops - BEGUN):
                break
            search.cycle(deadline)
            self._offer(coarse, search, local, deadline)

    def _begun(self, deadline: float) -> tuple[CoarseProblem, Anytime] | None:
        """Groups and a search on them; None where there is nothing to group, or no time."""
        if not has_time(self.space, deadline):
            return None
        count = int(GROUPS * self.space.problem.microbatches**0.5)
        coarse = coarse_problem(self.space.problem, count)
        if coarse is None:
            return None
        search = self.begin(SearchSpace(coarse.problem), self.rng, deadline)
        return None if search is None else (coarse, search)

    def _offer(
        self, coarse: CoarseProblem, search: Anytime, local: Anytime, deadline: float
    ) -> None:
        """Projects what is new, and sees whether that leads."""
        if search.state.score[1] < self.shown:
            self.shown = float(search.state.score[1])
            device = search.state.best_device.copy()
            seen = search.space.simulator.run(device, search.state.best_order)
            found = Found(device, seen.order)
            fine = projected(self.space, coarse, found, deadline)
            once = justify(self.space.compiled, self.space.reversed, fine.device, fine.order)
            orders = fine.order, once
            scores = [self.space.score(fine.device, order) for order in orders]
            best = int(np.argmin(scores))
            self.share = LEADING if scores[best] < local.state.score[1] else FOLLOWING
            local.offer(fine.device, orders[best], scores[best])


def worth_it(space: SearchSpace) -> bool:
    """Whether the problem is of a size for groups."""
    ops = space.problem.num_ops
    return ops >= LEAST_OPS and ops <= MOST_OPS * space.problem.microbatches


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
