"""The fastest plan that words can express for a framework, with proof: a search by lower bounds.

The space: every combination of dp, tp, cp, ep and pp for the number of devices, with or without
sequence parallelism; every micro-batch that divides the batch; every ZeRO stage of the framework
over all replicas or over those of 1, 4, 16 or 64 servers; every schedule; every number of chunks
that the layers allow; the framework's cut of the layers and those of `spec_cuts.CUTS`; and the
least recomputation that fits: none, attention alone, one of two sets of modules of every layer, or
a number of layers of each stage. Overlap that a framework only uses when asked is switched on,
because hiding never takes longer. Options that change the numbers of a step, such as summing
gradients in half precision, are not searched.

Best first (Land and Doig, 1960): a heap orders plans by a lower bound on their step time. The first
one is priced exactly by the planner's pricer. The search ends when the first bound is no faster
than the plans found so far, which are then the fastest of the space.

Plans that share devices and micro-batch are one entry of the heap until their common bound comes
first; then they are split by ZeRO stage and kind of recomputation. `spec_bounds` has the bounds.

Complexity: a heap operation and O(P v) a row for v chunks a rank; an exact price,
O(P v M), for each row whose bound is below the answer. The cost grows with the divisors of the
devices' number, not with the devices.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from gnnplace.arrays import BoolArray
from gnnplace.errors import InputError
from gnnplace.plans.order.orders import (
    chunk_ranks,
    find_peak_saved,
    is_listed,
    make_fixed_rows,
)
from gnnplace.plans.search.draft import rank_bytes
from gnnplace.plans.search.framework_pricing import SHARDED
from gnnplace.plans.search.stage import StageBytes
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import PlanAnswer, count_stage_layers, price_spec
from gnnplace.plans.spec_bounds import (
    bound_family,
    bound_group,
    bound_plan,
    first_rank_lacks,
    group_bound,
    stages_by_kind,
)
from gnnplace.plans.spec_cuts import list_cuts, list_schedules
from gnnplace.plans.spec_groups import (
    SpecGroup,
    SpecSpace,
    first_that,
    list_families,
    list_recomputed_modules,
)

MOST_DIVES = 100
"""Families whose first plan is priced at once."""
SLACK = 1 - 1e-9
"""Bounds are lowered by this factor, so that rounding never cuts off an equal plan."""
Accepts = Callable[[PlanSpec], bool]
CutsOfFamily = list[tuple[float, int]]
"""Schedules and cuts that are left of a family, with their bounds, the least bound last."""


class Level(Enum):
    """The kinds of entries of the heap."""

    GROUP = "group"
    ZERO = "zero"  # a ZeRO stage of a group, with any kind of recomputation
    FAMILY = "family"  # a ZeRO stage and a kind of recomputation of a group
    PLAN = "plan"


@dataclass(frozen=True)
class FoundSpec:
    """A plan that the search found, with its price.

    Attributes:
        spec: The plan in words.
        answer: Its price.
    """

    spec: PlanSpec
    answer: PlanAnswer

    @property
    def seconds(self) -> float:
        """Return the seconds of a step."""
        assert self.answer.step_time is not None
        return self.answer.step_time


@dataclass(frozen=True)
class FoundSpecs:
    """The result of a search over plans in words.

    Attributes:
        best: Plans that are accepted and fit, the fastest first.
        bound: Seconds that no accepted plan of the space is below, at the same prices.
        num_priced: Plans that were priced exactly.
        num_bounded: Plans that were bounded.
    """

    best: tuple[FoundSpec, ...]
    bound: float
    num_priced: int
    num_bounded: int


def search_specs(
    space: SpecSpace,
    *,
    accepts: Accepts = lambda spec: True,
    has_degrees: Accepts = lambda spec: True,
    num_best: int = 3,
    budget: float = np.inf,
) -> FoundSpecs:
    """Search the fastest plans in words.

    Args:
        space: The model, its batch and the devices.
        accepts: Whether a plan may be an answer, such as whether a launcher can say it.
        has_degrees: Whether plans with these degrees of parallelism may be, whatever else they say.
        num_best: The number of plans to find.
        budget: Wall seconds after which the best so far are returned, with their bound. A first
            plan is found in any case.

    Returns:
        The plans. Within the budget the bound is the step time of the fastest.
    """
    search = _SpecSearch(space, accepts, num_best)
    deadline = time.monotonic() + budget
    for group in space.groups:
        if has_degrees(group.spec) and group.sums is not None:
            search.push_group(group)
    while search.heap and search.heap[0][0] < search.limit:
        if search.best and time.monotonic() > deadline:
            break
        search.expand()
    return search.result()


@dataclass(eq=False)
class _SpecSearch:
    """The state of a search: its heap and what it has found.

    Attributes are the arguments of `search_specs`.
    """

    space: SpecSpace
    accepts: Accepts
    num_best: int
    heap: list[tuple[float, int, SpecGroup, Level, PlanSpec, CutsOfFamily]] = field(
        default_factory=list
    )
    best: list[FoundSpec] = field(default_factory=list)
    num_priced: int = 0
    num_bounded: int = 0
    num_dives: int = 0

    @property
    def limit(self) -> float:
        """Return the seconds that a plan must be below to be among the best."""
        return self.best[-1].seconds if len(self.best) == self.num_best else np.inf

    def push_group(self, group: SpecGroup) -> None:
        """Add a group to the heap, with its bound."""
        self._push(group_bound(group), group, Level.GROUP, group.spec)

    def expand(self) -> None:
        """Take the first entry of the heap: split it if it stands for several plans, else price."""
        bound, _, group, level, spec, cuts = heapq.heappop(self.heap)
        if level is Level.GROUP:
            self._expand_group(group)
        elif level is Level.ZERO and self._may_accept(group, spec, ("none", "full")):
            self._expand_zero(group, spec, bound / SLACK)
        elif level is Level.FAMILY:
            self._expand_family(group, spec, cuts)
        elif level is Level.PLAN and self.accepts(spec):
            self._price(group, spec)
        elif level is Level.PLAN and spec.recompute_kind == "block":
            # Who cannot be told to recompute some layers may be told to recompute all.
            every = spec.with_words(recompute="full")
            self._push(bound_plan(group, every), group, Level.PLAN, every)

    def _expand_zero(self, group: SpecGroup, plain: PlanSpec, bound: float) -> None:
        """Add the kinds of recomputation of a group's ZeRO stage to the heap, with their bounds.

        Args:
            group: The group.
            plain: Its words with the ZeRO stage.
            bound: Seconds that no plan without recomputation is below.
        """
        for family in list_families(group, plain):
            least_seconds = bound
            if family.recompute_kind != "none":
                least_seconds = bound_family(group, family)
            self._push(least_seconds, group, Level.FAMILY, family)
        for recompute in list_recomputed_modules(group.setting):
            partial = group.recomputing(recompute)
            family = plain.with_words(recompute=recompute)
            if partial.holds(family):
                least_seconds = bound_family(partial, family)
                self._push(least_seconds, partial, Level.FAMILY, family)

    def _expand_group(self, group: SpecGroup) -> None:
        """Add a group's ZeRO stages to the heap, with their bounds without recomputation."""
        # Groups over which ZeRO 2 is too slow; ZeRO 3 is slower still.
        slow: set[int | None] = set()
        for plain in group.stages_of_zero:
            if plain.zero > SHARDED and plain.zero_group in slow:
                continue
            bound = bound_family(group, plain)
            if plain.zero == SHARDED and bound * SLACK >= self.limit:
                slow.add(plain.zero_group)
            self._push(bound, group, Level.ZERO, plain)

    def _may_accept(
        self, group: SpecGroup, plain: PlanSpec, kinds: Sequence[str]
    ) -> bool:
        """Return whether any plan with a ZeRO stage may be accepted.

        Args:
            group: The group of the plans.
            plain: Its words with the ZeRO stage.
            kinds: Kinds of recomputation of which the plan has one.
        """
        plans = [plain.with_words(recompute=kind) for kind in kinds]
        return any(
            self.accepts(row) for plan in plans for row in sample_family(group, plan)
        )

    def _expand_family(
        self, group: SpecGroup, family: PlanSpec, cuts: CutsOfFamily
    ) -> None:
        """Add the plan of a family's next schedule and cut to the heap, with its bound.

        The first plan of each of the first families is priced at once: a limit that is found early
        leaves out more of the others.

        Args:
            group: The group of the family.
            family: The words of the family.
            cuts: Its schedules and cuts that are left; empty: all of them.
        """
        is_first = not cuts
        if is_first:
            if not self._may_accept(group, family, (family.recompute, "full")):
                return
            cuts = bound_family_cuts(group, family)
        if not cuts:
            return
        row = make_cut_row(group, family, cuts.pop()[1])
        if cuts:
            self._push(cuts[-1][0], group, Level.FAMILY, family, cuts)
        if row is None:
            return
        bound = bound_plan(group, row)
        if is_first and self.num_dives < MOST_DIVES and self.accepts(row):
            self.num_bounded += 1
            self.num_dives += 1
            if bound * SLACK < self.limit:
                self._price(group, row)
        else:
            self._push(bound, group, Level.PLAN, row)

    def _price(self, group: SpecGroup, spec: PlanSpec) -> None:
        """Price a plan, and keep it if it is among the best."""
        if spec.recomputes_by_rank:
            fewest = find_fewest_recomputed(group, spec)
            if fewest != spec and not is_listed(spec.schedule):
                # Its bound was that of layers that rank 0 alone recomputes.
                self._push(bound_plan(group, fewest), group, Level.PLAN, fewest)
                return
            spec = fewest
        self.num_priced += 1
        answer = self.space.answer(spec)
        if not answer.feasible:
            # Another rank is fuller than the first.
            if spec.recompute_kind == "block" and not spec.recomputes_by_rank:
                leaner = _with_layers(group, spec, spec.recompute_layers(0) + 1)
                self._push(bound_plan(group, leaner), group, Level.PLAN, leaner)
            return
        plan = FoundSpec(spec, answer)
        if plan.seconds < self.limit:
            self.best = sorted([*self.best, plan], key=lambda one: one.seconds)[
                : self.num_best
            ]

    def result(self) -> FoundSpecs:
        """Return the result of the search so far."""
        bound = self.best[0].seconds if self.best else np.inf
        if self.heap:
            bound = min(bound, self.heap[0][0])
        return FoundSpecs(
            best=tuple(self.best),
            bound=bound,
            num_priced=self.num_priced,
            num_bounded=self.num_bounded,
        )

    def _push(
        self,
        bound: float,
        group: SpecGroup,
        level: Level,
        spec: PlanSpec,
        cuts: CutsOfFamily | None = None,
    ) -> None:
        """Add an entry to the heap if it may hold one of the best plans.

        Args:
            bound: Seconds that none of its plans is below.
            group: The group of its plans.
            level: What the entry stands for.
            spec: The words that its plans share.
            cuts: Schedules and cuts of a family that are left; None: all of them.
        """
        self.num_bounded += 1
        if bound * SLACK < self.limit:
            entry = bound * SLACK, self.num_bounded, group, level, spec, cuts or []
            heapq.heappush(self.heap, entry)


