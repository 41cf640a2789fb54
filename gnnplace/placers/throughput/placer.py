"""The throughput objective: the placement whose busiest device has least to do (pipelined steps).

``throughput_load`` defines the value, the **interval** between two steps. The search:

1. Contiguous splits: dynamic programming over the ideals of the graph where they are few
   (``throughput_ideals``), and in any case over several orders of its units (``throughput_split``);
   the best of them is never given up but for a better placement (``_contiguous``).
2. Any placement: annealing (``throughput_search``), then, where the model is small enough, a
   constraint programme with its proven bound (``throughput_model``), else parts of it, in turn with
   annealing (``_improve``).
3. The bound: the solver's, or the work bound of ``simulation.bounds``, which holds for the busiest
   device as it stands; "optimal" is said only where the interval meets it within ``PROVEN``.

State counts in all of this; activations, which depend on sequences, where the placement is
simulated: one that does not fit then is searched again with less memory, and at last repaired
(``_fitting``). With budget 0 a fixed amount of work. Complexity: the sum of its parts'.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from gnnplace.errors import InfeasibleError
from gnnplace.placers.base import Found, Placer, Result
from gnnplace.placers.search.clock import NO_BUDGET, expired
from gnnplace.placers.search.repair import pack, repair
from gnnplace.placers.search.space import SearchSpace
from gnnplace.placers.throughput.ideals import (
    Blocks,
    Ideals,
    IdealSplit,
    ideals_of,
    make_blocks,
    split_ideals,
)
from gnnplace.placers.throughput.load import interval, make_flows, restricted, state_excess
from gnnplace.placers.throughput.model import ThroughputModel, model_size
from gnnplace.placers.throughput.search import local_search
from gnnplace.placers.throughput.split import split
from gnnplace.placers.throughput.stages import Sorts, sorts_of
from gnnplace.simulation import lower_bounds

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int32]
PROVEN = 1e-6  # Interval over bound, minus one, that counts as optimal.
MOST_IDEALS, MOST_PAIRS = 20_000, 50_000_000
PAIRS_A_SECOND, PAIRS_WITHOUT_BUDGET = 5_000_000, 20_000_000
MOST_SWAPPED = 32  # Devices of a split that are swapped in pairs.
MODEL_SIZE, MODEL_SIZE_WITHOUT_BUDGET = 30_000, 1_500  # Variables of a model solved whole.
MODEL_SIZE_A_SECOND = 4_000  # Of the time left: larger ones take too long to build.
SEARCH_SHARE = 0.4  # Of what is left of a budget, for annealing before the solver.
WHOLE_SHARE = 0.6  # Of what is left then, for the whole model; parts have the rest.
LEAST_SECONDS = 0.2  # For the solver, which small problems need at most.
PART_UNITS, PART_SECONDS = 40, 1.0
MOST_SORTS = 4  # Of devices whose sets are split over by themselves.
DRAWN_WORK = 1_000_000  # Pairs of units in all orders that are drawn.
SHARES = (1.0, 0.85, 0.7, 0.5)  # Of the memory for state, until activations fit as well.


@dataclass(frozen=True, eq=False)
class ThroughputResult(Result):
    """A placement with its interval.

    Attributes:
        interval: seconds between two pipelined steps: the load of the busiest device.
        interval_bound: seconds that no placement's interval is below.
    """

    interval: float = np.inf
    interval_bound: float = 0.0

    @property
    def interval_gap(self) -> float:
        """Interval over its bound, minus one: at most so far from the best possible."""
        return self.interval / self.interval_bound - 1.0 if self.interval_bound > 0 else 0.0

    def __str__(self) -> str:
        return (
            f"{self.placer}: predicted throughput interval {self.interval:.6g} s, lower bound "
            f"{self.interval_bound:.6g} s (gap {self.interval_gap:.1%}); one step takes "
            f"{self.step_time:.6g} s (predicted); found in {self.seconds:.3g} s"
            + (f" ({self.note})" if self.note else "")
        )


@dataclass(frozen=True)
class FoundInterval(Found):
    """What a search for throughput hands back.

    Attributes:
        interval_bound: seconds that no placement's interval is below.
    """

    interval_bound: float = 0.0


class Throughput(Placer):
    """The least interval of pipelined steps, with a proven bound.

    Args:
        workers: threads of the constraint solver.
    """

    name = "throughput"

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        search = _Search(space, rng, deadline, self.workers)
        search.contiguous()
        if not search.proven:
            search.improve()
        return search.found()

    def _result(
        self, space: SearchSpace, found: Found, begin: float, until: float, seed: int
    ) -> ThroughputResult:
        bound = found.interval_bound if isinstance(found, FoundInterval) else 0.0
        return with_interval(space, super()._result(space, found, begin, until, seed), bound)


class ContiguousThroughput(Throughput):
    """The best contiguous split for throughput, and nothing else."""

    name = "contiguous"

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        search = _Search(space, rng, deadline, self.workers)
        search.contiguous()
        return search.found()


def with_interval(space: SearchSpace, result: Result, bound: float = 0.0) -> ThroughputResult:
    """Any placer's result with the interval of its placement.

    Args:
        space: the space of the problem.
        result: the result of a placer.
        bound: seconds that no placement's interval is below, as far as is known.
    """
    flows = make_flows(space)
    value = interval(flows, result.placement.device[_first_ops(space)])
    bound = min(max(bound, simple_bound(space)), value)
    return ThroughputResult(**result.__dict__ | {"interval": value, "interval_bound": bound})


def simple_bound(space: SearchSpace) -> float:
    """Seconds that some device is busy at least: all work shared out, or one unit's."""
    shared = lower_bounds(space.problem).work
    return max(shared, float(space.work.min(axis=1).max()) * (1 - 1e-12))


