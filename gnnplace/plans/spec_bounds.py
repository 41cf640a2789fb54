"""Lower bounds on the step time of plans in words, and the memory of their first rank.

The bound of rank p, with P ranks, M micro-batches, and F, B the passes of the chunks before its
first one::

    T >= F + p messages + M (forward + backward of the rank's chunks)
         + max(E_p, B + p messages + E_0)

A rank begins when its first input has passed through the chunks before. After its last pass it
exchanges gradients and updates its parameters in E_p seconds; and its last gradient goes back
through the chunks before to rank 0, which then does the same. If gradients of weights are separate
passes (zero-bubble), they may be a rank's last passes, and only E_p must follow.

The first micro-batch goes through all C stages before the last rank turns to backward passes, and
the last one comes back through all of them after its last forward pass. With F_s and B_s the passes
of every stage, and what the last rank runs between these two, of 1F1B and interleaved orders::

    T >= sum of all F_s + sum of all B_s + 2 (C - 1) messages + passes between
         + max over p of (E_p - (B + p messages))

`bound_plan` computes this from the pricer's stages. `bound_group` bounds all schedules and cuts of
a group at once by sums over segments, with exchanges at the least seconds for their bytes, hidden
behind as many micro-batches as any schedule allows. With ZeRO 2 and 3 it takes every layer's
exchanges as hidden behind the layer; in truth those of a stage's first layer are exposed.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.costs import NOTHING, ReplicaExchanges
from gnnplace.plans.order.orders import is_apart, is_listed, limits
from gnnplace.plans.search.framework_pricing import SHARDED
from gnnplace.plans.search.stage import StageBytes, StageCost
from gnnplace.plans.spec import PARTIAL, PlanSpec
from gnnplace.plans.spec_cuts import (
    AlikeStages,
    count_chain_passes,
    count_in_flight,
    first_rank_stages,
    group_alike_stages,
    has_chain,
    passes_between,
)
from gnnplace.plans.spec_groups import (
    SpecGroup,
    dense_shares,
    spread_over_devices,
    sum_exposed_stages,
    sum_stage_columns,
)


def group_bound(group: SpecGroup) -> float:
    """Return the seconds that no plan of a group can be below."""
    if group.spec.pp > 1:
        return float(bound_group(group).min())
    columns = group.columns
    return group.microbatches * float(columns.forward[-1] + columns.backward[-1])


def bound_family(group: SpecGroup, family: PlanSpec) -> float:
    """Return the seconds that no plan of a ZeRO stage and a kind of recomputation can be below."""
    if group.spec.pp > 1:
        return float(bound_group(group, family).min())
    cost = group.stage_cost(family, *group.mean_stage)
    return (
        np.inf if cost is None else group.microbatches * cost.microbatch + cost.update
    )


def bound_group(group: SpecGroup, family: PlanSpec | None = None) -> FloatArray:
    """Return the seconds that no plan of a group can be below, for each schedule and cut. [cuts]

    Schedules and cuts are those of `pipeline_cuts`. The bound is infinite where the group's
    micro-batches cannot be scheduled so.

    Args:
        group: The group, whose plans have several ranks.
        family: A ZeRO stage and a kind of recomputation; None: the bound holds for all of them.
    """
    cuts = group.cuts
    forward, backward = _bound_stage_passes(group, family)
    of_forward, of_backward = cuts.sum_by_rank(forward), cuts.sum_by_rank(backward)
    ends = np.zeros_like(of_forward)
    if family is not None:
        ends += _bound_updates(group, family)
        if group.zero_as_run(family) < SHARDED:
            ends += _bound_reductions(group, family, of_forward, of_backward)

    fill, drain = (
        forward[cuts.begins] + group.message,
        backward[cuts.begins] + group.message,
    )
    fill = np.cumsum(fill, axis=1) - fill
    drain = np.cumsum(drain, axis=1) - drain
    work = group.microbatches * (of_forward + of_backward)
    drained = np.where(cuts.is_apart[:, np.newaxis], 0.0, drain + ends[:, :1])
    seconds = (fill + work + np.maximum(ends, drained)).max(axis=1)
    counts = count_chain_passes(group.setting, group.spec.pp, group.microbatches)
    chain = cuts.sum_by_cut(counts[0] * forward + counts[1] * backward)
    chain += 2 * (cuts.chunks * group.spec.pp - 1) * group.message
    chain += (ends - drain).max(axis=1)
    seconds = np.where(cuts.has_chain, np.maximum(seconds, chain), seconds)
    if group.microbatches % group.spec.pp:
        seconds[cuts.is_interleaved] = np.inf
    return seconds


def _bound_stage_passes(
    group: SpecGroup, family: PlanSpec | None
) -> tuple[FloatArray, FloatArray]:
    """Return the least seconds of both passes of every stage of all cuts. [stages] each"""
    stages, pricer = sum_stage_columns(group), group.pricer
    forward, backward = stages.forward, stages.backward
    host = stages.host + pricer.get_other_host_seconds(group.spec.tp, is_whole=False)
    if family is None:
        return pricer.apply_floor(forward, backward, host)
    # What is computed again under an exchange takes at least what hiding it takes.
    overlap = 1.0
    if group.zero_as_run(family) < SHARDED:
        backward = backward + group.framework.accumulation(1.0) * stages.parameters
    else:
        gathered, late = sum_exposed_stages(group, family)
        forward = forward + gathered
        backward = backward + late
        if family.recompute_kind not in PARTIAL:
            overlap = pricer.framework.network.rates["overlap"]
    if family.recompute_kind != "none":
        backward = backward + overlap * _bound_recomputation(group, family)
    return pricer.apply_floor(forward, backward, host)


def _bound_recomputation(group: SpecGroup, family: PlanSpec) -> FloatArray:
    """Return the least seconds that every stage of all cuts recomputes. [stages]"""
    if family.recompute_kind in PARTIAL:
        return sum_stage_columns(group).attention
    if family.recompute_kind == "full":
        return sum_stage_columns(group).layers
    # A rank recomputes as many layers in all, of each of its stages as many as of any.
    cuts = group.cuts
    of_rank = family.recompute_layers(0)
    counts = np.ceil(of_rank / cuts.chunks[cuts.cuts_of_stages]).astype(np.int64)
    if group.setting.framework.traits.recomputes_by_rank:  # others may need none
        counts[cuts.ranks % group.spec.pp > 0] = 0
    lasts = np.minimum(cuts.lasts, np.maximum(cuts.firsts, 1) + counts)

    def seconds_on(rank: int) -> FloatArray:
        seconds = group.sum_rank_columns(rank).layers
        return np.maximum(seconds[lasts] - seconds[cuts.firsts], 0.0)

    return spread_over_devices(group, seconds_on)


def _bound_updates(group: SpecGroup, family: PlanSpec) -> FloatArray:
    """Return the least seconds of every rank's update, without experts. [cuts, ranks]

    They are zero if the host updates the parameters.
    """
    framework, replicas = group.framework, group.replicas(family)
    if framework.offloading.optimizer:
        return np.zeros(group.cuts.begins.shape)
    return framework.update(group.dense_parameters, replicas) * dense_shares(group)


def _bound_reductions(
    group: SpecGroup, family: PlanSpec, forward: FloatArray, backward: FloatArray
) -> FloatArray:
    """Return the least seconds of every rank's exchanges at the end of a step. [cuts, ranks]

    Args:
        group: The group of the plans.
        family: The ZeRO stage of the plans.
        forward: Seconds of the forward passes of a micro-batch. [cuts, ranks].
        backward: Seconds of the backward passes of a micro-batch. [cuts, ranks].
    """
    framework = group.framework
    replicas = group.replicas(family)
    zero = group.zero_as_run(family)
    exchanges_of_all = framework.bound_exchanges(zero, group.dense_parameters, replicas)
    shares = dense_shares(group)
    exchanges = ReplicaExchanges(
        scattered=exchanges_of_all.scattered * shares,
        bucketed=exchanges_of_all.bucketed * shares,
        gathered=exchanges_of_all.gathered * shares,
    )
    following = min(group.spec.pp, group.microbatches)
    windows = group.pricer.window(group.cuts.chunks, following)[:, np.newaxis]
    return framework.reduction(zero, exchanges, windows * forward, windows * backward)


def bound_plan(group: SpecGroup, spec: PlanSpec) -> float:
    """Return the seconds that a plan cannot be below, by the bound at the head of this file.

    It is infinite if a stage cannot be priced.
    """
    stages = stages_by_kind(group, spec)
    costs: list[StageCost] = []
    for first, last, rank in stages.ends:
        cost = group.stage_cost(spec, first, last, rank)
        if cost is None:
            return np.inf
        costs.append(cost)
    following = min(spec.pp, group.microbatches)
    ends: list[float] = []
    for column in stages.columns:
        of_rank = [costs[kind] for kind in column]
        ends.append(group.pricer.rank_end(of_rank, spec.zero, following))
    ends_of_ranks = np.array(ends)[stages.columns_of_ranks]
    both = [(cost.forward, cost.backward + cost.weights) for cost in costs]
    passes = np.array(both)
    of_stages = passes[stages.kinds]
    firsts = of_stages[0] + group.message
    fill, drain = (np.cumsum(firsts, axis=0) - firsts).T
    work = group.microbatches * of_stages.sum(axis=(0, 2))
    drained = 0.0 if is_apart(spec.schedule) else drain + ends_of_ranks[0]
    bound = float((fill + work + np.maximum(ends_of_ranks, drained)).max())
    if not has_chain(spec.schedule) or (
        group.microbatches % spec.pp and len(of_stages) > 1
    ):
        return bound
    between = passes_between(len(of_stages), spec.pp, group.microbatches)
    chain = of_stages.sum() + (between.T * of_stages[:, -1]).sum()
    chain += 2 * (stages.kinds.size - 1) * group.message + (ends_of_ranks - drain).max()
    return max(bound, float(chain))


def stages_by_kind(group: SpecGroup, spec: PlanSpec) -> AlikeStages:
    """Return the stages of a plan by their kinds.

    Ranks that recompute unlike numbers of layers have stages of unlike kinds.
    """
    counts = spec.recompute_counts if spec.recomputes_by_rank else ()
    classes = tuple(counts.index(count) for count in counts)
    return group_alike_stages(
        group.setting, spec.pp, spec.schedule, spec.layers, classes
    )


def first_rank_lacks(group: SpecGroup, spec: PlanSpec) -> bool:
    """Return whether the first rank's devices are too small for what the schedule has in flight."""
    flying = count_in_flight(spec.schedule, spec.pp, group.microbatches)
    if not _exceeds_memory(group, spec, flying):
        return False
    if spec.pp == 1 or not is_listed(spec.schedule):
        return True
    ahead = passes_ahead(group, spec.with_words(recompute="none"))
    return ahead >= flying[0] or _exceeds_memory(group, spec, (ahead, *flying[1:]))


