"""Groups of plans in words that split the same micro-batch over the same devices.

A group's plans differ in schedule, cut of the layers, ZeRO stage and recomputation. Its segments
are priced once for all of them; a family of a group has one ZeRO stage and kind of recomputation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.costs import (
    HIDDEN,
    HIDES_NOTHING,
    HIDES_REDUCE,
    NOTHING,
    Framework,
    ReplicaGroup,
    ReplicatedParameters,
    parse_offloading,
)
from gnnplace.errors import InputError
from gnnplace.plans.decoders.setting import PricingSetting
from gnnplace.plans.order.names import SHAPED_AS_V
from gnnplace.plans.search.framework_pricing import FrameworkPricer
from gnnplace.plans.search.stage import SegmentSums, Stage, StageBytes, StageCost
from gnnplace.plans.segments.chain import list_divisors
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import (
    PlanAnswer,
    check_framework,
    make_sized_stage,
    make_spec_pricer,
    price,
)
from gnnplace.plans.spec_cuts import (
    PipelineCuts,
    count_fewest_first_rank_layers,
    find_rank_kinds,
    find_stage_kind,
    pipeline_cuts,
)

MOST_EXAMPLES = 64
"""Examples of a micro-batch on a replica at most."""
SERVERS_OF_GROUP = (1, 4, 16, 64)
"""Servers of the groups of replicas that ZeRO is tried to share over."""
WHOLLY_SHARDED = 3
"""The ZeRO stage that shards parameters between their uses."""
MOST_CONTEXT = 64
"""Shards of an example's tokens at most."""