def sample_family(group: SpecGroup, family: PlanSpec) -> Iterator[PlanSpec]:
    """Yield plans of a family of which a launcher can say one if it can say any.

    They have every cut of the layers under every name of a schedule.
    """
    schedules = {
        name.partition(":")[0]: name
        for name in list_schedules(group.setting, family.pp, group.microbatches)
    }
    for schedule in schedules.values():
        for layers in list_cuts(group.setting, family.pp, schedule):
            yield family.with_words(schedule=schedule, layers=layers)


def bound_family_cuts(group: SpecGroup, family: PlanSpec) -> CutsOfFamily:
    """Return the schedules and cuts of a family with their bounds, the least bound last.

    Schedules that the group's micro-batches cannot have are left out.

    Args:
        group: The group of the family.
        family: The words of the family.
    """
    bounds = bound_group(group, family) if family.pp > 1 else np.zeros(1)
    order = np.argsort(-bounds, kind="stable")
    order = order[np.isfinite(bounds[order])]
    return list(zip(bounds[order].tolist(), order.tolist(), strict=True))


def make_cut_row(group: SpecGroup, family: PlanSpec, cut: int) -> PlanSpec | None:
    """Return the plan of a family with a schedule and a cut, or None if rank 0 is too small.

    Families that recompute some layers recompute as few of each stage as rank 0 needs, or of
    rank 0's alone where other ranks may have other numbers.

    Args:
        group: The group of the family.
        family: The words of the family.
        cut: The number of the schedule and cut in `group.cuts`.
    """
    cuts = group.cuts
    row = family.with_words(schedule=cuts.schedules[cut], layers=cuts.layers[cut])
    if family.recompute_kind != "block":
        return None if first_rank_lacks(group, row) else row

    def fits(count: int) -> bool:
        return not first_rank_lacks(group, _with_layers(group, row, count))

    most_layers = max(count_stage_layers(group.setting, row))
    count = first_that(fits, max(most_layers, 1))
    if not fits(count):
        return None
    if row.pp > 1 and group.setting.framework.traits.recomputes_by_rank:
        counts = [count] + [0] * (row.pp - 1)
        return row.with_words(recompute=f"block:{'+'.join(map(str, counts))}")
    return _with_layers(group, row, count)