def _exceeds_memory(group: SpecGroup, spec: PlanSpec, flying: tuple[int, ...]) -> bool:
    """Return whether the first rank's devices are too small for micro-batches in flight.

    Args:
        group: The group of the plan.
        spec: The plan.
        flying: Micro-batches that each chunk of the rank has in flight.
    """
    costs: list[StageBytes] = []
    saved = 0.0
    for ends, count, in_flight in first_rank_stages(
        group.setting, spec.pp, spec.schedule, spec.layers, flying
    ):
        cost = group.stage_bytes(spec, *ends)
        if cost is None:
            return True
        costs += [cost] * count
        saved += in_flight * cost.saved
    return group.lacks(costs, saved)


@lru_cache(maxsize=64)
def passes_ahead(group: SpecGroup, plain: PlanSpec) -> int:
    """Return how many forward passes of its first chunk rank 0 runs at least before other passes.

    A list schedule runs them one after another from the beginning of the step, as many as its limit
    allows, until another pass is ready there: with stages in the shape of a V the forward pass of
    the first micro-batch through the last chunk, else its backward pass.

    Args:
        group: The group of the plan.
        plain: The plan, without recomputation. Its schedule is a list schedule of several ranks.
    """
    stages = stages_by_kind(group, plain)
    forward: list[float] = []
    inputs: list[float] = []
    for first, last, rank in stages.ends:
        cost = group.stage_cost(plain, first, last, rank)
        if cost is None or plain.offload != NOTHING:
            return 1  # what is copied to the host depends on what is recomputed
        forward.append(cost.forward)
        inputs.append(cost.backward)
    of_stages = np.array(forward)[stages.kinds]
    seconds = of_stages.sum()
    if len(of_stages) > 1:
        seconds -= of_stages[-1, 0]
    else:
        seconds += np.array(inputs)[stages.kinds[0, 1:]].sum()
    limit = limits(plain.schedule, plain.pp, group.microbatches)[0]
    first_stage = max(float(of_stages[0, 0]), 1e-30)
    return max(1, min(limit, math.ceil(seconds * (1 - 1e-9) / first_stage)))