class GroupColumns(NamedTuple):
    """Prefix sums of the costs of a group's segments, or the costs of its stages.

    [segments + 1] each, or [stages] of all cuts.

    Attributes:
        forward: Seconds of the forward pass.
        backward: Seconds of both parts of the backward pass.
        host: Seconds that the host needs to launch both.
        parameters: Elements on a device.
        dense: Elements that are not experts'.
        attention: Seconds of layers' attention, which selective recomputation computes again.
        layers: Seconds of layers, which full recomputation computes again.
    """

    forward: FloatArray
    backward: FloatArray
    host: FloatArray
    parameters: FloatArray
    dense: FloatArray
    attention: FloatArray
    layers: FloatArray


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
    _holds: dict[tuple[int, int | None, str], bool] = field(default_factory=dict)
    _counts: dict[tuple[int, int | None], int] = field(default_factory=dict)
    _exposed: dict[tuple[object, ...], FloatArray] = field(default_factory=dict)
    _columns: dict[tuple[str, ...], GroupColumns] = field(default_factory=dict)
    _of_modules: dict[str, SpecGroup] = field(default_factory=dict)

    def recomputing(self, recompute: str) -> SpecGroup:
        """Return the same plans with modules of every layer that are recomputed.

        Args:
            recompute: The word `recompute`, such as "modules:layernorm".
        """
        if recompute not in self._of_modules:
            smaller = self.smaller
            self._of_modules[recompute] = SpecGroup(
                self.setting,
                self.spec.with_words(recompute=recompute),
                None if smaller is None else smaller.recomputing(recompute),
            )
        return self._of_modules[recompute]

    @cached_property
    def pricer(self) -> FrameworkPricer:
        """Return the pricer of the group's stages."""
        hidden = self.setting.framework.traits.may_hide
        spec = self.spec
        if spec.dp * spec.cp > 1 and hidden != HIDES_NOTHING:
            spec = spec.with_words(overlap=hidden)
        return make_spec_pricer(self.setting, spec)

    @cached_property
    def sums(self) -> SegmentSums | None:
        """Return prefix sums of the segments' costs, or None if the model cannot be cut so."""
        return self.pricer.sums(self.whole.mesh, choice=self.whole.choice)

    @cached_property
    def framework(self) -> Framework:
        """Return the framework on the fastest of the devices, of which no other takes less."""
        framework = self.pricer.framework
        if not framework.kinds:
            return framework
        on_kinds = framework.kinds
        fastest = min(on_kinds, key=lambda kind: on_kinds[kind].kernels.stream(1.0))
        return framework.with_kernels_of(fastest)

    @property
    def columns(self) -> GroupColumns:
        """Return the prefix sums of the costs of the group's segments on the first rank."""
        return self.sum_rank_columns(0)

    def sum_rank_columns(self, rank: int) -> GroupColumns:
        """Return the prefix sums of the costs of the group's segments on a rank."""
        kinds = self.kinds[rank]
        if kinds not in self._columns:
            self._columns[kinds] = self._sum_columns(kinds)
        return self._columns[kinds]

    @property
    def kinds(self) -> tuple[tuple[str, ...], ...]:
        """Return the kinds of the devices of every rank. [ranks]"""
        return find_rank_kinds(self.setting, self.spec.pp)

    def sum_columns_on(self, kinds: tuple[str, ...]) -> SegmentSums:
        """Return prefix sums of the segments' costs on devices of some kinds."""
        sums = self.pricer.sums(self.whole.mesh, kinds, self.whole.choice)
        assert sums is not None
        return sums

    def _sum_columns(self, kinds: tuple[str, ...]) -> GroupColumns:
        """Return the prefix sums of the costs of the group's segments on some kinds."""
        sums = self.sum_columns_on(kinds)
        costs = sums.costs
        is_layer = np.ones(len(costs.forward))
        is_layer[[0, -1]] = 0.0
        return GroupColumns(
            forward=sums.forward,
            backward=sums.backward + sums.weights,
            host=_sum_prefixes(costs.host),
            parameters=sums.parameters,
            dense=sums.parameters - _sum_prefixes(costs.experts),
            attention=_sum_prefixes(costs.attention * is_layer),
            layers=_sum_prefixes(costs.recomputed * is_layer),
        )

    @cached_property
    def dense_parameters(self) -> ReplicatedParameters:
        """Return the parameters of all ranks that are not experts', on one device of each."""
        return ReplicatedParameters(
            dense=float(self.columns.dense[-1]),
            experts=0.0,
            num_layers=0.0,
            largest=0.0,
        )

    def zero_as_run(self, family: PlanSpec) -> int:
        """Return the ZeRO stage whose exchanges the stages of a family have."""
        return self.pricer.zero_as_run(family.zero, is_whole=self.spec.pp == 1)

    def exposed(self, family: PlanSpec, rank: int) -> FloatArray:
        """Return prefix sums of the seconds that ZeRO's exchanges add. [2, segments + 1]

        Rows are the forward and the backward pass.
        """
        key = family.zero, family.zero_group, self.kinds[rank]
        if key not in self._exposed:
            costs = self.sum_columns_on(self.kinds[rank]).costs
            seconds = self.pricer.exposed(family.zero, costs, self.replicas(family))
            sums = np.cumsum(seconds, axis=1)
            self._exposed[key] = np.pad(sums, ((0, 0), (1, 0)))
        return self._exposed[key]

    @cached_property
    def cuts(self) -> PipelineCuts:
        """Return the schedules and cuts of the group's layers."""
        return pipeline_cuts(self.setting, self.spec.pp)

    @cached_property
    def whole(self) -> Stage:
        """Return a stage of all segments, to price what does not depend on where a stage ends."""
        sizes = self.setting.decoder
        return make_sized_stage(sizes, self.spec, 0, 0, sizes.layers + 2)

    def replicas(self, family: PlanSpec) -> ReplicaGroup:
        """Return the replicas that sum gradients, with the ZeRO stage and group of a family."""
        return self.pricer.replicas(
            self.whole.mesh, self.whole.choice, family.zero, family.zero_group
        )

    @cached_property
    def stages_of_zero(self) -> tuple[PlanSpec, ...]:
        """Return the group's plan with every ZeRO stage of the framework and every group for it.

        Groups are the replicas of one server, or of 4, 16 or 64 servers, or all.
        """
        spec, traits = self.spec, self.setting.framework.traits
        count, hidden = spec.dp * spec.cp, traits.may_hide
        stages = list_zero_stages(self.setting, spec)
        if count == 1:
            # With state on the host a device alone has parts of it, too (DeepSpeed's ZeRO 2 and 3).
            shared = [zero for zero in stages if zero == 0 or spec.offload != NOTHING]
            return tuple(spec.with_words(zero=zero) for zero in shared)
        plans: list[PlanSpec] = []
        near = self.replicas(spec.with_words(zero=0)).members
        for zero in stages:
            overlap = hidden if zero else min(hidden, HIDES_REDUCE, key=HIDDEN.index)
            plain = spec.with_words(zero=zero)
            if overlap != HIDES_NOTHING:
                plain = plain.with_words(overlap=overlap)
            plans.append(plain)
            if zero not in traits.zero_groups:
                continue
            for servers in SERVERS_OF_GROUP:
                size = servers * near
                is_whole = count % size == 0 and size % math.lcm(spec.cp, spec.ep) == 0
                if 1 < size < count and is_whole:
                    plans.append(plain.with_words(zero_group=size))
        return tuple(plans)

    @property
    def microbatches(self) -> int:
        """Return the number of micro-batches of a step."""
        return self.spec.num_microbatches(self.spec.batch or self.setting.decoder.batch)

    @cached_property
    def usable(self) -> float:
        """Return the bytes that a plan may use on a device of the first rank."""
        return self.pricer.usable_memory(self.whole.mesh)

    @cached_property
    def most_usable(self) -> float:
        """Return the bytes that a plan may use on a device of the largest rank."""
        usable = self.pricer.framework.usable_memory
        return max(usable(kinds) for kinds in self.kinds)

    def lacks(
        self, costs: Sequence[StageBytes], saved: float, usable: float | None = None
    ) -> bool:
        """Return whether a device is too small for some stages.

        Args:
            costs: Bytes of each of the stages.
            saved: Bytes that their micro-batches in flight keep.
            usable: Bytes of the device that may be used; None: those of the first rank's.
        """
        limit = self.usable if usable is None else usable
        return self.pricer.rank_bytes(costs, saved).reserved > limit * (1 + 1e-9)

    def stage_cost(
        self, spec: PlanSpec, first: int, last: int, rank: int = 0
    ) -> StageCost | None:
        """Return the cost of a stage of a rank, or None if it cannot be cut so.

        Stages with equally many layers of each kind on devices of one kind cost the same.

        Args:
            spec: The plan.
            first: The first segment of the stage.
            last: The segment after its last.
            rank: The rank.
        """
        key = self._key(spec, first, last, rank)
        if key not in self._costs:
            stage = make_sized_stage(self.setting.decoder, spec, rank, first, last)
            self._costs[key] = self.pricer.cost(stage)
        return self._costs[key]

    def stage_bytes(
        self, spec: PlanSpec, first: int, last: int, rank: int = 0
    ) -> StageBytes | None:
        """Return the bytes of a stage of a rank, or None if it cannot be cut so.

        Arguments are those of `stage_cost`.
        """
        key = self._key(spec, first, last, rank)
        if key in self._costs:
            return self._costs[key]
        if key not in self._bytes:
            stage = make_sized_stage(self.setting.decoder, spec, rank, first, last)
            sums = self.sum_columns_on(self.kinds[rank])
            self._bytes[key] = self.pricer.stage_bytes(stage, sums)
        return self._bytes[key]

    def _key(
        self, spec: PlanSpec, first: int, last: int, rank: int
    ) -> tuple[object, ...]:
        """Return the key of all that the cost of a stage depends on."""
        recompute: object = spec.recompute
        if spec.recompute_kind == "block":
            recompute = min(spec.recompute_layers(rank), last - first)
        return (
            spec.zero,
            spec.zero_group,
            recompute or "none",
            find_stage_kind(self.setting, first, last),
            self.kinds[rank],
        )

    @property
    def mean_stage(self) -> tuple[int, int]:
        """Return a stage that some rank has at least, by its first segment and the one after it.

        Some rank has the mean number of layers or more. The first layers are the smallest ones.
        With one rank the stage is the whole model.
        """
        layers = self.setting.decoder.layers
        if self.spec.pp == 1:
            return 0, layers + 2
        return 1, 1 - (-layers // self.spec.pp)

    @property
    def least_first_stage(self) -> tuple[int, int]:
        """Return the smallest stage that rank 0 has under any cut, as `mean_stage` does."""
        if self.spec.pp == 1:
            return self.mean_stage
        return 0, 1 + count_fewest_first_rank_layers(self.setting, self.spec.pp)

    def holds(self, spec: PlanSpec) -> bool:
        """Return whether the first and the fullest rank may hold a plan's stages under some cut.

        A larger micro-batch needs no fewer bytes: its activations grow in proportion, and where
        there are fewer micro-batches than could be in flight, their sum stays. So a plan is only
        tested if it may fit with the next smaller micro-batch.
        """
        key = spec.zero, spec.zero_group, spec.recompute
        if key not in self._holds:
            smaller = self.smaller is None or self.smaller.holds(spec)
            self._holds[key] = (
                smaller and self._can_hold(spec) and self._first_can_hold(spec)
            )
        return self._holds[key]

    def _can_hold(self, spec: PlanSpec) -> bool:
        """Return whether the fullest rank can hold its layers with one micro-batch in flight."""
        cost = self.stage_bytes(spec, *self.mean_stage)
        if cost is None:
            return False
        return not self.lacks([cost], cost.saved, self.most_usable)

    def _first_can_hold(self, spec: PlanSpec) -> bool:
        """Return whether rank 0 can hold the fewest layers that any cut gives it.

        Schedules in the shape of a V may have one micro-batch in flight there on one of two stages.
        No other schedule has fewer than 1F1B.
        """
        cost = self.stage_bytes(spec, *self.least_first_stage)
        schedules = self.setting.framework.traits.schedules
        has_v = any(name in schedules for name in SHAPED_AS_V)
        flying = 1 if has_v else min(self.spec.pp, self.microbatches)
        return cost is not None and not self.lacks([cost], flying * cost.saved)

    def find_fewest_layers(self, spec: PlanSpec) -> int:
        """Return the fewest layers that must be recomputed so that rank 0 may hold a plan."""
        key = spec.zero, spec.zero_group
        if key not in self._counts:
            low = 1 if self.smaller is None else self.smaller.find_fewest_layers(spec)
            most_layers = max(
                count_fewest_first_rank_layers(self.setting, self.spec.pp), 1
            )

            def fits(count: int) -> bool:
                return self._first_can_hold(spec.with_words(recompute=f"block:{count}"))

            self._counts[key] = first_that(fits, most_layers, low)
        return self._counts[key]

    @cached_property
    def message(self) -> float:
        """Return the seconds of a message between two stages, or 0 with one rank."""
        if self.spec.pp == 1:
            return 0.0
        sizes, size = self.setting.decoder, self.spec.dp * self.spec.microbatch_size
        # Every cut has one message's size.
        sender = make_sized_stage(sizes, self.spec, 0, 0, 1)
        receiver = make_sized_stage(sizes, self.spec, 1, 1, 2)
        return self.pricer.message(size, sender, receiver)


@dataclass(frozen=True, eq=False)
class SpecSpace:
    """All plans in words of a model on a number of devices. Searches share the prices.

    Attributes:
        setting: The sizes, the devices and the framework.
        batch: Examples of a step.
        num_devices: Devices that every plan uses; the first of the cluster.
        modes: A plan with the words that all of them have: `compile`, `tp_overlap`, `gradients`.
    """

    setting: PricingSetting
    batch: int
    num_devices: int
    modes: PlanSpec = field(default_factory=PlanSpec)
    _answers: dict[PlanSpec, PlanAnswer] = field(default_factory=dict)

    @cached_property
    def groups(self) -> tuple[SpecGroup, ...]:
        """Return the groups of plans.

        The `sums` of a group are None if the model cannot be cut as the group says.
        """
        return tuple(
            iterate_groups(self.used_setting, self.batch, self.num_devices, self.modes)
        )

    @cached_property
    def used_setting(self) -> PricingSetting:
        """Return the setting on the devices that are used, if they are of several kinds."""
        cluster = self.setting.cluster
        if len(cluster.kinds) == 1 or self.num_devices == cluster.num_devices:
            return self.setting
        return replace(self.setting, cluster=cluster.part(range(self.num_devices)))

    def answer(self, spec: PlanSpec) -> PlanAnswer:
        """Price a plan. A plan that cannot be priced has a reason."""
        if spec not in self._answers:
            self._answers[spec] = price(self.used_setting, spec)
        return self._answers[spec]


def iterate_groups(
    setting: PricingSetting, batch: int, num_devices: int, modes: PlanSpec
) -> Iterator[SpecGroup]:
    """Yield the groups of plans that the framework can run on a number of devices.

    Args:
        setting: The sizes, the devices and the framework.
        batch: Examples of a step.
        num_devices: Devices that every plan uses.
        modes: A plan with the words that all plans have.
    """
    sizes, framework = setting.decoder, setting.framework
    splits_tokens = framework.constants["splits_tokens"] > 0
    num_experts = sizes.experts.count if sizes.experts else 1
    for pp, tp in itertools.product(list_divisors(num_devices), repeat=2):
        if num_devices % (pp * tp) or pp > sizes.layers or tp > sizes.heads:
            continue
        outer_devices = num_devices // (pp * tp)
        for cp in list_divisors(outer_devices):
            if cp > MOST_CONTEXT:
                continue
            dp = outer_devices // cp
            if batch % dp:
                continue
            groups = [ep for ep in list_divisors(dp * cp) if num_experts % ep == 0]
            examples = [m for m in list_divisors(batch // dp) if m <= MOST_EXAMPLES]
            splits = (
                (True, False)
                if tp > 1 and splits_tokens
                else (splits_tokens or tp == 1,)
            )
            for ep, sp in itertools.product(groups, splits):
                yield from _iterate_device_groups(
                    setting,
                    modes.with_words(
                        dp=dp, tp=tp, cp=cp, ep=ep, pp=pp, sp=sp, batch=batch
                    ),
                    examples,
                )


def _iterate_device_groups(
    setting: PricingSetting, spec: PlanSpec, examples: Sequence[int]
) -> Iterator[SpecGroup]:
    """Yield a group for each number of examples of a micro-batch on the same devices.

    Args:
        setting: The sizes, the devices and the framework.
        spec: The degrees of parallelism.
        examples: Examples of a micro-batch on a replica, the fewest first.
    """
    smaller: SpecGroup | None = None
    for size in examples:
        sized = spec.with_words(microbatch_size=size)
        zero = max(list_zero_stages(setting, spec), default=0)
        try:
            check_framework(setting, sized.with_words(pp=1, zero=zero))
        except InputError:
            continue
        smaller = SpecGroup(setting, sized, smaller)
        yield smaller


def list_zero_stages(setting: PricingSetting, spec: PlanSpec) -> tuple[int, ...]:
    """Return the ZeRO stages that a plan may have.

    Plans with parameters on the host have stage 3 alone.

    Args:
        setting: The setting, whose framework has the ZeRO stages.
        spec: The plan, of which `offload` counts.
    """
    stages = setting.framework.traits.zero_stages
    if parse_offloading(spec.offload).parameters:
        return tuple(zero for zero in stages if zero == WHOLLY_SHARDED)
    return stages


def list_families(group: SpecGroup, plain: PlanSpec) -> Iterator[PlanSpec]:
    """Yield the kinds of recomputation with which plans of a group may fit.

    A family that recomputes some layers has the fewest with which rank 0 may fit.

    Args:
        group: The group of the plans.
        plain: The group's words with a ZeRO stage, one of `stages_of_zero`.
    """
    is_plain = group.holds(plain)
    if is_plain:
        yield plain
    # A layer that is computed again may need more at once than attention alone that is kept.
    selective = plain.with_words(recompute="selective")
    if group.holds(selective):
        yield selective
    if is_plain or group.holds(plain.with_words(recompute="full")):
        yield plain.with_words(recompute=f"block:{group.find_fewest_layers(plain)}")


def list_recomputed_modules(setting: PricingSetting) -> tuple[str, ...]:
    """Return the modules that the search recomputes, as words; none if the framework cannot.

    There are two sets: what costs next to nothing (norms of their own, the up projections of latent
    attention, the experts' activation function), and that with the feed-forward and the experts.
    """
    if not setting.framework.traits.recomputes_modules:
        return ()
    sizes = setting.decoder
    latent = ["mla_up_proj"] if sizes.latent is not None else []
    if sizes.experts is None:
        cheap = ["layernorm", *latent] if latent else []
        wide = [*cheap, "mlp"]
    else:
        cheap = ["layernorm", *latent, "moe_act"]
        dense = ["mlp"] if sizes.experts.dense else []
        wide = ["layernorm", *latent, *dense, "moe"]
    return tuple(f"modules:{'+'.join(names)}" for names in (cheap, wide) if names)


def first_that(holds: Callable[[int], bool], most: int, least: int = 1) -> int:
    """Return the least number for which a monotone predicate holds, or `most` if there is none.

    Args:
        holds: The predicate. If it holds for a number, it holds for all larger ones.
        most: The largest number.
        least: The first number that may hold.
    """
    low, high = min(least, most), most
    if holds(low):
        return low
    low = min(low + 1, most)
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


@lru_cache(maxsize=8)
def sum_stage_columns(group: SpecGroup) -> GroupColumns:
    """Return the costs of the stages of all cuts of a group. [stages] each

    They take memory in proportion to the cuts, so that they are kept only for the latest groups.
    """
    firsts, lasts = group.cuts.firsts, group.cuts.lasts

    def columns_on(rank: int) -> FloatArray:
        columns = np.stack(group.sum_rank_columns(rank))
        return columns[:, lasts] - columns[:, firsts]

    return GroupColumns(*spread_over_devices(group, columns_on))


def sum_exposed_stages(group: SpecGroup, family: PlanSpec) -> FloatArray:
    """Return the seconds that ZeRO's exchanges add to both passes of stages. [2, stages]"""
    firsts, lasts = group.cuts.firsts, group.cuts.lasts

    def exposed_on(rank: int) -> FloatArray:
        exposed = group.exposed(family, rank)
        return exposed[:, lasts] - exposed[:, firsts]

    return spread_over_devices(group, exposed_on)


def spread_over_devices(
    group: SpecGroup, figures_on: Callable[[int], FloatArray]
) -> FloatArray:
    """Return figures of the stages of all cuts, each on the devices of its rank. [..., stages]

    Args:
        group: The group.
        figures_on: Returns the figures of all stages on a rank. [..., stages].
    """
    kinds = group.kinds
    figures = figures_on(0)
    if len(set(kinds)) == 1:
        return figures
    ranks = group.cuts.ranks % group.spec.pp
    for kind in set(kinds) - {kinds[0]}:
        is_on_kind = np.array([devices == kind for devices in kinds])[ranks]
        figures = np.where(is_on_kind, figures_on(kinds.index(kind)), figures)
    return figures


@lru_cache(maxsize=8)
def dense_shares(group: SpecGroup) -> FloatArray:
    """Return the share of a group's dense parameters that every rank has. [cuts, ranks]"""
    return (
        group.cuts.sum_by_rank(sum_stage_columns(group).dense) / group.columns.dense[-1]
    )


def _sum_prefixes(column: FloatArray) -> FloatArray:
    """Return the prefix sums of an array, from 0 on. [length + 1]"""
    return np.concatenate([[0.0], np.cumsum(column)])
