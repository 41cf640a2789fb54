"""The throughput objective: the placement whose busiest device has least to do (pipelined steps).

``load`` defines the value, the **interval** between two steps. The search:

1. Contiguous splits over several orders of the graph's units (``split``). The best of them is
   replaced only by a better placement.
2. Arbitrary placements: annealing from the best split and from one device (``search``), or, if
   there are at most ``FEW`` placements, all of them.
3. The bound: the larger of the work bound of ``simulation.bounds``, which also holds for the
   busiest device, and the slowest unit's work. "Optimal" is said only if the interval meets the
   bound within ``PROVEN``.

All steps count the bytes of state. Bytes of activations depend on sequences and are known only when
a placement is simulated: one that does not fit then is searched again with less memory, and in the
end repaired (``_fitting``). With budget 0 the amount of work is fixed. Complexity: the sum of the
three.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np

from gnnplace.arrays import IntArray
from gnnplace.errors import GnnplaceError, UnsupportedError
from gnnplace.placers.base import Found, Placer, Result
from gnnplace.placers.rows import PlacerRow, Speed, parse_name
from gnnplace.placers.search.repair import pack, repair
from gnnplace.placers.search.space import NO_BUDGET, SearchSpace, is_expired
from gnnplace.placers.throughput.load import (
    interval,
    make_flows,
    restrict_to_devices,
    state_excess,
)
from gnnplace.placers.throughput.search import local_search
from gnnplace.placers.throughput.split import Blocks, depth_first, make_blocks, split
from gnnplace.placers.throughput.stages import Sorts, list_device_sorts
from gnnplace.problem import Problem
from gnnplace.simulation import lower_bounds

PROVEN = 1e-6  # Interval over bound, minus one, that counts as optimal.
MOST_SWAPPED = 32  # Devices of a split that are swapped in pairs.
FEW = 4096  # Placements that are all tried.
MOST_SORTS = 4  # Only as many sorts of devices are split over separately
DRAWN_WORK = 1_000_000  # Pairs of units in all orders that are drawn.
# Shares of the memory that state may take, until activations fit as well.
SHARES = (1.0, 0.85, 0.7, 0.5)
Failure = tuple[str, GnnplaceError]


@dataclass(frozen=True, eq=False)
class ThroughputResult(Result):
    """A placement with its interval.

    Attributes:
        interval: seconds between two pipelined steps: the load of the busiest device.
        interval_bound: seconds that no placement's interval is below.
    """

    interval: float = np.inf
    interval_bound: float = 0.0

    def get_file_keys(self) -> dict[str, object]:
        """Return what the placement's file says of the objective; nothing of the step time."""
        return {
            "x-objective": "throughput",
            "x-interval": self.interval,
            "x-interval-bound": self.interval_bound,
        }

    def __str__(self) -> str:
        if self.interval_bound > 0:
            gap = self.interval / self.interval_bound - 1.0
        else:
            gap = 0.0
        return (
            f"{self.placer}: predicted throughput interval {self.interval:.6g} s, lower bound "
            f"{self.interval_bound:.6g} s (gap {gap:.1%}); one step takes "
            f"{self.step_time:.6g} s (predicted); found in {self.seconds:.3g} s"
            + (f" ({self.note})" if self.note else "")
        )


class Throughput(Placer):
    """The least interval of pipelined steps that splits and annealing find."""

    name = "throughput"

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        search = _Search(space, rng, deadline)
        search.contiguous()
        if not search.proven:
            search.improve()
        if not search.proven:
            units = space.problem.num_units
            devices = space.problem.num_devices
            # Annealing may have been too cold for its optimum.
            if units * np.log(devices) <= np.log(FEW):
                for unit_device in product(range(devices), repeat=units):
                    search.take(np.array(unit_device, dtype=np.int32))
        return search.found()

    def _result(
        self, space: SearchSpace, found: Found, begin: float, until: float, seed: int
    ) -> ThroughputResult:
        return with_interval(space, super()._result(space, found, begin, until, seed))


class ContiguousThroughput(Throughput):
    """The best contiguous split for throughput, and nothing else."""

    name = "contiguous"

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        search = _Search(space, rng, deadline)
        search.contiguous()
        return search.found()


