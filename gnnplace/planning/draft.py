"""A draft: stages, micro-batches and a schedule; priced, checked against memory, timed.

`realized` gives every chunk the least recomputation and ZeRO that fit its devices, makes the order
of actions and simulates the step. It is what plans that were searched and plans that were given
have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gnnplace.costs.collectives import ALL_REDUCE
from gnnplace.costs.memory import PARAMETER
from gnnplace.planning.mesh import Mesh
from gnnplace.planning.orders import (
    Action,
    Pipeline,
    chunk_ranks,
    in_flight,
    limits,
    order_of,
)
from gnnplace.planning.stage import Pricer, Stage, StageCost
from gnnplace.planning.timing import Timing, timed

APART = ("zero-bubble", "v")  # schedules with weight gradients apart
Orders = tuple[tuple[Action, ...], ...]


@dataclass(frozen=True)
class Draft:
    """What a plan decides before it is priced.

    Attributes:
        size: examples of a micro-batch, over all replicas.
        microbatches: M.
        schedule: its name.
        stages: chunks of the pipeline, in order.
    """

    size: int
    microbatches: int
    schedule: str
    stages: tuple[Stage, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Rank of every chunk. [C]"""
        each = 2 if self.schedule == "v" and len(self.stages) > 1 else 1
        if self.schedule.startswith("interleaved"):
            each = int(self.schedule.partition(":")[2] or 2)
        return chunk_ranks(self.schedule, len(self.stages) // each)


@dataclass(frozen=True, eq=False)
class Priced:
    """A draft with what it takes.

    Attributes:
        draft: with recomputation and ZeRO chosen.
        costs: of each chunk. [C]
        timing: of the step.
        flying: micro-batches that each chunk keeps in flight at most. [C]
        memory: bytes of a device of each rank that are there to be used. [P]
    """

    draft: Draft
    costs: tuple[StageCost, ...]
    timing: Timing
    flying: tuple[int, ...]
    memory: tuple[float, ...]

    @property
    def step_time(self) -> float:
        """Predicted seconds."""
        return self.timing.step_time

    @cached_property
    def chunks(self) -> list[list[int]]:
        """Chunks of every rank. [P][chunks]"""
        ranks = self.draft.ranks
        return [[c for c, r in enumerate(ranks) if r == p] for p in range(max(ranks) + 1)]

    def held(self, rank: int) -> float:
        """Bytes of a device of a rank at its fullest."""
        own = self.chunks[rank]
        kept = sum(self.costs[c].state + self.flying[c] * self.costs[c].saved for c in own)
        return kept + max(self.costs[c].working for c in own)

    @property
    def lacking(self) -> tuple[int, float]:
        """The rank that lacks the most bytes, and how many; at most 0 where all fit."""
        over = [self.held(p) - self.memory[p] for p in range(len(self.chunks))]
        rank = max(range(len(over)), key=over.__getitem__)
        return rank, over[rank]


def meshes_of(draft: Draft) -> list[Mesh]:
    """The mesh of every rank."""
    ranks = draft.ranks
    return [draft.stages[ranks.index(p)].mesh for p in range(max(ranks) + 1)]


def fitted(pricer: Pricer, draft: Draft) -> Draft | None:
    """A draft with the recomputation and ZeRO that it needs; None where nothing fits."""
    flying = limits(draft.schedule, len(meshes_of(draft)), draft.microbatches)
    chosen = []
    for c, stage in enumerate(draft.stages):
        found = pricer.fitted(stage, flying[c], _share(pricer, draft, c, flying))
        if found is None:
            return None
        chosen.append(found[0])
    zero = {p: 0 for p in draft.ranks}
    for stage, rank in zip(chosen, draft.ranks, strict=True):
        zero[rank] = max(zero[rank], stage.zero)
    same = [replace(s, zero=zero[p]) for s, p in zip(chosen, draft.ranks, strict=True)]
    return replace(draft, stages=tuple(same))


def _share(pricer: Pricer, draft: Draft, chunk: int, flying: Sequence[int]) -> float:
    """Bytes that a chunk may hold of its device: by what the chunks of its rank would hold."""
    limit = pricer.fabric.memory(draft.stages[chunk].mesh)
    ranks = draft.ranks
    mates = [c for c, r in enumerate(ranks) if r == ranks[chunk]]
    if len(mates) == 1:
        return limit
    costs = {c: pricer.cost(draft.stages[c]) for c in mates}
    held = {c: cost.held(flying[c]) for c, cost in costs.items() if cost is not None}
    return limit * held.get(chunk, 0.0) / max(sum(held.values()), 1e-30)


def realized(pricer: Pricer, draft: Draft, orders: Orders | None = None) -> Priced | None:
    """Prices a draft as it is and simulates it; None where the model cannot be cut so.

    Args:
        pricer: of the model and the cluster, at the draft's micro-batch.
        draft: with recomputation and ZeRO chosen.
        orders: of actions; by default those of the schedule.
    """
    found = [pricer.cost(stage) for stage in draft.stages]
    costs = tuple(cost for cost in found if cost is not None)
    if len(costs) < len(found):
        return None
    line = pipeline(pricer, draft, costs)
    orders = orders or order_of(draft.schedule, line)
    ends = [0.0] * line.ranks
    for rank, cost in zip(draft.ranks, costs, strict=True):
        ends[rank] += cost.end
    for rank, seconds in _tied(pricer, draft).items():
        ends[rank] += seconds
    flying = [0] * len(costs)
    for actions in orders:
        flying = [max(a, b) for a, b in zip(flying, in_flight(actions, len(costs)), strict=True)]
    memory = tuple(pricer.fabric.memory(mesh) for mesh in meshes_of(draft))
    return Priced(draft, costs, timed(line, orders, ends), tuple(flying), memory)


def pipeline(pricer: Pricer, draft: Draft, costs: Sequence[StageCost]) -> Pipeline:
    """Seconds of a draft's passes and messages."""
    ranks = draft.ranks
    sent = [
        _message(pricer, draft, a, b)
        for a, b in zip(draft.stages, draft.stages[1:], strict=False)
    ]  # fmt: skip
    return Pipeline(
        ranks,
        tuple((c.forward, c.backward, c.weights) for c in costs),
        tuple(sent),
        draft.microbatches,
        draft.schedule in APART,
        limits(draft.schedule, max(ranks) + 1, draft.microbatches),
    )


def _message(pricer: Pricer, draft: Draft, before: Stage, after: Stage) -> float:
    """Seconds of what crosses a cut: every device sends its replica's part to its counterpart."""
    replicas = min(before.mesh.replicas, after.mesh.replicas)
    size = float(pricer.chain.border[before.last]) * draft.size / replicas
    return pricer.fabric.send(size, before.mesh.devices[-1], after.mesh.devices[0])


def _tied(pricer: Pricer, draft: Draft) -> dict[int, float]:
    """Seconds a rank to add up the gradients of parameters that several stages have."""
    width = PARAMETER[pricer.chain.precision][1]
    found: dict[int, float] = {}
    for tied in pricer.chain.tied:
        stages = [
            c
            for c, s in enumerate(draft.stages)
            if any(s.first <= x < s.last for x in tied.segments)
        ]
        ranks = sorted({draft.ranks[c] for c in stages})
        if len(ranks) < 2:
            continue
        members = [draft.stages[draft.ranks.index(p)].mesh.first for p in ranks]
        shards = min(draft.stages[c].mesh.shards for c in stages)
        size = width * tied.elements / shards
        seconds = pricer.fabric.collective(ALL_REDUCE, size, members)
        for rank in ranks:
            found[rank] = found.get(rank, 0.0) + seconds
    return found
