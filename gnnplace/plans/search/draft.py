"""Drafts of plans: stages, micro-batches and a schedule, which are priced, fitted and timed.

`fit_draft` gives every rank the least recomputation and the lowest ZeRO stage that fit its devices.
`realize_draft` makes the order of actions and times the step. Plans from the search and plans from
the user both use these functions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gnnplace.plans.mesh import Mesh
from gnnplace.plans.order.orders import (
    ActionRows,
    Orders,
    Pipeline,
    Rules,
    count_most_in_flight,
    find_peak_saved,
    is_apart,
    limits,
    make_list_rows,
    make_order_rows,
    make_rank_actions,
    stage_ranks,
    time_listed,
    time_rows,
)
from gnnplace.plans.order.timing import Timing, time_pipeline
from gnnplace.plans.plan import MemoryParts
from gnnplace.plans.search.stage import Pricer, RankBytes, Stage, StageCost


@dataclass(frozen=True)
class Draft:
    """A plan before it is priced: micro-batches, a schedule and stages.

    Attributes:
        size: Examples of a micro-batch, over all replicas.
        microbatches: M, the number of micro-batches of a step.
        schedule: The name of the schedule.
        stages: Chunks of the pipeline, in order.
        rules: Rules of its list schedule, if they are not the usual ones.
    """

    size: int
    microbatches: int
    schedule: str
    stages: tuple[Stage, ...]
    rules: Rules | None = None

    def with_cuts(self, bounds: Sequence[int]) -> Draft:
        """Return a draft with the same meshes and other cuts.

        A segment that any stage recomputed is recomputed in the stage that it is in now.

        Args:
            bounds: First segment of every stage, and the one after the last. [C + 1]
        """
        recomputed = frozenset[int]().union(*(s.recompute for s in self.stages))
        stages = (
            replace(s, first=a, last=b, recompute=recomputed & frozenset(range(a, b)))
            for s, a, b in zip(self.stages, bounds, bounds[1:], strict=False)
        )
        return replace(self, stages=tuple(stages))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the rank of every chunk. [C]"""
        return stage_ranks(self.schedule, len(self.stages))

    @property
    def limit(self) -> tuple[int, ...]:
        """Return how many micro-batches each chunk may have in flight. [C]"""
        if self.rules is not None:
            return self.rules.limit
        return limits(self.schedule, max(self.ranks) + 1, self.microbatches)


@dataclass(frozen=True, eq=False)
class Priced:
    """A draft with its costs, its order of actions and its step time.

    Attributes:
        draft: The draft, with recomputation and ZeRO chosen.
        costs: Seconds and bytes of each chunk. [C]
        line: Ranks, and seconds of passes and messages.
        actions: Actions of every rank, in their order.
        ends: Seconds of each rank after its last pass. [P]
        step_time: Predicted seconds of a step.
        memory: Usable bytes on a device of each rank. [P]
        pricer: The pricer that made these numbers.
    """

    draft: Draft
    costs: tuple[StageCost, ...]
    line: Pipeline
    actions: ActionRows
    ends: tuple[float, ...]
    step_time: float
    memory: tuple[float, ...]
    pricer: Pricer

    @cached_property
    def orders(self) -> Orders:
        """Return the actions of every rank as tuples. [P][actions]"""
        return self.actions.orders()

    @cached_property
    def timing(self) -> Timing:
        """Return the step as the simulator runs it."""
        return time_pipeline(self.line, self.orders, self.ends)

    @cached_property
    def flying(self) -> tuple[int, ...]:
        """Return the most micro-batches that each chunk keeps in flight. [C]"""
        rows, length, apart = self.actions
        return tuple(
            count_most_in_flight(rows, length, apart, len(self.costs)).tolist()
        )

    @cached_property
    def saved(self) -> tuple[float, ...]:
        """Return the bytes that each rank keeps for backward passes at its fullest instant. [P]"""
        rows, length, apart = self.actions
        bytes_of_stages = np.zeros(len(self.costs))
        for chunk, cost in enumerate(self.costs):
            bytes_of_stages[chunk] = cost.saved
        return tuple(find_peak_saved(rows, length, apart, bytes_of_stages).tolist())

    @cached_property
    def chunks(self) -> list[list[int]]:
        """Return the chunks of every rank. [P][chunks]"""
        ranks = self.draft.ranks
        return [
            [c for c, r in enumerate(ranks) if r == p] for p in range(max(ranks) + 1)
        ]

    def held(self, rank: int) -> float:
        """Return the bytes that a device of a rank has reserved at its fullest instant."""
        return rank_bytes(self)[rank].reserved

    @property
    def lacking(self) -> tuple[int, float]:
        """Return the rank that lacks the most bytes, and how many; at most 0 if all fit."""
        over = [self.held(p) - self.memory[p] for p in range(len(self.chunks))]
        rank = max(range(len(over)), key=over.__getitem__)
        return rank, over[rank]


