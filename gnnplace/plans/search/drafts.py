"""Drafts of plans for one size of micro-batches, with the step time of a formula.

1. For every equal mesh r x t and number of stages: cuts by `partition.cut_even_stages`.
2. On clusters of up to `MIXED` devices: sequences of different meshes, by `partition.best_meshes`,
   for a few limits on the largest stage.

The formula is that of 1F1B: sum of stages + (M - 1) largest stage + the largest end.

There are also the plans that people use without a joint search (`draft_baselines`), at the
planner's prices:

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

Each may choose its micro-batches and recomputes as much as it must to fit. Except for ZeRO 0 all
are drafts of the search's own space, and the search starts with them, so that its result is never
worse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from gnnplace.arrays import FloatArray, LongArray
from gnnplace.plans.order.orders import limits
from gnnplace.plans.search import partition
from gnnplace.plans.search.draft import Draft
from gnnplace.plans.search.space import (
    BARRED,
    MEGATRON,
    MIXED,
    MeshKind,
    Space,
    count_server_devices,
)
from gnnplace.plans.search.stage import Stage
from gnnplace.plans.segments.chain import FASTEST

DEEPEST = 64  # stages at most
PRECISION = 1e-3
LARGEST_STAGES = 12  # thresholds that `best_meshes` is run with
Timed = tuple[float, Draft]
"""Seconds by the formula, and the draft."""
BASELINES: tuple[str, ...] = (
    "ddp",
    "zero-1",
    "zero-2",
    "zero-3",
    "megatron",
    "chain",
    "pipedream",
    "alpa",
)
Row = Sequence[tuple[int, MeshKind, int]]
"""First segment, mesh and first device of every stage."""


def draft_size(space: Space, *, runnable: bool = False) -> list[Timed]:
    """Return drafts for one size of micro-batches, with the formula's seconds.

    Args:
        space: The meshes, and what segments take on each.
        runnable: Whether all stages must have the same number of replicas, as a run needs it.
    """
    drafts = list(draft_evenly(space))
    count = space.pricer.fabric.cluster.num_devices
    if not 1 < count <= MIXED:
        return drafts
    best = min((seconds for seconds, _ in drafts), default=np.inf)
    if not runnable:
        return [*drafts, *unlike_drafts(space, best)]
    for replicas in dict.fromkeys(shape.replicas for shape in space.shapes):
        shapes = tuple(shape for shape in space.shapes if shape.replicas == replicas)
        drafts += unlike_drafts(replace(space, shapes=shapes, tables={}), best)
    return drafts


def has_like_replicas(draft: Draft) -> bool:
    """Return whether all stages have the same number of replicas, as a run needs it."""
    return len({stage.mesh.replicas for stage in draft.stages}) == 1


def draft_evenly(space: Space) -> Iterator[Timed]:
    """Yield drafts of stages on equal meshes, for every kind of mesh and number of stages.

    On unlike devices there are none. On more than `MIXED` devices, stages use more than half of
    them.
    """
    cluster = space.pricer.fabric.cluster
    count = cluster.num_devices
    for shape in space.shapes:
        table = space.plain_table(shape)
        if table is None or len(cluster.kinds) > 1:
            continue
        num_devices = shape.devices
        deepest = min(count // num_devices, len(space.pricer.chain), DEEPEST)
        for stages in range(1, deepest + 1):
            if 2 * stages * num_devices <= count and count > MIXED:
                continue
            draft = draft_even_stages(space, shape, stages)
            if draft is not None:
                yield draft


def draft_even_stages(space: Space, shape: MeshKind, stages: int) -> Timed | None:
    """Return a draft of `stages` stages on equal meshes whose largest stage is least.

    None if nothing fits.
    """
    table = space.plain_table(shape)
    if table is None:
        return None
    flying = np.array(limits("1f1b", stages, space.microbatches), dtype=np.int64)
    largest, cuts = partition.cut_even_stages(
        table.sums, float(table.memory), flying, PRECISION
    )
    if not np.isfinite(largest):
        return None
    return draft_stages(
        space, [(int(cut), shape, k * shape.devices) for k, cut in enumerate(cuts)]
    )


def unlike_drafts(space: Space, best: float = np.inf) -> Iterator[Timed]:
    """Yield drafts on any meshes that follow each other.

    Args:
        space: The meshes, and what segments take on each.
        best: Seconds of a known step. A stage need not take longer than its share of it.
    """
    choices = make_mesh_choices(space)
    if choices is not None:
        for stages in stages_by_largest(choices, space.microbatches, best):
            yield draft_stages(space, _rows(space, stages))


def _rows(space: Space, stages: LongArray) -> Row:
    """Return the first segment, the mesh and the first device of stages that follow each other.

    Args:
        space: The meshes.
        stages: First segment and mesh of each stage. [stages, 2]
    """
    devices = space.devices_of_shapes[stages[:, 1]]
    first = np.cumsum(devices) - devices
    shapes = map(space.shapes.__getitem__, stages[:, 1].tolist())
    firsts = stages[:, 0].tolist()
    return list(zip(firsts, shapes, first.tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class MeshChoices:
    """The prices of a chain of segments on every mesh that a stage may have.

    Attributes:
        sums: Prefix sums of each table (`partition.Tables`). [tables, WIDTH + levels, segments + 1]
        memory: Bytes of a device. [tables]
        end: Prefix sums of seconds at the end of the step. [tables, segments + 1]
        table: Table of each mesh that begins at each device; negative if there is none. [meshes,
            devices]
        size: Devices of each mesh. [meshes]
    """

    sums: FloatArray
    memory: FloatArray
    end: FloatArray
    table: LongArray
    size: LongArray

    def stages_below(self, microbatches: int, largest: float) -> LongArray | None:
        """Return first segment and mesh of each stage, with the least sum of seconds. [stages, 2]

        Args:
            microbatches: M, the number of micro-batches of a step.
            largest: Seconds that no stage may be above.

        Returns:
            The stages; None if nothing fits.
        """
        deepest = min(self.table.shape[1], DEEPEST)
        total, stages = partition.best_meshes(
            self.sums,
            self.memory,
            self.table,
            self.size,
            microbatches,
            largest,
            deepest,
        )
        if np.isfinite(total):
            return stages
        return None

    def stage_seconds(self, microbatches: int, stages: LongArray) -> FloatArray:
        """Return the seconds of a micro-batch through each stage. [stages]"""
        segments = self.sums.shape[2] - 1
        ends = [*stages[1:, 0].tolist(), segments]
        first_device = 0
        seconds = []
        for k, ((first, mesh), last) in enumerate(
            zip(stages.tolist(), ends, strict=True)
        ):
            table = self.table[mesh, first_device]
            flying = min(len(stages) - k, microbatches)
            memory = float(self.memory[table])
            sums = self.sums[table]
            seconds.append(partition.stage_seconds(sums, memory, first, last, flying))
            first_device += int(self.size[mesh])
        return np.array(seconds)


def make_mesh_choices(space: Space) -> MeshChoices | None:
    """Return the distinct tables of a space, and which of them each mesh has at each device.

    None if no mesh has one.
    """
    count = space.pricer.fabric.cluster.num_devices
    index_of: dict[int, int] = {}
    tables: list[partition.Tables] = []
    table_of = np.full((len(space.shapes), count), -1, dtype=np.int64)
    for k, shape in enumerate(space.shapes):
        for first in range(count):
            table = space.table(shape, first)
            if table is not None:
                if id(table) not in index_of:  # `space` keeps them
                    index_of[id(table)] = len(tables)
                    tables.append(table)
                table_of[k, first] = index_of[id(table)]
    if not tables:
        return None
    return MeshChoices(
        sums=np.stack([table.sums for table in tables]),
        memory=np.array(list(map(attrgetter("memory"), tables)), dtype=np.float64),
        end=np.stack([table.end for table in tables]),
        table=table_of,
        size=space.devices_of_shapes,
    )


def bound_slowest_stage(choices: MeshChoices) -> float:
    """Return a lower bound on the seconds of the slowest stage: all work, shared by all devices."""
    size = np.ones(len(choices.sums))
    for mesh, devices in enumerate(choices.size):
        size[choices.table[mesh][choices.table[mesh] >= 0]] = devices
    seconds = np.mod(choices.sums[:, partition.SECONDS, -1], BARRED)
    return float((seconds * size).min()) / choices.table.shape[1]


def stages_by_largest(
    choices: MeshChoices, microbatches: int, best: float = np.inf
) -> Iterator[LongArray]:
    """Yield the stages with the least sum for several limits on a stage, the highest first.

    Args:
        choices: The meshes, and what segments take on each.
        microbatches: M, the number of micro-batches of a step.
        best: Seconds of a known step. No limit is above a micro-batch's share of it.
    """
    smallest = bound_slowest_stage(choices)
    seconds = np.mod(choices.sums[:, partition.SECONDS, -1], BARRED)
    unsplit = float(seconds.max() + choices.sums[:, partition.AGAIN, -1].max())
    if np.isfinite(best):
        top = min(unsplit, best / max(microbatches, 1))
    else:
        top = unsplit
    steps = np.geomspace(
        max(smallest, 1e-12), max(top, smallest) * 1.001, LARGEST_STAGES
    )
    for largest in steps[::-1]:
        stages = choices.stages_below(microbatches, float(largest))
        if stages is None:
            return
        yield stages


def cut_for_least_step(choices: MeshChoices, microbatches: int) -> Iterator[LongArray]:
    """Yield stages, among them those with the least sum of stages + (M - 1) slowest stage.

    That is the least to `PRECISION`. The slowest stage of one answer, less `PRECISION`, is the
    limit of the next. Between the two no other answer is shorter by more than that, since a lower
    limit never makes the sum smaller. Alpa's programme tries every value that a stage can take.

    Args:
        choices: The meshes, and what segments take on each.
        microbatches: M, the number of micro-batches of a step.
    """
    best = np.inf
    smallest = bound_slowest_stage(choices)
    for stages in stages_by_largest(choices, microbatches):
        seconds = choices.stage_seconds(microbatches, stages)
        best = min(best, seconds.sum() + (microbatches - 1) * seconds.max())
        yield stages
    if np.isfinite(best):
        largest = best / microbatches
    else:
        largest = 0.0
    while largest >= smallest:
        stages_below = choices.stages_below(microbatches, largest)
        if stages_below is None:
            return
        yield stages_below
        seconds = choices.stage_seconds(microbatches, stages_below)
        best = min(best, seconds.sum() + (microbatches - 1) * seconds.max())
        if seconds.sum() + (microbatches - 1) * smallest >= best:
            return
        largest = (1 - PRECISION) * float(seconds.max())


def cut_for_least_largest(choices: MeshChoices, microbatches: int) -> LongArray | None:
    """Return the stages of which the slowest is least, to `PRECISION`; None if nothing fits.

    A stage takes its seconds of a micro-batch and a micro-batch's share of its end of the step. The
    limit on the slowest stage is found by bisection, from that of the least sum down.

    Args:
        choices: The meshes, and what segments take on each.
        microbatches: M, the number of micro-batches of a step.
    """
    sums = choices.sums.copy()
    sums[:, partition.SECONDS] += choices.end / microbatches
    choices = replace(choices, sums=sums)
    low = 0.0
    with_recomputation = sums[:, [partition.SECONDS, partition.AGAIN], -1].sum(1)
    high = 2.0 * float(with_recomputation.max())
    best = choices.stages_below(microbatches, high)
    while best is not None and high - low > PRECISION * high:
        middle = 0.5 * (low + high)
        stages = choices.stages_below(microbatches, middle)
        if stages is None:
            low = middle
        else:
            best = stages
            high = middle
    return best


def draft_stages(space: Space, meshes: Row) -> Timed:
    """Return a draft of stages, and the seconds that the formula of 1F1B gives it.

    Args:
        space: The meshes, and what segments take on each.
        meshes: First segment, mesh and first device of every stage.
    """
    cuts = [first for first, _, _ in meshes[1:]]
    ends = [*cuts, len(space.pricer.chain)]
    stages = []
    seconds = []
    ended = 0.0
    stages_with_ends = zip(meshes, ends, strict=True)
    for k, ((first, shape, device), last) in enumerate(stages_with_ends):
        table = space.table(shape, device)
        assert table is not None
        flying = min(len(meshes) - k, space.microbatches)
        seconds.append(
            partition.stage_seconds(
                table.sums, float(table.memory), first, last, flying
            )
        )
        ended = max(ended, float(table.end[last] - table.end[first]))
        mesh = shape.mesh(device)
        stages.append(Stage(first, last, mesh, shape.zero, choice=shape.choice))
    total = sum(seconds) + (space.microbatches - 1) * max(seconds) + ended
    return total, Draft(space.pricer.size, space.microbatches, "1f1b", tuple(stages))


def draft_baselines(space: Space) -> dict[str, list[Timed]]:
    """Return every baseline's drafts for one size of micro-batches, with the formula's seconds."""
    baselines = {
        name: list(_replicas(space, zero)) for zero, name in enumerate(BASELINES[:4])
    }
    baselines["megatron"] = list(_uniform(space))
    baselines["chain"] = list(_chain(space))
    baselines["pipedream"] = list(_pipedream(space))
    baselines["alpa"], count = [], space.pricer.fabric.cluster.num_devices
    if 1 < count <= MIXED:
        baselines["alpa"] += _alpa(space)
    return baselines


def _replicas(space: Space, zero: int) -> Iterator[Timed]:
    count = space.pricer.fabric.cluster.num_devices
    shape = MeshKind(count, 1, zero if count > 1 else 0)
    if space.pricer.size % count == 0 and space.table(shape) is not None:
        yield draft_stages(space, [(0, shape, 0)])


def _uniform(space: Space) -> Iterator[Timed]:
    count = space.pricer.fabric.cluster.num_devices
    segments = len(space.pricer.chain)
    server_devices = count_server_devices(space.pricer.fabric)
    for shards in (2**k for k in range(count.bit_length()) if 2**k <= server_devices):
        for stages in range(1, min(count // shards, segments) + 1):
            replicas, remainder = divmod(count, shards * stages)
            split = FASTEST if shards == 1 else MEGATRON
            shape = MeshKind(replicas, shards, 0, split)
            if remainder or space.pricer.size % replicas or space.table(shape) is None:
                continue
            cuts = [round(k * segments / stages) for k in range(stages)]
            yield draft_stages(
                space, [(cut, shape, k * shape.devices) for k, cut in enumerate(cuts)]
            )


def _chain(space: Space) -> Iterator[Timed]:
    stages = min(space.pricer.fabric.cluster.num_devices, len(space.pricer.chain))
    draft = draft_even_stages(space, MeshKind(1, 1, 0), stages)
    if draft is not None:
        yield draft


def _alpa(space: Space) -> Iterator[Timed]:
    """Yield stages on meshes of powers of two, among them those with the shortest step."""
    shapes = tuple(
        s for s in space.shapes if s.zero < 2 and not s.replicas & (s.replicas - 1)
    )
    powers = Space(space.pricer, space.microbatches, shapes)
    choices = make_mesh_choices(powers)
    if choices is not None:
        for stages in cut_for_least_step(choices, space.microbatches):
            yield draft_stages(powers, _rows(powers, stages))


def _pipedream(space: Space) -> Iterator[Timed]:
    """Yield the stages and replicas of which the slowest is least."""
    count = space.pricer.fabric.cluster.num_devices
    sizes = [r for r in range(1, count + 1) if space.pricer.size % r == 0]
    replicated = Space(
        space.pricer, space.microbatches, tuple(MeshKind(r, 1, 0) for r in sizes)
    )
    choices = make_mesh_choices(replicated)
    if choices is None or not 1 < count <= MIXED:
        return
    stages = cut_for_least_largest(choices, space.microbatches)
    if stages is not None:
        yield draft_stages(replicated, _rows(replicated, stages))


def fastest(found: list[Timed], few: int) -> list[Draft]:
    """Return the `few` best drafts by the formula's seconds, the fastest first."""
    fastest = sorted(found, key=lambda pair: pair[0])[:few]
    return [draft for _, draft in fastest]
