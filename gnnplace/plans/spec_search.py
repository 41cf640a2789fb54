"""The fastest plan that words can say on a framework, proven so: a search by lower bounds.

The space is every product of dp, tp, cp, ep and pp that is the devices' number, with tokens split
between products or not, every micro-batch that divides the batch, every ZeRO stage and schedule of
the framework, every number of chunks that the layers allow, the framework's cut of the layers and
those of `CUTS`, and the least recomputation that fits: none, attention alone, or so many layers of
each stage. Best first (Land and Doig, 1960): a heap of plans by a step time that they cannot be
below; the first is priced exactly by the planner's own pricer, and the search ends when the first
of the heap is no faster than the plans that were found. What it finds is then the least of the
space.

The bound of rank p, with P ranks, M micro-batches, and F, B the passes of the chunks before its
first one::

    T >= F + p messages + M (forward + backward of the rank's chunks)
         + max(E_p, B + p messages + E_0)

A rank begins after its first chunk's input has come through the chunks before. After its last pass
it exchanges gradients and updates its parameters, in E_p seconds, and its last gradient goes back
through the chunks before to rank 0, which does so too. Passes are those of the pricer, with the
plan's ZeRO stage and recomputation; `least_seconds` has kernels alone, and costs less. Plans that
share devices and micro-batch stand in the heap together until their common bound comes first.

Complexity: a heap operation and O(P v) a row for v chunks a rank; an exact price,
O(P v M), for each row whose bound is below the answer. The cost grows with the divisors of the
devices' number, not with the devices.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from gnnplace.arrays import IntArray
from gnnplace.errors import InputError
from gnnplace.plans.decoders.setting import PricingSetting
from gnnplace.plans.decoders.stages import layers_of
from gnnplace.plans.order.orders import chunk_ranks
from gnnplace.plans.search.framework_pricing import FrameworkPricer
from gnnplace.plans.search.stage import SegmentSums, StageBytes, StageCost
from gnnplace.plans.segments.chain import divisors_of
from gnnplace.plans.spec import Layers, PlanSpec
from gnnplace.plans.spec_answers import (
    PlanAnswer,
    check_framework,
    draft_of_sizes,
    layers_of_stages,
    price,
    pricer_of_spec,
    segments_of_stages,
    stage_of_sizes,
)

CUTS = ("ends", "least", "even")
"""Cuts of the layers that are tried beside the framework's own."""
MOST_EXAMPLES = 64
"""Examples of a micro-batch on a replica at most."""
MOST_CHUNKS = 32
"""Chunks of a rank at most."""
MOST_CONTEXT = 64
"""Shards of an example's tokens at most."""
MOST_DIVES = 100
"""Families whose first plan is priced at once."""
SLACK = 1 - 1e-9
"""Bounds are lowered by this factor, so that rounding never cuts off an equal plan."""
Accepts = Callable[[PlanSpec], bool]


class Level(Enum):
    """What an entry of the heap stands for."""

    GROUP = "group"
    FAMILY = "family"  # a ZeRO stage and a kind of recomputation of a group
    PLAN = "plan"


@dataclass(frozen=True)
class FoundSpec:
    """A plan that was found.

    Attributes:
        spec: In words.
        answer: What it takes.
    """

    spec: PlanSpec
    answer: PlanAnswer

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        assert self.answer.step_time is not None
        return self.answer.step_time


