"""Drafts of plans for one size of micro-batches, with the seconds that a formula says.

1. every equal mesh r x t and number of stages: cuts by `partition.even_cuts`;
2. on clusters of up to `MIXED` devices: any meshes that follow each other, by
   `partition.best_meshes`, for a few largest stages.

The formula is that of 1F1B: sum of stages + (M - 1) largest stage + the largest end.

Beside them what people do without a joint plan, by the planner's own prices (`baselines_of`):

* `ddp`, `zero-1`, `zero-2`, `zero-3`: every device a replica of the whole model;
* `megatron`: shards inside a server, equal stages of as many segments, replicas the rest, 1F1B
  (Narayanan et al., 2021, arXiv 2104.04473, their rules of section 3);
* `chain`: a device a stage, cut where the largest stage is least: the partition of a chain that
  PyTorch's pipelining was proposed with (Huang et al., 2019, GPipe, arXiv 1811.06965, balance by
  cost);
* `pipedream`: contiguous stages with replicas of their own, the slowest of them least (Narayanan
  et al., 2019, PipeDream, SOSP, section 3.1: the same recurrence over segments and devices). A
  stage takes its kernels of a micro-batch and a micro-batch's share of the sum of its gradients:
  weights are updated once a step (the flush of arXiv 2006.09503), not with every micro-batch from
  stashed ones. Borders are priced when a draft is timed, not while it is chosen, and what does not
  fit is recomputed;
* `alpa`: stages on any meshes of powers of two that follow each other, by a dynamic programme over
  sum of stages + (M - 1) largest stage, the split inside of a stage by itself (Zheng et al., 2022,
  arXiv 2201.12023).

Each may choose its micro-batches, and recomputes what it must to fit. All are drafts of the
search's own space but for ZeRO 0, and the search begins with them: what it finds is never worse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from gnnplace.arrays import FloatArray, LongArray
from gnnplace.plans.order.orders import limits
from gnnplace.plans.search import partition
from gnnplace.plans.search.draft import Draft
from gnnplace.plans.search.space import BARRED, MEGATRON, MIXED, MeshKind, Space, devices_of_server
from gnnplace.plans.search.stage import Stage
from gnnplace.plans.segments.chain import FASTEST

DEEPEST = 64  # stages at most
PRECISION = 1e-3
LARGEST_STAGES = 12  # thresholds that `best_meshes` is run with
Timed = tuple[float, Draft]
"""Seconds by the formula, and the draft."""
BASELINES = ("ddp", "zero-1", "zero-2", "zero-3", "megatron", "chain", "pipedream", "alpa")
Row = Sequence[tuple[int, MeshKind, int]]
"""First segment, mesh and first device of every stage."""


def drafts_of(space: Space, *, runnable: bool = False) -> list[Timed]:
    """Drafts for one size of micro-batches.

    Args:
        space: the meshes, and what segments take on each.
        runnable: the same number of replicas in all stages.
    """
    found = list(even_drafts(space))
    count = space.pricer.fabric.cluster.num_devices
    if not 1 < count <= MIXED:
        return found
    best = min((seconds for seconds, _ in found), default=np.inf)
    if not runnable:
        return [*found, *unlike_drafts(space, best)]
    for replicas in dict.fromkeys(shape.replicas for shape in space.shapes):
        own = tuple(shape for shape in space.shapes if shape.replicas == replicas)
        found += unlike_drafts(replace(space, shapes=own, tables={}), best)
    return found


def has_like_replicas(draft: Draft) -> bool:
    """Whether all stages have the same number of replicas, as running needs it."""
    return len({stage.mesh.replicas for stage in draft.stages}) == 1


def even_drafts(space: Space) -> Iterator[Timed]:
    """Equal meshes."""
    cluster = space.pricer.fabric.cluster
    count = cluster.num_devices
    for shape in space.shapes:
        table = space.plain_table(shape)
        if table is None or len(cluster.kinds) > 1:
            continue
        each = shape.devices
        deepest = min(count // each, len(space.pricer.chain), DEEPEST)
        for stages in range(1, deepest + 1):
            if 2 * stages * each <= count and count > MIXED:
                continue
            made = even_draft(space, shape, stages)
            if made is not None:
                yield made


def even_draft(space: Space, shape: MeshKind, stages: int) -> Timed | None:
    """So many stages on equal meshes, cut where the largest is least; None: nothing fits."""
    table = space.plain_table(shape)
    if table is None:
        return None
    flying = np.array(limits("1f1b", stages, space.microbatches), dtype=np.int64)
    largest, cuts = partition.even_cuts(table.sums, float(table.memory), flying, PRECISION)
    if not np.isfinite(largest):
        return None
    return draft_of(space, [(int(cut), shape, k * shape.devices) for k, cut in enumerate(cuts)])


def unlike_drafts(space: Space, best: float = np.inf) -> Iterator[Timed]:
    """Any meshes that follow each other.

    Args:
        space: the meshes, and what segments take on each.
        best: seconds of a step that is known; a stage need not take longer than its share of it.
    """
    tables, table = _kinds_of_tables(space)
    if not tables:
        return
    sums = np.stack([t.sums for t in tables])
    for most in _largest_stages(space, sums, table, best):
        found = _following(space, sums, tables, table, most)
        if found is None:
            break
        yield draft_of(space, found)


def _following(
    space: Space,
    sums: FloatArray,
    tables: Sequence[partition.Tables],
    table: LongArray,
    most: float,
) -> Row | None:
    """Meshes that follow each other with the least sum, none above a largest stage; or None."""
    memory = np.array([float(t.memory) for t in tables])
    size = np.array([shape.devices for shape in space.shapes], dtype=np.int64)
    deepest = min(space.pricer.fabric.cluster.num_devices, DEEPEST)
    total, stages = partition.best_meshes(
        sums, memory, table, size, space.microbatches, most, deepest
    )
    if not np.isfinite(total):
        return None
    first = np.concatenate([[0], np.cumsum(size[stages[:, 1]])])
    return [(int(cut), space.shapes[mesh], int(first[k])) for k, (cut, mesh) in enumerate(stages)]


def _kinds_of_tables(space: Space) -> tuple[list[partition.Tables], LongArray]:
    """Tables that differ, and which a mesh has that begins at a device. [meshes, devices]"""
    count = space.pricer.fabric.cluster.num_devices
    known: dict[int, int] = {}
    tables: list[partition.Tables] = []
    table = np.full((len(space.shapes), count), -1, dtype=np.int64)
    for k, shape in enumerate(space.shapes):
        for first in range(count):
            made = space.table(shape, first)
            if made is not None:
                if id(made) not in known:  # `space` keeps them
                    known[id(made)] = len(tables)
                    tables.append(made)
                table[k, first] = known[id(made)]
    return tables, table


def _largest_stages(
    space: Space, sums: FloatArray, table: LongArray, best: float
) -> Iterator[float]:
    """Seconds that a stage may take, the most first."""
    share = np.ones(len(sums))
    for k, shape in enumerate(space.shapes):
        share[table[k][table[k] >= 0]] = shape.devices
    count = space.pricer.fabric.cluster.num_devices
    seconds = np.mod(sums[:, partition.SECONDS, -1], BARRED)
    least = float((seconds * share).min()) / count
    whole = float(seconds.max() + sums[:, partition.AGAIN, -1].max())
    top = min(whole, best / max(space.microbatches, 1)) if np.isfinite(best) else whole
    steps = np.geomspace(max(least, 1e-12), max(top, least) * 1.001, LARGEST_STAGES)
    return (float(most) for most in steps[::-1])


def draft_of(space: Space, meshes: Row) -> Timed:
    """A draft of stages, and the formula's seconds."""
    ends = [*(cut for cut, _, _ in meshes[1:]), len(space.pricer.chain)]
    stages, seconds, ended = [], [], 0.0
    for k, ((first, shape, device), last) in enumerate(zip(meshes, ends, strict=True)):
        table = space.table(shape, device)
        assert table is not None
        flying = min(len(meshes) - k, space.microbatches)
        seconds.append(
            partition.stage_seconds(table.sums, float(table.memory), first, last, flying)
        )
        ended = max(ended, float(table.end[last] - table.end[first]))
        mesh = shape.mesh(device)
        stages.append(Stage(first, last, mesh, shape.zero, choice=shape.choice))
    total = sum(seconds) + (space.microbatches - 1) * max(seconds) + ended
    return total, Draft(space.pricer.size, space.microbatches, "1f1b", tuple(stages))


