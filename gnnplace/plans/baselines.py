"""What people do without a joint plan, by the planner's own prices.

* `ddp`, `zero-1`, `zero-2`, `zero-3`: every device a replica of the whole model;
* `megatron`: shards inside a server, equal stages of as many segments, replicas the rest, 1F1B
  (Narayanan et al., 2021, arXiv 2104.04473, their rules of section 3);
* `chain`: a device a stage, cut where the largest stage is least: the partition of a chain that
  PyTorch's pipelining was proposed with (Huang et al., 2019, GPipe, arXiv 1811.06965, balance by
  cost);
* `alpa`: stages on any meshes of powers of two that follow each other, by a dynamic programme over
  sum of stages + (M - 1) largest stage, the split inside of a stage by itself (Zheng et al., 2022,
  arXiv 2201.12023).

Each may choose its micro-batches, and recomputes what it must to fit. All are drafts of the
search's own space but for ZeRO 0, and the search begins with them: what it finds is never worse.
"""

from __future__ import annotations

from collections.abc import Iterator

from gnnplace.plans.search.draft import Draft
from gnnplace.plans.search.drafts import Timed, draft_of, even_draft, unlike_drafts
from gnnplace.plans.search.space import MIXED, Shape, Space, devices_of_server

BASELINES = ("ddp", "zero-1", "zero-2", "zero-3", "megatron", "chain", "alpa")


def baselines_of(space: Space) -> dict[str, list[Timed]]:
    """Drafts of every baseline for one size of micro-batches, with the formula's seconds."""
    made = {name: list(_replicas(space, zero)) for zero, name in enumerate(BASELINES[:4])}
    made["megatron"] = list(_uniform(space))
    made["chain"] = list(_chain(space))
    made["alpa"] = list(_alpa(space))
    return made


def _replicas(space: Space, zero: int) -> Iterator[Timed]:
    count = space.pricer.fabric.cluster.num_devices
    shape = (count, 1, zero if count > 1 else 0)
    if space.pricer.size % count == 0 and space.table(shape) is not None:
        yield draft_of(space, [(0, shape, 0)])


def _uniform(space: Space) -> Iterator[Timed]:
    count = space.pricer.fabric.cluster.num_devices
    segments, most = len(space.pricer.chain), devices_of_server(space.pricer.fabric)
    for shards in (2**k for k in range(count.bit_length()) if 2**k <= most):
        for stages in range(1, min(count // shards, segments) + 1):
            replicas, rest = divmod(count, shards * stages)
            shape = (replicas, shards, 0)
            if rest or space.pricer.size % replicas or space.table(shape) is None:
                continue
            each = replicas * shards
            cuts = [round(k * segments / stages) for k in range(stages)]
            yield draft_of(space, [(cut, shape, k * each) for k, cut in enumerate(cuts)])


def _chain(space: Space) -> Iterator[Timed]:
    stages = min(space.pricer.fabric.cluster.num_devices, len(space.pricer.chain))
    made = even_draft(space, (1, 1, 0), stages)
    if made is not None:
        yield made


def _alpa(space: Space) -> Iterator[Timed]:
    count = space.pricer.fabric.cluster.num_devices
    shapes: list[Shape] = [
        (r, t, z) for r, t, z in space.shapes if z < 2 and not (r & (r - 1) or t & (t - 1))
    ]
    if 1 < count <= MIXED:
        yield from unlike_drafts(Space(space.pricer, space.microbatches, tuple(shapes)))


def fastest(found: list[Timed], few: int) -> list[Draft]:
    """The best by the formula."""
    return [draft for _, draft in sorted(found, key=lambda pair: pair[0])[:few]]