@dataclass(frozen=True)
class FoundSpecs:
    """What a search over words found.

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


@dataclass(frozen=True, eq=False)
class SpecGroup:
    """Plans that cut one micro-batch over the same devices in the same way.

    Attributes:
        setting: The sizes, the devices and the framework.
        spec: Their words without schedule, cut, ZeRO and recomputation.
        smaller: The group of the next smaller micro-batch on the same devices; None: there is none.
    """

    setting: PricingSetting
    spec: PlanSpec
    smaller: SpecGroup | None = None
    _costs: dict[tuple[object, ...], StageCost | None] = field(default_factory=dict)
    _bytes: dict[tuple[object, ...], StageBytes | None] = field(default_factory=dict)
    _holds: dict[tuple[int, str], bool] = field(default_factory=dict)
    _counts: dict[int, int] = field(default_factory=dict)

    @cached_property
    def pricer(self) -> FrameworkPricer:
        """Return what prices its stages."""
        return pricer_of_spec(self.setting, self.spec)

    @cached_property
    def sums(self) -> SegmentSums | None:
        """Return prefix sums of its segments' costs; None where the model cannot be cut so."""
        sizes = self.setting.decoder
        stage = stage_of_sizes(sizes, self.spec, 0, 0, sizes.layers + 2)
        return self.pricer.sums(stage.mesh, choice=stage.choice)

    @property
    def microbatches(self) -> int:
        """Micro-batches of a step."""
        return self.spec.num_microbatches(self.spec.batch or self.setting.decoder.batch)

    @cached_property
    def bound(self) -> float:
        """Return seconds that no plan of the group is below: all work on all ranks at once."""
        sums = self.sums
        assert sums is not None
        work = float(sums.forward[-1] + sums.backward[-1] + sums.weights[-1])
        return self.microbatches * work / self.spec.pp

    @cached_property
    def usable(self) -> float:
        """Return the bytes that a device of the first rank has."""
        stage = stage_of_sizes(self.setting.decoder, self.spec, 0, 0, 1)
        return self.pricer.usable_memory(stage.mesh)

    def lacks(self, costs: Sequence[StageBytes], saved: float) -> bool:
        """Return whether a device cannot hold stages with so many bytes in flight."""
        return self.pricer.rank_bytes(costs, saved).reserved > self.usable * (1 + 1e-9)

    def stage_cost(self, spec: PlanSpec, first: int, last: int) -> StageCost | None:
        """Return what a stage of the first rank takes; None where it cannot be cut so.

        Stages of as many layers of each kind take the same.

        Args:
            spec: The plan.
            first: The first segment of the stage.
            last: The segment after its last.
        """
        key = self._key(spec, first, last)
        if key not in self._costs:
            stage = stage_of_sizes(self.setting.decoder, spec, 0, first, last)
            self._costs[key] = self.pricer.cost(stage)
        return self._costs[key]

    def stage_bytes(self, spec: PlanSpec, first: int, last: int) -> StageBytes | None:
        """Return the bytes of a stage of the first rank; arguments as of `stage_cost`."""
        key = self._key(spec, first, last)
        if key in self._costs:
            return self._costs[key]
        if key not in self._bytes:
            stage = stage_of_sizes(self.setting.decoder, spec, 0, first, last)
            self._bytes[key] = self.pricer.stage_bytes(stage)
        return self._bytes[key]

    def _key(self, spec: PlanSpec, first: int, last: int) -> tuple[object, ...]:
        """Return what the cost of a stage depends on."""
        return spec.zero, spec.recompute, kind_of_stage(self.setting, first, last)

    @property
    def past_mean(self) -> int:
        """Return the segment after the mean number of layers; some rank has as many at least.

        Those from the first on are the smallest.
        """
        return 1 - (-self.setting.decoder.layers // self.spec.pp)

    def holds(self, spec: PlanSpec) -> bool:
        """Return whether the first and the fullest rank may hold a plan's stages under any cut.

        A larger micro-batch has no fewer bytes: its activations grow as it does, and where it makes
        fewer micro-batches than are in flight, their sum stays.
        """
        key = spec.zero, spec.recompute
        if key not in self._holds:
            smaller = self.smaller is None or self.smaller.holds(spec)
            self._holds[key] = smaller and self._can_hold(spec) and self._first_can_hold(spec)
        return self._holds[key]

    def _can_hold(self, spec: PlanSpec) -> bool:
        """Return whether the fullest rank can hold its layers with one micro-batch in flight."""
        cost = self.stage_bytes(spec, 1, self.past_mean)
        return cost is not None and not self.lacks([cost], cost.saved)

    def _first_can_hold(self, spec: PlanSpec) -> bool:
        """Return whether rank 0 can hold the fewest layers that any cut gives it, under 1F1B.

        No schedule that ends in every step has fewer micro-batches in flight there.
        """
        cost = self.stage_bytes(spec, 0, 1 + fewest_of_first_rank(self.setting, self.spec.pp))
        flying = min(self.spec.pp, self.microbatches)
        return cost is not None and not self.lacks([cost], flying * cost.saved)

    def least_layers(self, spec: PlanSpec) -> int:
        """Return the fewest layers that must be recomputed so that rank 0 may hold a plan."""
        if spec.zero not in self._counts:
            low = 1 if self.smaller is None else self.smaller.least_layers(spec)
            most = max(fewest_of_first_rank(self.setting, self.spec.pp), 1)

            def fits(count: int) -> bool:
                return self._first_can_hold(spec.with_words(recompute=f"block:{count}"))

            self._counts[spec.zero] = first_that(fits, most, low)
        return self._counts[spec.zero]

    def family_bound(self, spec: PlanSpec) -> float:
        """Return seconds that no plan with a ZeRO stage and recomputation is below."""
        cost = self.stage_cost(spec, 1, self.past_mean)
        if cost is None:
            return np.inf
        # Exchanges at the end may be hidden by schedules with several stages a rank; updates not.
        return max(self.bound, self.microbatches * cost.microbatch + cost.update)

    @cached_property
    def message(self) -> float:
        """Return the seconds of what crosses a cut."""
        pp = self.spec.pp
        if pp == 1:
            return 0.0
        layers = layers_of(self.setting.decoder, pp, "even")  # every cut has one message's size
        draft = draft_of_sizes(self.setting, self.spec.with_words(layers=layers))
        return self.pricer.message(draft.size, draft.stages[0], draft.stages[1])


@dataclass(frozen=True, eq=False)
class SpecSpace:
    """All plans in words of a model on so many devices; several searches share what they priced.

    Attributes:
        setting: The sizes, the devices and the framework.
        batch: Examples of a step.
        num_devices: Devices that every plan uses; the first of the cluster.
    """

    setting: PricingSetting
    batch: int
    num_devices: int
    _answers: dict[PlanSpec, PlanAnswer] = field(default_factory=dict)

    @cached_property
    def groups(self) -> tuple[SpecGroup, ...]:
        """Groups of plans by which the model can be cut."""
        groups = groups_of(self.setting, self.batch, self.num_devices)
        return tuple(group for group in groups if group.sums is not None)

    def answer(self, spec: PlanSpec) -> PlanAnswer:
        """Return what a plan takes, or why it cannot be."""
        if spec not in self._answers:
            self._answers[spec] = price(self.setting, spec)
        return self._answers[spec]


def search_specs(
    space: SpecSpace,
    *,
    accepts: Accepts = lambda spec: True,
    num_best: int = 3,
    budget: float = np.inf,
) -> FoundSpecs:
    """Search the fastest plans in words.

    Args:
        space: The model, its batch and the devices.
        accepts: Whether a plan may be an answer, such as whether a launcher can say it.
        num_best: Plans to find.
        budget: Wall seconds after which the best so far are returned, with their bound; a first
            plan is found in any case.

    Returns:
        The plans. Within the budget the bound is the step time of the fastest.
    """
    search = _SpecSearch(space, accepts, num_best)
    deadline = time.monotonic() + budget
    for group in space.groups:
        search.push_group(group)
    while search.heap and search.heap[0][0] < search.limit:
        if search.best and time.monotonic() > deadline:
            break
        search.expand()
    return search.result()


@dataclass(eq=False)
class _SpecSearch:
    """The heap of a search, and what it found; attributes as of `search_specs`."""

    space: SpecSpace
    accepts: Accepts
    num_best: int
    heap: list[tuple[float, int, SpecGroup, Level, PlanSpec]] = field(default_factory=list)
    best: list[FoundSpec] = field(default_factory=list)
    num_priced: int = 0
    num_bounded: int = 0
    num_dives: int = 0

    @property
    def limit(self) -> float:
        """Return the seconds that a plan must be below to be among the best."""
        return self.best[-1].seconds if len(self.best) == self.num_best else np.inf

    def push_group(self, group: SpecGroup) -> None:
        """Add a group."""
        self._push(group.bound, group, Level.GROUP, group.spec)

    def expand(self) -> None:
        """Take the first of the heap: what stands for several plans is parted, a plan is priced."""
        _, _, group, level, spec = heapq.heappop(self.heap)
        if not self._may_accept(group, level, spec):
            return
        if level is Level.GROUP:
            for family in families_of(group):
                self._push(group.family_bound(family), group, Level.FAMILY, family)
        elif level is Level.FAMILY:
            rows: list[tuple[float, PlanSpec]] = []
            for row in rows_of_family(group, spec, self.limit):
                rows.append((row_bound(group, row), row))
            self._push_rows(group, rows)
        else:
            self._price(group, spec)

    def _may_accept(self, group: SpecGroup, level: Level, spec: PlanSpec) -> bool:
        """Return whether a plan, or any of those that an entry stands for, may be accepted."""
        if level is Level.PLAN:
            return self.accepts(spec)
        return any(self.accepts(plan) for plan in samples_of(group, level, spec))

    def _push_rows(self, group: SpecGroup, rows: list[tuple[float, PlanSpec]]) -> None:
        """Add the plans of a family with their bounds.

        The first plan of a family is priced at once in the beginning: a limit that is found early
        leaves more of the others out.
        """
        rows.sort(key=lambda pair: pair[0])
        if rows and self.num_dives < MOST_DIVES and self.accepts(rows[0][1]):
            bound, row = rows.pop(0)
            self.num_bounded += 1
            self.num_dives += 1
            if bound * SLACK < self.limit:
                self._price(group, row)
        for bound, row in rows:
            self._push(bound, group, Level.PLAN, row)

    def _price(self, group: SpecGroup, spec: PlanSpec) -> None:
        """Price a plan, and keep it if it is among the best."""
        self.num_priced += 1
        answer = self.space.answer(spec)
        if not answer.feasible:
            if spec.recompute_kind == "block":  # another rank is fuller than the first
                leaner = _with_layers(group, spec, spec.recompute_layers + 1)
                self._push(row_bound(group, leaner), group, Level.PLAN, leaner)
            return
        plan = FoundSpec(spec, answer)
        if plan.seconds < self.limit:
            self.best = sorted([*self.best, plan], key=lambda one: one.seconds)[: self.num_best]

    def result(self) -> FoundSpecs:
        """Return what was found."""
        bound = self.best[0].seconds if self.best else np.inf
        if self.heap:
            bound = min(bound, self.heap[0][0])
        return FoundSpecs(
            best=tuple(self.best),
            bound=bound,
            num_priced=self.num_priced,
            num_bounded=self.num_bounded,
        )

    def _push(self, bound: float, group: SpecGroup, level: Level, spec: PlanSpec) -> None:
        """Add plans that may be among the best."""
        self.num_bounded += 1
        if bound * SLACK < self.limit:
            heapq.heappush(self.heap, (bound * SLACK, self.num_bounded, group, level, spec))


def groups_of(setting: PricingSetting, batch: int, num_devices: int) -> Iterator[SpecGroup]:
    """Yield the groups of plans of so many devices that the framework can say."""
    sizes, framework = setting.decoder, setting.framework
    splits_tokens = framework.constants["splits_tokens"] > 0
    num_experts = sizes.experts.count if sizes.experts else 1
    for pp, tp in itertools.product(divisors_of(num_devices), repeat=2):
        if num_devices % (pp * tp) or pp > sizes.layers or tp > sizes.heads:
            continue
        rest = num_devices // (pp * tp)
        for cp in divisors_of(rest):
            if cp > MOST_CONTEXT:
                continue
            dp = rest // cp
            if batch % dp:
                continue
            groups = [ep for ep in divisors_of(dp * cp) if num_experts % ep == 0]
            examples = [m for m in divisors_of(batch // dp) if m <= MOST_EXAMPLES]
            splits = (True, False) if tp > 1 and splits_tokens else (splits_tokens or tp == 1,)
            for ep, sp in itertools.product(groups, splits):
                yield from _groups_of_devices(
                    setting,
                    PlanSpec(dp=dp, tp=tp, cp=cp, ep=ep, pp=pp, sp=sp, batch=batch),
                    examples,
                )


def _groups_of_devices(
    setting: PricingSetting, spec: PlanSpec, examples: Sequence[int]
) -> Iterator[SpecGroup]:
    """Yield a group for each number of examples of a micro-batch on the same devices.

    Args:
        setting: The sizes, the devices and the framework.
        spec: The degrees of parallelism.
        examples: Of a micro-batch on a replica, the fewest first.
    """
    smaller: SpecGroup | None = None
    for size in examples:
        sized = spec.with_words(microbatch_size=size)
        try:
            check_framework(setting, sized.with_words(pp=1))
        except InputError:
            continue
        smaller = SpecGroup(setting, sized, smaller)
        yield smaller


def families_of(group: SpecGroup) -> Iterator[PlanSpec]:
    """Yield a group's ZeRO stages and kinds of recomputation that may fit.

    A family that recomputes layers has the fewest with which rank 0 may fit.
    """
    spec = group.spec
    zeros = group.setting.framework.traits.zero_stages if spec.dp * spec.cp > 1 else (0,)
    for zero in zeros:
        plain = spec.with_words(zero=zero)
        if not group.holds(plain.with_words(recompute="full")):
            continue
        for kind in ("none", "selective"):
            family = plain.with_words(recompute=kind)
            if group.holds(family):
                yield family
        yield plain.with_words(recompute=f"block:{group.least_layers(plain)}")


def samples_of(group: SpecGroup, level: Level, spec: PlanSpec) -> Iterator[PlanSpec]:
    """Yield plans of which one can be said if any can that an entry of the heap stands for.

    They have every ZeRO stage, kind of recomputation and name of a schedule of the entry.
    """
    families = [spec]
    if level is Level.GROUP:
        zeros = group.setting.framework.traits.zero_stages
        kinds = itertools.product(zeros, ("none", "full"))
        families = [spec.with_words(zero=zero, recompute=kind) for zero, kind in kinds]
    schedules = {name.partition(":")[0]: name for name in schedules_of(group)}
    for family in families:
        for schedule in schedules.values():
            for layers in cuts_of(group.setting, spec.pp, schedule):
                yield family.with_words(schedule=schedule, layers=layers)


def rows_of_family(group: SpecGroup, family: PlanSpec, limit: float = np.inf) -> Iterator[PlanSpec]:
    """Yield the plans of a family: its schedules and cuts of the layers.

    Where layers are recomputed, as few of each stage as rank 0 needs.

    Args:
        group: Of the family.
        family: Its words.
        limit: Seconds; plans that cannot be below are left out.
    """
    for schedule in schedules_of(group):
        for layers in cuts_of(group.setting, family.pp, schedule):
            stages = alike_stages(group.setting, family.pp, schedule, layers)
            if least_seconds(group, stages) * SLACK >= limit:
                continue
            row = family.with_words(schedule=schedule, layers=layers)
            if family.recompute_kind != "block":
                if not first_rank_lacks(group, row):
                    yield row
                continue

            def fits(count: int, row: PlanSpec = row) -> bool:
                return not first_rank_lacks(group, _with_layers(group, row, count))

            most = max(layers_of_stages(group.setting, row))
            count = first_that(fits, max(most, 1))
            if fits(count):
                yield _with_layers(group, row, count)


def first_that(holds: Callable[[int], bool], most: int, least: int = 1) -> int:
    """Return the least number that holds, where larger ones do too; `most` if none.

    Args:
        holds: What is asked of a number.
        most: The largest number.
        least: The first number that may hold.
    """
    low, high = min(least, most), most
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def schedules_of(group: SpecGroup) -> Iterator[str]:
    """Yield the schedules that the framework has for a group."""
    names, spec = group.setting.framework.traits.schedules, group.spec
    yield "1f1b"
    if spec.pp == 1:
        return
    if "gpipe" in names:
        yield "gpipe"
    if group.microbatches % spec.pp == 0:
        yield from interleaved_schedules(group.setting, spec.pp)


def interleaved_schedules(setting: PricingSetting, pp: int) -> Iterator[str]:
    """Yield the interleaved schedules that the framework and the layers allow."""
    if pp > 1 and "interleaved" in setting.framework.traits.schedules:
        for chunks in range(2, min(MOST_CHUNKS, setting.decoder.layers // pp) + 1):
            yield f"interleaved:{chunks}"


@lru_cache(maxsize=4096)
def cuts_of(setting: PricingSetting, pp: int, schedule: str) -> tuple[tuple[int, ...] | None, ...]:
    """Return the layers of every stage, each cut once; None: as the framework cuts."""
    if pp == 1:
        return (None,)
    decoder, usual = setting.decoder, setting.framework.traits.cut
    cuts: dict[tuple[int, ...], tuple[int, ...] | None] = {}
    for rule in (usual, *CUTS):
        try:
            layers = layers_of(decoder, len(chunk_ranks(schedule, pp)), rule)
        except InputError:
            continue
        if sum(layers) == decoder.layers:
            cuts.setdefault(layers, None if rule == usual else layers)
    return tuple(cuts.values())


@lru_cache(maxsize=1024)
def fewest_of_first_rank(setting: PricingSetting, pp: int) -> int:
    """Return the fewest layers that a cut of `cuts_of` gives rank 0 under any schedule."""
    fewest = setting.decoder.layers // pp
    for schedule in ("1f1b", *interleaved_schedules(setting, pp)):
        for cut in cuts_of(setting, pp, schedule):
            stages = len(chunk_ranks(schedule, pp))
            layers = cut or layers_of(setting.decoder, stages, setting.framework.traits.cut)
            fewest = min(fewest, sum(layers[::pp]))
    return fewest


def _with_layers(group: SpecGroup, spec: PlanSpec, count: int) -> PlanSpec:
    """Return a plan that recomputes so many layers of each stage."""
    is_full = count >= max(layers_of_stages(group.setting, spec))
    return spec.with_words(recompute="full" if is_full else f"block:{count}")


class AlikeStages(NamedTuple):
    """Stages of a plan by what they have: those of one kind cost the same.

    Attributes:
        ends: First segment and the one after the last, of one stage of each kind. [kinds]
        kinds: The kind of every stage. [chunks of a rank, ranks]
        columns: Kinds of the chunks of a rank, of ranks that are unlike.
        columns_of_ranks: Which of `columns` each rank has. [ranks]
    """

    ends: tuple[tuple[int, int], ...]
    kinds: IntArray
    columns: tuple[tuple[int, ...], ...]
    columns_of_ranks: IntArray


@lru_cache(maxsize=8192)
def alike_stages(
    setting: PricingSetting, pp: int, schedule: str, layers: Layers | None
) -> AlikeStages:
    """Return the stages of plans with a number of ranks, a schedule and a cut, by their kinds.

    Args:
        setting: The sizes and the framework.
        pp: Ranks.
        schedule: Its name and number of chunks.
        layers: Of every stage; None: as the framework cuts.
    """
    spec = PlanSpec(pp=pp, schedule=schedule, layers=layers)
    numbers: dict[tuple[object, ...], int] = {}
    ends: list[tuple[int, int]] = []
    kinds: list[int] = []
    for first, last in segments_of_stages(setting, spec):
        key = kind_of_stage(setting, first, last)
        if key not in numbers:
            numbers[key] = len(ends)
            ends.append((first, last))
        kinds.append(numbers[key])
    of_ranks = [tuple(kinds[rank::pp]) for rank in range(pp)]
    columns = {column: number for number, column in enumerate(dict.fromkeys(of_ranks))}
    return AlikeStages(
        ends=tuple(ends),
        kinds=np.array(kinds).reshape(-1, pp),
        columns=tuple(columns),
        columns_of_ranks=np.array([columns[column] for column in of_ranks]),
    )


def kind_of_stage(setting: PricingSetting, first: int, last: int) -> tuple[object, ...]:
    """Return what tells stages apart: their layers of each kind, and the ends of the model."""
    sizes = setting.decoder
    dense = sizes.experts.dense if sizes.experts else 0
    num_dense = max(0, min(last, 1 + dense) - max(first, 1))
    return last - first, num_dense, first == 0, last == sizes.layers + 2


def least_seconds(group: SpecGroup, stages: AlikeStages) -> float:
    """Return seconds that no plan with a cut is below, by its kernels alone."""
    sums = group.sums
    assert sums is not None
    totals = (sums.forward, sums.backward, sums.weights)
    seconds: list[float] = []
    for first, last in stages.ends:
        seconds.append(sum(float(total[last] - total[first]) for total in totals))
    of_stages = np.array(seconds)[stages.kinds]
    firsts = of_stages[0] + 2.0 * group.message
    work = group.microbatches * of_stages.sum(axis=0)
    return float((np.cumsum(firsts) - firsts + work).max())


def row_bound(group: SpecGroup, spec: PlanSpec) -> float:
    """Return seconds that a plan cannot be below; see the head of the file."""
    stages = alike_stages(group.setting, spec.pp, spec.schedule, spec.layers)
    costs: list[StageCost] = []
    for first, last in stages.ends:
        cost = group.stage_cost(spec, first, last)
        if cost is None:
            return np.inf
        costs.append(cost)
    following = min(spec.pp, group.microbatches)
    ends: list[float] = []
    for column in stages.columns:
        of_rank = [costs[kind] for kind in column]
        ends.append(group.pricer.rank_end(of_rank, spec.zero, following))
    ends_of_ranks = np.array(ends)[stages.columns_of_ranks]
    passes = np.array([(cost.forward, cost.backward + cost.weights) for cost in costs])
    of_stages = passes[stages.kinds]
    firsts = of_stages[0] + group.message
    fill, drain = (np.cumsum(firsts, axis=0) - firsts).T
    work = group.microbatches * of_stages.sum(axis=(0, 2))
    return float((fill + work + np.maximum(ends_of_ranks, drain + ends_of_ranks[0])).max())


def first_rank_lacks(group: SpecGroup, spec: PlanSpec) -> bool:
    """Return whether the first rank's devices cannot hold what the schedule has in flight."""
    costs: list[StageBytes] = []
    saved = 0.0
    for ends, count, flying in first_rank_stages(
        group.setting, spec.pp, spec.schedule, spec.layers, group.microbatches
    ):
        cost = group.stage_bytes(spec, *ends)
        if cost is None:
            return True
        costs += [cost] * count
        saved += flying * cost.saved
    return group.lacks(costs, saved)


@lru_cache(maxsize=16384)
def first_rank_stages(
    setting: PricingSetting, pp: int, schedule: str, layers: Layers | None, microbatches: int
) -> tuple[tuple[tuple[int, int], int, int], ...]:
    """Return the stages of rank 0 by their kinds.

    Args:
        setting: As of `alike_stages`, as all but the last.
        pp: Ranks.
        schedule: Its name and number of chunks.
        layers: Of every stage; None: as the framework cuts.
        microbatches: Of a step.

    Returns:
        Of each kind the first segment and the one after the last, the number of stages, and the
        micro-batches that all of these have in flight.
    """
    stages = alike_stages(setting, pp, schedule, layers)
    flying = flying_of_first_rank(schedule, pp, microbatches)
    numbers: dict[int, int] = {}
    in_flight: dict[int, int] = {}
    for kind, count in zip(stages.kinds[:, 0].tolist(), flying, strict=True):
        numbers[kind] = numbers.get(kind, 0) + 1
        in_flight[kind] = in_flight.get(kind, 0) + count
    return tuple((stages.ends[kind], numbers[kind], in_flight[kind]) for kind in numbers)


@lru_cache(maxsize=4096)
def flying_of_first_rank(schedule: str, pp: int, microbatches: int) -> tuple[int, ...]:
    """Return the micro-batches that each chunk of rank 0 has in flight before its first backward.

    1F1B: as many as there are ranks (Narayanan et al., 2019). Interleaved: 2 (P - 1) + (v - 1) P
    passes and one more, P micro-batches of a chunk by turns (Narayanan et al., 2021, section 2.2).
    """
    chunks = len(chunk_ranks(schedule, pp)) // pp
    if schedule == "gpipe":
        return (microbatches,)
    if chunks == 1:
        return (min(pp, microbatches),)
    passes = min(2 * (pp - 1) + (chunks - 1) * pp + 1, microbatches * chunks)
    counts = [0] * chunks
    for number in range(passes):
        counts[number // pp % chunks] += 1
    return tuple(counts)