def find_fewest_recomputed(group: SpecGroup, spec: PlanSpec) -> PlanSpec:
    """Return a plan that recomputes as few layers on every rank as fit there.

    What a rank holds depends on its own stages alone, so that all ranks are bisected at once. More
    layers never take less time, with the passes in the same order.

    Args:
        group: The group of the plan.
        spec: The plan with the fewest layers that every rank may need, as `block:K+K+K`.

    Returns:
        The plan; with all layers on ranks that are too small in any case.
    """
    setting = group.setting
    upper = np.zeros(spec.pp, dtype=np.int64)
    ranks = chunk_ranks(spec.schedule, spec.pp)
    for rank, count in zip(ranks, count_stage_layers(setting, spec), strict=True):
        upper[rank] = max(upper[rank], count)
    tried = lower = np.minimum(spec.recompute_counts, upper)
    while True:
        text = "+".join(map(str, tried.tolist()))
        spec = spec.with_words(recompute=f"block:{text}")
        if (lower == upper).all():
            return spec
        fits = ranks_that_fit(group, spec)
        if fits is None:
            return spec
        upper = np.where(fits, tried, upper)
        lower = np.where(fits, lower, np.minimum(tried + 1, upper))
        tried = (lower + upper) // 2


def ranks_that_fit(group: SpecGroup, spec: PlanSpec) -> BoolArray | None:
    """Return whether a plan fits the devices of each rank; None if it cannot be priced. [ranks]

    Args:
        group: The group of the plan.
        spec: The plan, with several ranks.
    """
    if is_listed(spec.schedule):  # what is in flight depends on the times
        try:
            priced = price_spec(group.setting, spec)
        except InputError:
            return None
        reserved = np.array([rank.reserved for rank in rank_bytes(priced)])
        return np.asarray(reserved <= np.array(priced.memory))
    stages = stages_by_kind(group, spec)
    costs: list[StageBytes] = []
    for first, last, rank in stages.ends:
        cost = group.stage_bytes(spec, first, last, rank)
        if cost is None:
            return None
        costs.append(cost)
    # Stages are counted rank by rank, and then in the order of the pipeline.
    saved = np.zeros(stages.kinds.size)
    order = np.argsort(chunk_ranks(spec.schedule, spec.pp), kind="stable")
    of_kinds = np.array([cost.saved for cost in costs])
    saved[order] = of_kinds[stages.kinds.T.ravel()]
    rows = make_fixed_rows(spec.schedule, spec.pp, saved.size, group.microbatches)
    fits: list[bool] = []
    for rank, saved_bytes in enumerate(find_peak_saved(*rows, saved).tolist()):
        of_rank = [costs[kind] for kind in stages.kinds[:, rank].tolist()]
        usable = group.pricer.framework.usable_memory(group.kinds[rank])
        memory = group.pricer.rank_bytes(of_rank, saved_bytes)
        fits.append(memory.reserved <= usable)
    return np.array(fits)


def _with_layers(group: SpecGroup, spec: PlanSpec, count: int) -> PlanSpec:
    """Return a plan that recomputes a number of layers of each stage."""
    is_full = count >= max(count_stage_layers(group.setting, spec))
    return spec.with_words(recompute="full" if is_full else f"block:{count}")