def with_interval(space: SearchSpace, result: Result) -> ThroughputResult:
    """Return a result of any placer with the interval of its placement. ``space``: its
    problem's.
    """
    value = interval(
        make_flows(space), space.find_unit_devices(result.placement.device)
    )
    bound = min(compute_simple_bound(space), value)
    return ThroughputResult(
        **result.__dict__ | {"interval": value, "interval_bound": bound}
    )


def compute_simple_bound(space: SearchSpace) -> float:
    """Return the seconds that some device is busy at least: all work shared out, or one unit's."""
    shared = lower_bounds(space.problem).work
    longest_unit = float(space.work.min(axis=1).max())
    return max(shared, longest_unit * (1 - 1e-12))


class _Search:
    """One search: the best devices of units so far, and what is proven."""

    def __init__(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> None:
        self.space = space
        self.rng = rng
        self.deadline = deadline
        self.flows = make_flows(space)
        self.sorts: Sorts = list_device_sorts(self.flows)
        self.bound = compute_simple_bound(space)
        self.device = space.allow(np.zeros(space.problem.num_units, dtype=np.int32))
        self.value = np.inf
        self.order = space.unit_order
        self.note = ""
        for d in range(space.problem.num_devices):
            self.take(space.allow(np.full(space.problem.num_units, d, dtype=np.int32)))
        if space.memory_matters:
            self.take(pack(space))

    @property
    def proven(self) -> bool:
        """Return whether no placement is better, within ``PROVEN``."""
        return self.value <= self.bound * (1 + PROVEN)

    def take(self, device: IntArray) -> bool:
        """Keep devices that fit and are better; return whether they are."""
        value = interval(self.flows, device)
        if value >= self.value or state_excess(self.flows, device) > 0:
            return False
        self.device = device.astype(np.int32)
        self.value = value
        return True

    def contiguous(self) -> None:
        """Find the best contiguous split, of all devices and of those that look alike."""
        blocks = make_blocks(self.space)
        best = min(self._split_over(*view, blocks) for view in self._views())
        if best < np.inf:
            self.note = f"best contiguous split {best:.6g} s"

    def _split_over(self, devices: IntArray, dear: bool, blocks: Blocks) -> float:
        """Return the least interval of splits over some devices; see ``_views``."""
        part = restrict_to_devices(self.flows, devices)
        sorts = list_device_sorts(part, dear=dear)
        best = np.inf
        for order in self._orders(blocks):
            tried = split(part, sorts, order, self.value * (1 + 1e-12))
            if tried is not None:
                unit_device = self._swap_devices(devices[tried.device])
                best = min(best, interval(self.flows, unit_device))
                if self.take(unit_device):
                    self.order = order
            if self.proven or is_expired(self.deadline):
                break
        return best

    def _swap_devices(self, device: IntArray) -> IntArray:
        """Return the same stages on the best devices that swaps of two lead to; equal links need
        none.
        """
        best = device
        value = interval(self.flows, device)
        count = len(self.flows.memory)
        skips_swaps = self.sorts.equal or count > MOST_SWAPPED
        for a, b in () if skips_swaps else combinations(range(count), 2):
            label = np.arange(count, dtype=np.int32)
            label[[a, b]] = b, a
            swapped = label[best]
            fits = state_excess(self.flows, swapped) == 0
            if fits and interval(self.flows, swapped) < value:
                best = swapped
                value = interval(self.flows, swapped)
        return best

    def _views(self) -> list[tuple[IntArray, bool]]:
        """Return the devices to split over, and whether at the price of the dearest links.

        Where links are equal one view is exact. Where not, what a stage pays depends on where the
        others are: all devices at their cheapest and at their dearest links, and the devices of
        each set of sorts alone, whose links may be equal.
        """
        everyone = np.arange(len(self.flows.memory), dtype=np.int32)
        if self.sorts.equal or len(everyone) == 1:
            return [(everyone, False)]
        views = [(everyone, False), (everyone, True)]
        count = len(self.sorts.counts)
        if 1 < count <= MOST_SORTS:
            for size in range(1, count):
                for subset in combinations(range(count), size):
                    part = np.flatnonzero(np.isin(self.sorts.of, subset)).astype(
                        np.int32
                    )
                    views.append((part, False))
        return views

    def _orders(self, blocks: Blocks) -> list[IntArray]:
        """Return the orders to split: by coordinate, and topological ones."""
        space = self.space
        by_blocks = np.array(
            [unit for units in blocks.units for unit in units], dtype=np.int32
        )

        # Written backwards, so that a unit has the position of the first of its ops.
        position = np.empty(len(by_blocks))
        position[space.problem.unit_of[::-1]] = space.problem.graph.position[::-1]
        by_position = np.argsort(position, kind="stable").astype(np.int32)

        orders = [space.unit_order, by_blocks, by_position, depth_first(blocks)]
        num_drawn = int(np.clip(DRAWN_WORK // len(by_blocks) ** 2, 4, 200))
        for _ in range(num_drawn):
            orders.append(depth_first(blocks, self.rng))
        distinct = {order.tobytes(): order for order in orders}
        return list(distinct.values())

    def improve(self) -> None:
        """Anneal from the best so far and from one device."""
        timed = self.deadline > NO_BUDGET
        begin = time.perf_counter()
        one = self.space.allow(np.zeros(self.space.problem.num_units, dtype=np.int32))
        for share, start in ((0.5, self.device), (1.0, one)):
            if timed:
                until = begin + share * (self.deadline - begin)
            else:
                until = NO_BUDGET
            if not self.proven and (not timed or until > time.perf_counter()):
                self.take(
                    local_search(
                        flows=self.flows,
                        order=self.order,
                        start=start,
                        rng=self.rng,
                        deadline=until,
                    )
                )

    def found(self) -> Found:
        """Return devices that fit when they run, in the best order known."""
        device, order = self._fitting()
        value = interval(self.flows, self.space.find_unit_devices(device))
        if value <= self.bound * (1 + PROVEN):
            note = "optimal"
        else:
            note = ""
        notes = "; ".join(part for part in (note, self.note) if part)
        return Found(device, order, notes)

    def _fitting(self) -> tuple[IntArray, IntArray]:
        space = self.space
        for share in SHARES:
            unit_device = self.device
            if share < 1.0:
                args = (self.flows, self.order, self.device, self.rng, NO_BUDGET)
                unit_device = local_search(*args, share=share)
            device = space.spread(unit_device)
            order = space.sequence(device)[1]
            if space.fits(device, order):
                return device, order
        self.note = (self.note + "; " if self.note else "") + "moved to fit activations"
        return repair(space, device, order)


PLACERS: dict[str, PlacerRow] = {
    row.name: row
    for row in (
        PlacerRow("best", Throughput, Speed.SEARCH),
        PlacerRow("contiguous", ContiguousThroughput, Speed.CONSTRUCTION),
    )
}
SEARCHES: tuple[tuple[str, type[Throughput]], ...] = (
    ("throughput", Throughput),
    ("contiguous-split", ContiguousThroughput),
)


def make_throughput_placer(name: str, **options: object) -> Placer:
    """Return a placer for throughput: ``contiguous`` splits alone, or the ``best`` that is found.

    Raises:
        InputError: an option, for they have none.
        UnsupportedError: a placer that minimises the step time.
    """
    base, written = parse_name(name)
    if base not in PLACERS:
        names = ", ".join(PLACERS)
        raise UnsupportedError(
            f"placer {base!r} minimises the step time; for objective 'throughput' use {names}"
        )
    set_options = {key: value for key, value in options.items() if value is not None}
    return PLACERS[base].made(written | set_options)


def compute_intervals(
    problem: Problem,
    others: Sequence[Result | Failure],
    *,
    budget: float,
    seed: int,
    progress: Callable[[str], None] | None = None,
) -> list[ThroughputResult | Failure]:
    """Return the intervals of the searches for throughput, then of placements that others found.

    Args:
        problem: the problem that all of them place.
        others: results of placers that minimise the step time.
        budget: seconds for each search.
        seed: the seed of all randomness.
        progress: called with a line before each search.
    """
    space = SearchSpace(problem)
    results: list[ThroughputResult | Failure] = []
    for label, kind in SEARCHES:
        if progress is not None:
            progress(f"placing with {label}")
        results.append(_run_search(label, kind(), space, budget, seed))
    return results + [
        result if isinstance(result, tuple) else with_interval(space, result)
        for result in others
    ]


def _run_search(
    label: str, placer: Placer, space: SearchSpace, budget: float, seed: int
) -> ThroughputResult | Failure:
    """Return what a search finds, under the name that comparisons show."""
    try:
        result = placer.place(space.problem, budget=budget, seed=seed, space=space)
    except GnnplaceError as error:
        return label, error
    assert isinstance(result, ThroughputResult)
    return replace(result, placer=label)
