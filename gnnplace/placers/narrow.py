"""``narrow``: search on narrow groups of a large graph, expanded to the whole.

Formulation: the coarse problem (``placers.search.coarse_problem``) is a line of segments and some
segments apart from it. Starts are constructed: the line is cut into chunks of equal work, which are
dealt to 1 to D devices in rounds, cyclic or V-shaped; each segment apart from the line goes where
the step is shortest. ``placers.search.chunk_search`` continues from the best start. If memory is
tight, it limits the micro-batches in flight to the number with which starts fit best
(``placers.search.in_flight``).

The result is expanded: each op goes to its group's device, list scheduling of the whole graph
starts from the groups' order, and justification follows. The best expanded placement is the answer.
A lap of the search has a fixed number of moves and only the ends of laps are expanded, so that a
larger budget is never worse. With budget 0 the search runs one lap for each of its members, and one
more from the best state.

On small graphs and on grids narrow groups are not worth it; there this is ``coarse-annealing``.
The scheme is multilevel refinement (Karypis and Kumar, 1998); cyclic chunks are those of Narayanan
et al. (2021).
Complexity: near-linear for the groups, a hundred coarse schedules for starts, then as the budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.coarse_annealing import CoarseAnnealing
from gnnplace.placers.search.chunk_search import (
    ChunkSearch,
    Start,
    schedule_and_justify,
)
from gnnplace.placers.search.chunks import device_counts, device_ranking
from gnnplace.placers.search.coarse_problem import NarrowProblem, narrow_problem
from gnnplace.placers.search.in_flight import fewer_in_flight
from gnnplace.placers.search.space import NO_BUDGET, SearchSpace, read_clock
from gnnplace.simulation import time_list_schedule

ROUNDS = (1, 2, 3, 4, 6, 8)
KEPT = 6  # starts that the search begins rounds from
EXPANDED = 2  # starts that are expanded at once
JUSTIFIED = 2  # times that the order of an expanded state is justified
HOPEFUL = 1.04  # seconds over the best so far, for each justification to come; else it is given up
SETTLED = 2  # starts whose units that stand alone are moved to their best devices
AGAIN = 4  # starts that are scheduled in another order as well
OUTCLASSED = 1.2  # seconds of a start over the best, above which it is none
PATIENT = 24  # laps without a gain before which no search is stale
# A lap is expanded if its coarse seconds are below this times those expanded last.
WORTH = 0.999


class Narrow(Placer):
    """Search on narrow groups, from constructions."""

    name = "narrow"

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        narrow = narrow_problem(space)
        if narrow is None:
            return CoarseAnnealing().search(space, rng, deadline)
        search = NarrowSearch(space, narrow, SearchSpace(narrow.problem), (), rng)
        if deadline <= NO_BUDGET:
            search.first_round()
        while search.has_time(deadline):
            search.lap()
        return search.found


class NarrowSearch:
    """The search on narrow groups, lap by lap.

    Args:
        space: the search space of the whole problem.
        narrow: the coarse problem of its narrow groups.
        coarse: the space of that.
        extra: devices of the coarse units to start from besides the constructions. Each [U]
        rng: the source of the seed of the kernels.
    """

    def __init__(
        self,
        space: SearchSpace,
        narrow: NarrowProblem,
        coarse: SearchSpace,
        extra: Iterable[IntArray],
        rng: np.random.Generator,
    ) -> None:
        extra_devices = tuple(extra)
        coarse, starts = fewer_in_flight(
            coarse, lambda one: rank_starts(one, narrow, extra_devices)
        )
        self.expansion = Expansion(space, narrow)
        self.expanding = max([self.expansion.add(start) for start in starts[:EXPANDED]])
        self.chunks = ChunkSearch(
            coarse, narrow, starts[:KEPT], int(rng.integers(2**31))
        )
        self.shown = starts[0].score
        self.took = 0.0
        self.last_gain = 0

    @property
    def found(self) -> Found:
        """Return the best placement of the whole problem so far."""
        groups = self.expansion.narrow.problem.num_ops
        note = f"{groups} narrow groups, {self.chunks.lap} laps"
        return Found(*self.expansion.best, note)

    @property
    def fits(self) -> bool:
        """Return whether the best placement runs within all memory."""
        return self.expansion.space.fits(*self.expansion.best)

    @property
    def stale(self) -> bool:
        """Return whether the later half of the laps, if there were enough, found nothing better."""
        since = self.chunks.lap - self.last_gain
        return since >= PATIENT and since >= self.last_gain

    def has_time(self, deadline: float) -> bool:
        """Return whether another lap is done before the deadline."""
        return read_clock() + self.took + self.expanding < deadline

    def lap(self) -> None:
        """Run another lap, expanded if it found something."""
        begin = read_clock()
        self.chunks.run_lap()
        self.took = read_clock() - begin
        self._expand()

    def first_round(self) -> None:
        """Run a lap of each member and one more from the best state, expanded at the end alone."""
        for _ in range(len(self.chunks.members) + 1):
            self.chunks.run_lap()
        self._expand()

    def _expand(self) -> None:
        best = self.chunks.best
        if best.score < WORTH * self.shown:
            self.shown = best.score
            self.last_gain = self.chunks.lap
            self.expanding = self.expansion.add(best)


class Expansion:
    """Coarse states as placements of the whole graph, and the best of them.

    Args:
        space: the search space of the whole problem.
        narrow: the coarse problem of its narrow groups.
    """

    def __init__(self, space: SearchSpace, narrow: NarrowProblem) -> None:
        self.space = space
        self.narrow = narrow
        self.score = np.inf
        self.best: tuple[IntArray, IntArray] = (
            np.zeros(0, np.int32),
            np.zeros(0, np.int32),
        )

    def add(self, start: Start) -> float:
        """Expand one more; return the seconds that took."""
        begin = read_clock()
        space = self.space
        narrow = self.narrow
        device = start.unit_device[narrow.problem.unit_of][narrow.group].astype(
            np.int32
        )
        grouped_order = narrow.fine_order(space.problem, start.order)
        self._keep(device, grouped_order)
        priority, finish, far = (np.empty(len(grouped_order)) for _ in range(3))
        priority[grouped_order] = -np.arange(len(grouped_order), dtype=np.float64)
        for k in range(1 + JUSTIFIED):
            limit = HOPEFUL ** (JUSTIFIED - k) * self.score
            if k > 0:
                time_list_schedule(space.reversed, device, finish, far, np.inf)
            by = far if k > 0 else priority
            order = time_list_schedule(space.compiled, device, by, finish, limit)
            if not finish.max() <= limit:
                break
            self._keep(device, order)
        return read_clock() - begin

    def _keep(self, device: IntArray, order: IntArray) -> None:
        """Keep a placement if it is the best."""
        score = self.space.score(device, order, self.score)
        if score < self.score:
            self.score = score
            self.best = (device, order)


def rank_starts(
    space: SearchSpace, narrow: NarrowProblem, extra: Iterable[IntArray]
) -> list[Start]:
    """Return constructions and what is given besides, each justified, the best first.

    What is hopeless beside the best so far is left out.
    """
    priorities = first_priorities(space)
    starts = best_first(space, (*extra, *constructions(space, narrow)))
    starts[:SETTLED] = [
        _settle_units(space, narrow.loose, one, priorities) for one in starts[:SETTLED]
    ]
    return sorted(starts, key=lambda start: start.score)


def best_first(space: SearchSpace, devices: Iterable[IntArray]) -> list[Start]:
    """Return states of these devices, the best first, in turns; of the first few in another order
    too.

    What is hopeless beside the best so far is left out.

    Args:
        space: the search space of the coarse problem.
        devices: devices of units. Each [U]
    """
    one_by_one, turns = first_priorities(space)
    starts: list[Start] = []
    for unit_device in devices:
        limit = OUTCLASSED * min((one.score for one in starts), default=np.inf)
        starts += make_scheduled_state(space, unit_device, (turns,), limit)
    starts.sort(key=lambda start: start.score)
    for k, start in enumerate(starts[:AGAIN]):
        alternatives = make_scheduled_state(
            space, start.unit_device, (one_by_one,), start.score
        )
        starts[k] = min([start, *alternatives], key=lambda one: one.score)
    return sorted(starts, key=lambda start: start.score)


def first_priorities(space: SearchSpace) -> tuple[FloatArray, FloatArray]:
    """Return the priorities to begin with: one micro-batch after the other, and in turns.
    Each [n]
    """
    turn = np.empty(space.problem.num_ops)
    turn[space.turn_order] = -np.arange(len(turn), dtype=np.float64)
    position = space.problem.graph.position.astype(np.float64)
    return -(space.problem.microbatch * float(len(turn)) + position), turn


def make_scheduled_state(
    space: SearchSpace,
    unit_device: IntArray,
    priorities: Iterable[FloatArray],
    limit: float = np.inf,
) -> list[Start]:
    """Return the state of these devices with the best order that justification makes of priorities.

    None where all schedules are much longer than ``limit`` seconds.
    """
    device = space.spread(unit_device)
    states: list[Start] = []
    for priority in priorities:
        finish = np.empty(len(device))
        far = np.empty(len(device))
        seconds, order = schedule_and_justify(
            *space.lean, device, priority, finish, far, limit
        )
        if seconds < np.inf:
            if space.memory_matters:
                score = space.score(device, order)
            else:
                score = seconds
            states.append(
                Start(
                    score=score,
                    unit_device=unit_device,
                    priority=far,
                    order=order,
                )
            )
    if states:
        return [min(states, key=lambda start: start.score)]
    return []


def constructions(space: SearchSpace, narrow: NarrowProblem) -> Iterator[IntArray]:
    """Return the devices of coarse units: chunks of equal work dealt in rounds. Each [U]"""
    work = space.mean_work[narrow.line]
    ranking = device_ranking(space)
    middle = np.cumsum(work) - work / 2
    for k in device_counts(len(ranking))[::-1]:
        devices = np.sort(ranking[:k])
        for rounds in ROUNDS if k > 1 else (1,):
            for folded in (False, True) if rounds > 1 else (False,):
                turns = [
                    devices[::-1] if folded and i % 2 else devices
                    for i in range(rounds)
                ]
                dealt = np.concatenate(turns)  # a folded V goes back and forth
                ends = np.cumsum(space.speed[dealt])
                chunk = np.searchsorted(ends[:-1] / ends[-1] * work.sum(), middle)
                unit_device = np.full(len(space.work), devices[-1], dtype=np.int32)
                unit_device[narrow.line] = dealt[chunk]
                yield space.allow(unit_device)


def _settle_units(
    space: SearchSpace,
    loose: IntArray,
    start: Start,
    priorities: tuple[FloatArray, ...],
) -> Start:
    """Return the state with each unit that stands alone where it is best, one after the other."""
    for unit in loose[:4]:
        for d in np.flatnonzero(space.problem.unit_allowed[unit]):
            unit_device = start.unit_device.copy()
            unit_device[unit] = d
            tried = make_scheduled_state(space, unit_device, priorities, start.score)
            start = min([start, *tried], key=lambda one: one.score)
    return start
