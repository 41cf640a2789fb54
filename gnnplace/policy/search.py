"""Anytime search of the learned placer: cycles from the best, and groups of ops beside them.

A cycle of annealing starts from the best placement so far, cools from one temperature to another,
and has a ``Habit`` (see ``annealing``): cold with new orders, warm, or hot in a fixed order like
the annealing placer. Temperatures start an order of magnitude below that placer's, to keep a good
start. Warm and hot cycles are used as soon as a cycle has several moves for every unit. With few
units a cycle soon has a thousand moves for each; then some cycles start hot enough to forget the
placement and give every move an order of its own, because the best placement may be far from all
good ones. First each kind of cycle runs once. After that the kind that last found a new best
continues, and every third cycle is of a random kind. The result of a long cycle is refined by
passes.

If a transfer takes longer than an op, moving one op gains nothing until its neighbours have moved
too, so that a search on ops stays near its start. Larger problems therefore get a second search, on
``GROUPS`` groups (``placers.search.coarse_problem``), with its own decodes. Its results are
projected in the order in which the groups start, justified, and offered to the search on ops. It
begins after the search on ops has done ``BEGUN`` work, so that short budgets belong to the ops, and
gets a share of the work (moves times ops): ``LEADING`` while its last placement was the best of
all, otherwise ``FOLLOWING``. The scheme is multilevel search by turns, as in ``coarse-annealing``.

If the batch is split into micro-batches and memory is tight, larger problems gain either from moves
of whole chunks (``placers.narrow``) or from moves of ops, and it is not known in advance from
which. So both take turns (``NarrowBeside``): the search on narrow groups does ``SHARE`` of the work
of the search on ops, and offers its expanded placements.

Turns depend on the work done, never on the budget.
Complexity: one coarsening, then as ``annealing`` and ``placers.narrow``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gnnplace.placers import (
    GROUPS,
    MOST_OPS,
    Annealer,
    CoarseProblem,
    Found,
    Habit,
    NarrowSearch,
    SearchSpace,
    SearchState,
    back_to_best,
    coarse_problem,
    has_time,
    is_expired,
    project_placement,
    seed_kernel,
    start_state,
)
from gnnplace.policy.decode.rollouts import Decoded
from gnnplace.policy.refine.passes import RefiningPasses
from gnnplace.policy.refine.refining_state import Placed
from gnnplace.simulation import justify

COLDEST = 1e-4
FEWEST_MOVES, FIRST_OPS = 50, 500_000  # moves of the first cycle, and moves times ops
GROWTH = 1.3  # A cycle's length, relative to the one before
REFINED = 200  # moves of a cycle from which on passes come after it
BEGUN = 10_000_000  # moves times ops of the search on ops before that on groups begins
# Moves times ops of a search on groups over those of the ops'.
# Shares of the time: on narrow groups; on others, whether they lead or not.
SHARE, LEADING, FOLLOWING = (1.0, 1.0, 0.1)
# The least ops of a problem that gets groups; one micro-batch has at most ``MOST_OPS``.
LEAST_OPS = 800


@dataclass(frozen=True)
class Kind:
    """A kind of cycle.

    Attributes:
        hottest: temperature at its start, of the step time.
        shifts: share of shifts in the order.
        loose: how far above its step time a move still gets an order of its own.
        min_moves: moves for each unit that a cycle must have.
    """

    hottest: float
    shifts: float
    loose: float
    min_moves: float


KINDS = (
    Kind(
        hottest=0.003,
        shifts=0.1,
        loose=0.1,
        min_moves=0.0,
    ),
    Kind(
        hottest=0.01,
        shifts=0.2,
        loose=0.1,
        min_moves=10.0,
    ),
    Kind(
        hottest=0.03,
        shifts=0.3,
        loose=0.0,
        min_moves=60.0,
    ),
    Kind(
        hottest=0.2,
        shifts=0.1,
        loose=1.0,
        min_moves=1000.0,
    ),
)


def search_from(space: SearchSpace, start: Decoded) -> SearchState:
    """Return the state of a search that begins where a decode ended; the priority is
    justification's.
    """
    state = start_state(space, space.spread(start.unit_device), start.order)
    back_to_best(space, state)
    return state


class Anytime(Annealer):
    """A search of one problem with one policy, from a start or from other placements.

    Attributes:
        state: where the search is, and the best so far.
        moves: the number of moves tried so far.
        cycles: the number of cycles begun so far.

    Args:
        passes: the passes of refinement, over the best placement of each cycle.
        start: what to start from.
        rng: the source of all randomness.
    """

    call_ops = 20_000

    def __init__(
        self, passes: RefiningPasses, start: Decoded, rng: np.random.Generator
    ) -> None:
        space = passes.space
        super().__init__(
            space, Found(space.spread(start.unit_device), start.order), rng
        )
        back_to_best(space, self.state)
        self.passes = passes
        self.cycles = 0
        self.last = KINDS[0]
        self.length = max(FEWEST_MOVES, FIRST_OPS / space.problem.num_ops)

    def offer(self, found: Found, score: float) -> None:
        if score < self.score:
            super().offer(found, score)
            back_to_best(self.space, self.state)

    def cycle(self, deadline: float) -> None:
        """Run the next cycle, longer than the one before; passes after it; back to the best."""
        kind = self._next()
        score_before = self.score
        seed_kernel(int(self.rng.integers(2**31)))
        fall = COLDEST / kind.hottest
        self.cool(
            Habit(kind.shifts, kind.loose),
            round(self.length),
            lambda share: kind.hottest * fall**share * self.score,
            deadline,
        )
        if self.score < score_before:
            self.last = kind
            if self.length >= REFINED:
                state = self.state
                device = state.best_device.copy()
                order = state.best_order.copy()
                best = Placed(device, order, state.score[1:].copy())
                best = self.passes.improved(best, deadline, 1)
                placement = Found(best.device, best.order)
                self.offer(placement, float(best.score[0]))
        back_to_best(self.space, self.state)
        self.cycles += 1
        self.length *= GROWTH

    def _next(self) -> Kind:
        """Return the kinds in turn at first; then the one that found something last, or one in
        three drawn.
        """
        kinds = self._kinds()
        if self.cycles < len(kinds):
            return kinds[self.cycles]
        if self.cycles % 3 == 2 or self.last not in kinds:
            return kinds[int(self.rng.integers(len(kinds)))]
        return self.last

    def _kinds(self) -> list[Kind]:
        """Return the kinds of cycles that are worth it at the present length."""
        moves_per_unit = self.length / self.space.problem.num_units
        return [kind for kind in KINDS if moves_per_unit >= kind.min_moves]


Begin = Callable[[SearchSpace, np.random.Generator, float], Anytime | None]


class Beside:
    """The search on groups of one problem.

    Args:
        space: the problem whose ops are grouped.
        begin: makes the search on groups; None where there is no time.
        rng: The random numbers of the search on groups.
        open: False leaves it out.
    """

    def __init__(
        self,
        space: SearchSpace,
        begin: Begin,
        rng: np.random.Generator,
        *,
        open: bool = True,
    ) -> None:
        self.space = space
        self.begin = begin
        self.rng = rng
        self.open = open and worth_it(space)
        self.groups: tuple[CoarseProblem, Anytime] | None = None
        self.shown = np.inf
        self.share = LEADING

    @property
    def note(self) -> str:
        """Return what was done, or an empty text."""
        if self.groups is None:
            return ""
        coarse, search = self.groups
        return f"; {search.moves} moves of {coarse.problem.num_ops} groups"

    def turn(self, local: Anytime, deadline: float) -> None:
        """Run cycles of groups while it is their turn; what they find is offered to ``local``."""
        if not self.open or local.ops < BEGUN or is_expired(deadline):
            return
        self.groups = self.groups or self._begin(deadline)
        self.open = self.groups is not None
        while self.groups and not is_expired(deadline):
            coarse, search = self.groups
            if search.ops >= self.share * (local.ops - BEGUN):
                break
            search.cycle(deadline)
            self._offer(coarse, search, local, deadline)

    def _begin(self, deadline: float) -> tuple[CoarseProblem, Anytime] | None:
        """Return groups and a search on them; None where there is nothing to group, or no time."""
        if not has_time(self.space, deadline):
            return None
        count = int(GROUPS * self.space.problem.microbatches**0.5)
        coarse = coarse_problem(self.space.problem, count)
        if coarse is None:
            return None
        search = self.begin(SearchSpace(coarse.problem), self.rng, deadline)
        if search is None:
            return None
        return (coarse, search)

    def _offer(
        self, coarse: CoarseProblem, search: Anytime, local: Anytime, deadline: float
    ) -> None:
        """Project what is new, and see whether that leads."""
        if search.score < self.shown:
            self.shown = search.score
            best = search.found()
            order = search.space.simulator.run(best.device, best.order).order
            fine = project_placement(
                self.space, coarse, Found(best.device, order), deadline
            )
            justified = justify(
                self.space.compiled, self.space.reversed, fine.device, fine.order
            )
            orders = fine.order, justified
            scores = [self.space.score(fine.device, order) for order in orders]
            best_index = int(np.argmin(scores))
            if scores[best_index] < local.score:
                self.share = LEADING
            else:
                self.share = FOLLOWING
            local.offer(Found(fine.device, orders[best_index]), scores[best_index])


def worth_it(space: SearchSpace) -> bool:
    """Return whether the problem is of a size for groups."""
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
        """Return what was done, or an empty text."""
        if self.groups is None:
            return ""
        return f"; {self.groups.found.note}"

    def turn(self, local: Anytime, deadline: float) -> None:
        """Run laps of groups while it is their turn; what they find is offered to ``local``."""
        if is_expired(deadline):
            return
        self.groups = groups = self.groups or self.begin()
        while groups.chunks.ops < SHARE * local.ops and groups.has_time(deadline):
            groups.lap()
        local.offer(groups.found, groups.expansion.score)