def compute_lack(pricer: Pricer, draft: Draft) -> float:
    """Return the most bytes that a rank lacks with all that may be in flight; 0 or less if all fit.

    They are inf where the model cannot be cut as the draft says.
    """
    lacks = []
    for rank, mesh in enumerate(list_meshes(draft)):
        chunks = [c for c, r in enumerate(draft.ranks) if r == rank]
        used = pricer.held(
            [draft.stages[c] for c in chunks], [draft.limit[c] for c in chunks]
        )
        lacks.append(used - pricer.usable_memory(mesh))
    return max(lacks)


def list_meshes(draft: Draft) -> list[Mesh]:
    """Return the mesh of every rank. [P]"""
    ranks = draft.ranks
    return [draft.stages[ranks.index(p)].mesh for p in range(max(ranks) + 1)]


def rank_bytes(priced: Priced) -> list[RankBytes]:
    """Return the bytes of a device of every rank at its fullest. [P]"""
    ranks: list[RankBytes] = []
    for chunks, saved in zip(priced.chunks, priced.saved, strict=True):
        costs: list[StageCost] = []
        for chunk in chunks:
            costs.append(priced.costs[chunk])
        ranks.append(priced.pricer.rank_bytes(costs, saved))
    return ranks


def fit_draft(pricer: Pricer, draft: Draft, *, zero: bool = True) -> Draft | None:
    """Return a draft with the recomputation and ZeRO that it needs; None if nothing fits.

    Chunks of one rank share its memory, so what is recomputed is chosen over all of them.

    Args:
        pricer: The pricer of the model and the cluster, at the draft's size of micro-batches.
        draft: A draft whose recomputation is not chosen yet.
        zero: Whether ZeRO is chosen too; otherwise the draft's is kept.
    """
    limit, ranks = draft.limit, draft.ranks
    stages = list(draft.stages)
    for rank, mesh in enumerate(list_meshes(draft)):
        chunks = [c for c, r in enumerate(ranks) if r == rank]
        memory = pricer.usable_memory(mesh)
        zeros = (1, 2, 3) if zero else (draft.stages[chunks[0]].zero,)
        fitting = pricer.fitted(
            [draft.stages[c] for c in chunks], [limit[c] for c in chunks], memory, zeros
        )
        if fitting is None:
            return None
        for c, stage in zip(chunks, fitting, strict=True):
            stages[c] = stage
    return replace(draft, stages=tuple(stages))


def find_fullest_memory(priced: Priced) -> MemoryParts:
    """Return the bytes of the device that lacks the most, or has the fewest free."""
    return rank_parts(priced, priced.lacking[0])


def rank_parts(priced: Priced, rank: int) -> MemoryParts:
    """Return the bytes of a device of a rank at its fullest, by what holds them."""
    memory = rank_bytes(priced)[rank]
    saved = priced.saved[rank]
    cluster = priced.pricer.fabric.cluster
    device = cluster.devices[list_meshes(priced.draft)[rank].first]
    slack = memory.reserved - memory.allocated
    usable = priced.memory[rank]
    # The memory of libraries is reserved on the device.
    if priced.pricer.chain.framework is None:
        slack += device.reserve
        usable += device.reserve
    return MemoryParts(
        device=device.name,
        parameters=memory.terms.parameters,
        gradients=memory.terms.gradients,
        optimizer=memory.terms.optimizer,
        frozen=memory.terms.frozen,
        buckets=memory.terms.buckets,
        activations=saved,
        working=memory.allocated - memory.state - saved,
        slack=slack,
        usable=usable,
    )