def _first_ops(space: SearchSpace) -> IntArray:
    offset, ops = space.unit_ops
    return ops[offset[:-1]]


class _Search:
    """One search: the best devices of units so far, and what is proven."""

    def __init__(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float, workers: int
    ) -> None:
        self.space, self.rng, self.deadline, self.workers = space, rng, deadline, workers
        self.flows = make_flows(space)
        self.sorts: Sorts = sorts_of(self.flows)
        self.bound = simple_bound(space)
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
        """Whether nothing can be better, within ``PROVEN``."""
        return self.value <= self.bound * (1 + PROVEN)

    def take(self, device: IntArray) -> bool:
        """Keeps devices that fit and are better; says whether they are."""
        value = interval(self.flows, device)
        if value >= self.value or state_excess(self.flows, device) > 0:
            return False
        self.device, self.value = device.astype(np.int32), value
        return True

    def contiguous(self) -> None:
        """The best contiguous split, of all devices and of those that look alike."""
        blocks = make_blocks(self.space)
        ideals = ideals_of(blocks, MOST_IDEALS)
        splits = [self._split_over(view, blocks, ideals) for view in self._views()]
        best = min(value for value, _ in splits)
        if best < np.inf:
            proven = ", proven" if splits[0][1] else ""
            self.note = f"best contiguous split {best:.6g} s{proven}"

    def _split_over(
        self, view: tuple[IntArray, bool], blocks: Blocks, ideals: Ideals | None
    ) -> tuple[float, bool]:
        """The least interval of splits over some devices, and whether that is proven for all."""
        devices, dear = view
        part = restricted(self.flows, devices)
        sorts = sorts_of(part, dear=dear)
        found = None
        if ideals is not None:
            left = self.deadline - time.perf_counter()
            pairs = PAIRS_A_SECOND * left if self.deadline > NO_BUDGET else PAIRS_WITHOUT_BUDGET
            most = int(np.clip(pairs, 0, MOST_PAIRS))
            found = split_ideals(part, sorts, blocks, ideals, self.value, most)
        floor = -np.inf if found is None or not self.sorts.equal else found.relaxed
        best = np.inf
        for order in self._orders(found, blocks):
            tried = split(part, sorts, order, self.value * (1 + 1e-12))
            if tried is not None:
                chosen = self._swapped(devices[tried.device])
                best = min(best, interval(self.flows, chosen))
                if self.take(chosen):
                    self.order = order
            if self.value <= floor * (1 + PROVEN) or expired(self.deadline):
                break
        return best, self.value <= floor * (1 + PROVEN)

    def _swapped(self, device: IntArray) -> IntArray:
        """The same stages on the best devices that swaps of two lead to; equal links need none."""
        best, value = device, interval(self.flows, device)
        count = len(self.flows.memory)
        known = self.sorts.equal or count > MOST_SWAPPED
        for a, b in () if known else combinations(range(count), 2):
            label = np.arange(count, dtype=np.int32)
            label[[a, b]] = b, a
            swapped = label[best]
            fits = state_excess(self.flows, swapped) == 0
            if fits and interval(self.flows, swapped) < value:
                best, value = swapped, interval(self.flows, swapped)
        return best

    def _views(self) -> list[tuple[IntArray, bool]]:
        """Devices to split over, and whether at the price of the dearest links.

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
                for chosen in combinations(range(count), size):
                    part = np.flatnonzero(np.isin(self.sorts.of, chosen)).astype(np.int32)
                    views.append((part, False))
        return views

    def _orders(self, ideals: IdealSplit | None, blocks: Blocks) -> list[IntArray]:
        """Orders to split: by the ideals' stages, by coordinate, and topological ones."""
        space = self.space
        orders = [] if ideals is None else [ideals.order]
        flat = np.array([u for part in blocks.units for u in part], dtype=np.int32)
        position = np.empty(len(flat))
        position[space.problem.unit_of[::-1]] = space.problem.graph.position[::-1]
        orders += [space.unit_order, flat, np.argsort(position, kind="stable").astype(np.int32)]
        orders.append(depth_first(blocks))
        most = int(np.clip(DRAWN_WORK // len(flat) ** 2, 4, 200))
        orders += [depth_first(blocks, self.rng) for _ in range(most)]
        return list({order.tobytes(): order for order in orders}.values())

    def improve(self) -> None:
        """Annealing, then the constraint programme, whole and in parts."""
        timed, now = self.deadline > NO_BUDGET, time.perf_counter()
        one = self.space.allow(np.zeros(self.space.problem.num_units, dtype=np.int32))
        for turn, start in enumerate((self.device, one)):
            share = SEARCH_SHARE * (turn + 1) / 2
            until = now + share * (self.deadline - now) if timed else NO_BUDGET
            if not self.proven and (not timed or until > time.perf_counter()):
                self.take(local_search(self.flows, self.order, start, self.rng, until))
        left = self.deadline - time.perf_counter()
        if self.proven or (timed and left <= 0):
            return
        most = MODEL_SIZE_A_SECOND * left if timed else MODEL_SIZE_WITHOUT_BUDGET
        if model_size(self.flows) <= min(MODEL_SIZE, most):
            self._solve_whole(max(LEAST_SECONDS, WHOLE_SHARE * left) if timed else 0.0)
        if timed:
            self._solve_parts()

    def _horizon(self) -> float:
        """Seconds that a placement that fits needs at most."""
        if np.isfinite(self.value):
            return self.value
        f = self.flows
        work = np.where(np.isfinite(f.work), f.work, 0.0).max(axis=1).sum()
        latency = f.latency[np.isfinite(f.latency)].max(initial=0.0)
        cost = f.tensors.sum() * latency + f.size.sum() * f.pace.max(initial=0.0)
        return float(work + 2 * len(f.memory) * cost) + 1e-300

    def _solve_whole(self, seconds: float) -> None:
        model = ThroughputModel(self.space, self.flows, self.device, self._horizon())
        device, bound, status = model.solve(self.rng, seconds, self.workers)
        if status == "INFEASIBLE" and not np.isfinite(self.value):
            raise InfeasibleError("objective 'throughput': no placement fits, proven")
        self.bound = max(self.bound, bound)
        if device is not None:
            self.take(device)

    def _solve_parts(self) -> None:
        while not self.proven and time.perf_counter() < self.deadline - 0.05:
            free = self._part()
            model = ThroughputModel(self.space, self.flows, self.device, self._horizon(), free)
            left = min(PART_SECONDS, self.deadline - time.perf_counter())
            device = model.solve(self.rng, max(left, 0.01), self.workers)[0]
            if device is not None:
                self.take(device)
            until = min(self.deadline, time.perf_counter() + PART_SECONDS)
            if time.perf_counter() < until:
                self.take(local_search(self.flows, self.order, self.device, self.rng, until))

    def _part(self) -> NDArray[np.bool_]:
        """Units of a part: a run of them in the order, and as many others, at random. [U]"""
        num_units = self.space.problem.num_units
        count = min(PART_UNITS, num_units)
        free = np.zeros(num_units, dtype=bool)
        first = int(self.rng.integers(num_units - count + 1))
        free[self.order[first : first + count // 2]] = True
        free[self.rng.choice(num_units, count // 2, replace=False)] = True
        return free

    def found(self) -> FoundInterval:
        """What is handed back: devices that fit when they run, in the best order known."""
        device, order = self._fitting()
        value = interval(self.flows, device[_first_ops(self.space)])
        note = "optimal" if value <= self.bound * (1 + PROVEN) else ""
        notes = "; ".join(part for part in (note, self.note) if part)
        return FoundInterval(device, order, notes, interval_bound=self.bound)

    def _fitting(self) -> tuple[IntArray, IntArray]:
        space = self.space
        for share in SHARES:
            chosen = self.device
            if share < 1.0:
                args = (self.flows, self.order, self.device, self.rng, NO_BUDGET)
                chosen = local_search(*args, share=share)
            device = space.spread(chosen)
            order = space.sequence(device)[1]
            if not space.memory_matters or space.simulator.excess(device, order)[1] == 0:
                return device, order
        self.note = (self.note + "; " if self.note else "") + "moved to fit activations"
        return repair(space, device, order)


def depth_first(blocks: Blocks, rng: np.random.Generator | None = None) -> IntArray:
    """A topological order of units that ends a branch before the next; drawn with ``rng``. [U]"""
    missing = [len(many) for many in blocks.before]
    ready = [b for b, number in enumerate(missing) if number == 0][::-1]
    order: list[int] = []
    while ready:
        block = ready.pop() if rng is None else ready.pop(int(rng.integers(len(ready))))
        order += blocks.units[block]
        for c in reversed(blocks.after[block]):
            missing[c] -= 1
            if missing[c] == 0:
                ready.append(c)
    return np.array(order, dtype=np.int32)