def baselines_of(space: Space) -> dict[str, list[Timed]]:
    """Drafts of every baseline for one size of micro-batches, with the formula's seconds."""
    made = {name: list(_replicas(space, zero)) for zero, name in enumerate(BASELINES[:4])}
    made["megatron"] = list(_uniform(space))
    made["chain"] = list(_chain(space))
    made["pipedream"] = list(_pipedream(space))
    made["alpa"], count = [], space.pricer.fabric.cluster.num_devices
    if 1 < count <= MIXED:
        shapes = tuple(s for s in space.shapes if s.zero < 2 and not s.replicas & (s.replicas - 1))
        made["alpa"] += unlike_drafts(Space(space.pricer, space.microbatches, shapes))
    return made


def _replicas(space: Space, zero: int) -> Iterator[Timed]:
    count = space.pricer.fabric.cluster.num_devices
    shape = MeshKind(count, 1, zero if count > 1 else 0)
    if space.pricer.size % count == 0 and space.table(shape) is not None:
        yield draft_of(space, [(0, shape, 0)])


def _uniform(space: Space) -> Iterator[Timed]:
    count = space.pricer.fabric.cluster.num_devices
    segments, most = len(space.pricer.chain), devices_of_server(space.pricer.fabric)
    for shards in (2**k for k in range(count.bit_length()) if 2**k <= most):
        for stages in range(1, min(count // shards, segments) + 1):
            replicas, rest = divmod(count, shards * stages)
            split = FASTEST if shards == 1 else MEGATRON
            shape = MeshKind(replicas, shards, 0, split)
            if rest or space.pricer.size % replicas or space.table(shape) is None:
                continue
            cuts = [round(k * segments / stages) for k in range(stages)]
            yield draft_of(space, [(cut, shape, k * shape.devices) for k, cut in enumerate(cuts)])


def _chain(space: Space) -> Iterator[Timed]:
    stages = min(space.pricer.fabric.cluster.num_devices, len(space.pricer.chain))
    made = even_draft(space, MeshKind(1, 1, 0), stages)
    if made is not None:
        yield made


def _pipedream(space: Space) -> Iterator[Timed]:
    """By bisection on the slowest stage, from that of the least sum down."""
    count = space.pricer.fabric.cluster.num_devices
    sizes = [r for r in range(1, count + 1) if space.pricer.size % r == 0]
    own = Space(space.pricer, space.microbatches, tuple(MeshKind(r, 1, 0) for r in sizes))
    tables, table = _kinds_of_tables(own)
    if not tables or not 1 < count <= MIXED:
        return
    sums = np.stack([t.sums for t in tables])
    sums[:, partition.SECONDS] += np.stack([t.end for t in tables]) / space.microbatches
    low, high = 0.0, 2.0 * float(sums[:, [partition.SECONDS, partition.AGAIN], -1].sum(1).max())
    best = _following(own, sums, tables, table, high)
    while best is not None and high - low > PRECISION * high:
        middle = 0.5 * (low + high)
        found = _following(own, sums, tables, table, middle)
        best, low, high = (found, low, middle) if found else (best, middle, high)
    if best is not None:
        yield draft_of(own, best)


def fastest(found: list[Timed], few: int) -> list[Draft]:
    """The best by the formula."""
    return [draft for _, draft in sorted(found, key=lambda pair: pair[0])[:few]]