def realize_draft(
    pricer: Pricer, draft: Draft, orders: Orders | None = None
) -> Priced | None:
    """Price a draft as it is and time its step; return None if the model cannot be cut so.

    Args:
        pricer: The pricer of the model and the cluster, at the draft's size of micro-batches.
        draft: A draft with recomputation and ZeRO chosen.
        orders: Actions of every rank; by default those of the schedule or of the draft's rules.
    """
    stage_costs = [pricer.cost(stage) for stage in draft.stages]
    costs = tuple(cost for cost in stage_costs if cost is not None)
    if len(costs) < len(stage_costs):
        return None
    line = pipeline(pricer, draft, costs)
    ends = compute_rank_ends(pricer, draft, costs)
    if orders is not None:
        actions = make_order_rows(orders, line.apart)
        seconds = time_rows(line, actions, ends)
    elif draft.rules is not None:
        seconds, actions_in_time = time_listed(line, draft.rules, ends)
        actions = make_list_rows(line, actions_in_time)
    else:
        actions = make_rank_actions(
            draft.schedule, line, allows_rest=pricer.allows_rest
        )
        seconds = time_rows(line, actions, ends)
    seconds += pricer.step_seconds(draft)
    memory = tuple(pricer.usable_memory(mesh) for mesh in list_meshes(draft))
    return Priced(draft, costs, line, actions, ends, seconds, memory, pricer)


def compute_rank_ends(
    pricer: Pricer, draft: Draft, costs: Sequence[StageCost]
) -> tuple[float, ...]:
    """Return the seconds of every rank after its last pass. [P]"""
    by_rank: defaultdict[int, list[StageCost]] = defaultdict(list)
    for rank, cost in zip(draft.ranks, costs, strict=True):
        by_rank[rank].append(cost)
    ends: list[float] = []
    num_ranks = max(draft.ranks) + 1
    following = min(num_ranks, draft.microbatches)
    for rank in range(num_ranks):
        ends.append(pricer.rank_end(by_rank[rank], draft.stages[0].zero, following))
    for rank, seconds in _sum_tied_reductions(pricer, draft).items():
        ends[rank] += seconds
    return tuple(ends)


def pipeline(pricer: Pricer, draft: Draft, costs: Sequence[StageCost]) -> Pipeline:
    """Return a draft's chunks with the seconds of their passes and messages."""
    sent = [
        pricer.message(draft.size, a, b)
        for a, b in zip(draft.stages, draft.stages[1:], strict=False)
    ]
    return Pipeline(
        draft.ranks,
        tuple((c.forward, c.backward, c.weights) for c in costs),
        tuple(sent),
        draft.microbatches,
        is_apart(draft.schedule),
        draft.limit,
    )


def _sum_tied_reductions(pricer: Pricer, draft: Draft) -> dict[int, float]:
    """Return each rank's seconds to add up the gradients of parameters that several ranks have."""
    reductions: dict[int, float] = {}
    for tied in pricer.chain.tied:
        stages = [
            c
            for c, s in enumerate(draft.stages)
            if any(s.first <= x < s.last for x in tied.segments)
        ]
        ranks = sorted({draft.ranks[c] for c in stages})
        if len(ranks) < 2:
            continue
        meshes = list_meshes(draft)
        holding = [meshes[p] for p in ranks]
        shards = min(draft.stages[c].mesh.shards for c in stages)
        num_devices = meshes[0].count * len(meshes)
        seconds = pricer.price_tied_reduction(tied, holding, shards, num_devices)
        for rank in ranks:
            reductions[rank] = reductions.get(rank, 0.0) + seconds
    return reductions
