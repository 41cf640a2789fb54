"""The search for a plan: micro-batches, meshes, cuts, recomputation, ZeRO, schedule.

For every size of a micro-batch (divisors of the batch):

1. every equal mesh r x t and number of stages: cuts by `partition.even_cuts`;
2. on clusters of up to `MIXED` devices: any meshes that follow each other, by
   `partition.best_meshes`, for a few largest stages;
3. a bound by `partition.least_step`.

All drafts are ordered by the formula of 1F1B,

    sum of stages + (M - 1) largest stage + the largest end,

the best are priced exactly (whole segments recomputed, messages, tied parameters) and simulated,
and the best of these under every schedule. Shards are powers of two within a server.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gnnplace.cluster import Cluster
from gnnplace.costs.collectives import ALL_GATHER, REDUCE_SCATTER
from gnnplace.costs.memory import PARAMETER, state_bytes
from gnnplace.planning import partition
from gnnplace.planning.chain import Chain
from gnnplace.planning.draft import Draft, Priced, fitted, realized
from gnnplace.planning.mesh import Fabric, Mesh
from gnnplace.planning.orders import limits
from gnnplace.planning.partition import WIDTH
from gnnplace.planning.stage import Pricer, Stage

MIXED = 16  # devices up to which stages may have unlike meshes
BOUNDED = 64  # devices up to which the bound looks at meshes one by one
DEEPEST = 64  # stages at most
SIZES = 12  # sizes of micro-batches that are tried
SHORT_LIST, FEW = 24, 4  # drafts that are simulated, and those under every schedule
PRECISION = 1e-3
LARGEST_STAGES = 12  # thresholds that `best_meshes` is run with
OTHERS = ("zero-bubble", "v", "interleaved:2")


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        best: plans, the fastest first.
        bound: seconds that no plan of contiguous stages with these micro-batches is below.
        tried: drafts that were looked at.
        seconds: of the search.
    """

    best: tuple[Priced, ...]
    bound: float
    tried: int
    seconds: float


@dataclass(frozen=True, eq=False)
class Space:
    """Meshes for micro-batches of one size, and their tables.

    Attributes:
        pricer: of the model and the cluster.
        microbatches: M.
        shapes: replicas, shards and ZeRO of each mesh.
        tables: of each mesh. [meshes]
    """

    pricer: Pricer
    microbatches: int
    shapes: tuple[tuple[int, int, int], ...]
    tables: dict[tuple[int, int, int, tuple[str, ...]], partition.Tables] = field(
        default_factory=dict
    )

    def table(self, shape: tuple[int, int, int], first: int = 0) -> partition.Tables | None:
        """What segments take on a mesh that begins at a device; None where there is none."""
        mesh = Mesh(first, shape[0], shape[1])
        fabric = self.pricer.fabric
        if mesh.devices.stop > fabric.cluster.num_devices:
            return None
        key = (*shape, fabric.kinds(mesh))
        if key not in self.tables:
            made = _table(self.pricer, mesh, shape[2])
            if made is None:
                return None
            self.tables[key] = made
        return self.tables[key]


def _table(pricer: Pricer, mesh: Mesh, zero: int) -> partition.Tables | None:
    found = pricer.sums(mesh)
    if found is None:
        return None
    chain, costs = pricer.chain, found.costs
    own, gradient, _ = PARAMETER[chain.precision]
    state = state_bytes(
        1.0, optimizer=chain.optimizer, precision=chain.precision, zero=zero, replicas=mesh.replicas
    )
    seconds = found.forward + found.backward + found.weights
    if zero == 3:
        total = max(float(found.parameters[-1]), 1.0)
        members = mesh.of_replicas()
        taken = 2 * pricer.fabric.collective(ALL_GATHER, own * total, members)
        taken += pricer.fabric.collective(REDUCE_SCATTER, gradient * total, members)
        seconds = seconds + found.parameters * taken / total
    freed = np.maximum(costs.saved - costs.entering, 0.0)
    sums = np.zeros((WIDTH, len(chain) + 1))
    sums[partition.SECONDS] = seconds
    sums[partition.AGAIN, 1:] = np.cumsum(np.where(freed > 0, costs.forward, 0.0))
    sums[partition.FREED, 1:] = np.cumsum(freed)
    sums[partition.KEPT] = found.saved
    sums[partition.STATE] = state * found.parameters
    working = float(costs.working.max(initial=0.0))
    return partition.Tables(sums, np.array(working), np.array(pricer.fabric.memory(mesh)))


def search(
    chain: Chain,
    cluster: Cluster,
    *,
    budget: float = 10.0,
    progress: Callable[[str], None] | None = None,
) -> Found:
    """The best plans for a model on a cluster.

    Args:
        chain: the model.
        cluster: its devices in topology order.
        budget: seconds after which no further size of micro-batches is begun.
        progress: is told what is done.

    Raises:
        InputError: devices that plans would put next to each other have no link.
    """
    started = time.monotonic()
    fabric = Fabric(cluster)
    drafts: list[tuple[float, Draft]] = []
    bound = np.inf
    sizes = micro_batch_sizes(chain.batch)
    if chain.mixes:
        sizes = [chain.batch]
    for size in sizes:
        if drafts and time.monotonic() - started > budget:
            bound = 0.0  # micro-batches that were not looked at are not covered
            break
        if progress is not None:
            progress(f"planning: micro-batches of {size} of {chain.batch} examples")
        space = _space(Pricer(chain, fabric, size), chain.batch // size)
        drafts += _drafts(space)
        least = min((seconds for seconds, _ in drafts), default=np.inf)
        bound = min(bound, _bound(space, min(bound, least)))
    best = _simulated(chain, fabric, drafts)
    return Found(tuple(best), float(bound), len(drafts), time.monotonic() - started)


def micro_batch_sizes(batch: int) -> list[int]:
    """Divisors of a batch, at most `SIZES` of them, spread evenly by their logarithm."""
    divisors = [d for d in range(1, batch + 1) if batch % d == 0]
    if len(divisors) <= SIZES:
        return divisors[::-1]
    wanted = np.geomspace(1, batch, SIZES)
    near = {min(divisors, key=lambda d: abs(np.log(d / w))) for w in wanted}
    return sorted(near, reverse=True)


def _space(pricer: Pricer, microbatches: int) -> Space:
    count, size = pricer.fabric.cluster.num_devices, pricer.size
    most = _server(pricer.fabric)
    shapes = []
    for shards in (2**k for k in range(count.bit_length()) if 2**k <= most):
        for replicas in range(1, count // shards + 1):
            if size % replicas or (pricer.chain.mixes and replicas > 1):
                continue
            if count > MIXED and replicas & (replicas - 1) and count % (replicas * shards):
                continue
            zeros = (1, 3) if replicas > 1 else (0,)
            shapes += [(replicas, shards, zero) for zero in zeros]
    return Space(pricer, microbatches, tuple(shapes))


def _server(fabric: Fabric) -> int:
    """Devices of the smallest server: shards stay within one."""
    held = np.bincount(np.array(fabric.server, dtype=np.int64))
    return int(held[held > 0].min()) if held.max() > 1 else fabric.cluster.num_devices


def _drafts(space: Space) -> list[tuple[float, Draft]]:
    """Drafts for one size of micro-batches with the formula's seconds."""
    found = list(_even(space))
    cluster = space.pricer.fabric.cluster
    if cluster.num_devices <= MIXED and cluster.num_devices > 1:
        best = min((seconds for seconds, _ in found), default=np.inf)
        found += _unlike(space, best)
    return found


def _even(space: Space) -> Iterator[tuple[float, Draft]]:
    """Equal meshes."""
    count = space.pricer.fabric.cluster.num_devices
    for shape in space.shapes:
        table = space.table(shape)
        if table is None or len(space.pricer.fabric.cluster.kinds) > 1:
            continue
        each = shape[0] * shape[1]
        deepest = min(count // each, len(space.pricer.chain), DEEPEST)
        for stages in range(1, deepest + 1):
            if 2 * stages * each <= count and count > MIXED:
                continue
            flying = np.array(limits("1f1b", stages, space.microbatches), dtype=np.int64)
            largest, cuts = partition.even_cuts(
                table.sums, float(table.working), float(table.memory), flying, PRECISION
            )
            if np.isfinite(largest):
                meshes = [(int(cut), shape, k * each) for k, cut in enumerate(cuts)]
                yield _draft(space, meshes)


def _unlike(space: Space, best: float) -> Iterator[tuple[float, Draft]]:
    """Any meshes that follow each other."""
    count = space.pricer.fabric.cluster.num_devices
    known: dict[int, int] = {}
    tables: list[partition.Tables] = []
    table = np.full((len(space.shapes), count), -1, dtype=np.int64)
    for k, shape in enumerate(space.shapes):
        for first in range(count):
            made = space.table(shape, first)
            if made is not None:
                if id(made) not in known:
                    known[id(made)] = len(tables)
                    tables.append(made)
                table[k, first] = known[id(made)]
    if not tables:
        return
    sums = np.stack([t.sums for t in tables])
    working, memory = (
        np.array([float(t[i]) for t in tables]) for i in (1, 2)
    )  # fmt: skip
    size = np.array([r * t for r, t, _ in space.shapes], dtype=np.int64)
    least = float((sums[:, partition.SECONDS, -1] / _devices(space, table)).min()) / count
    whole = float(sums[:, partition.SECONDS, -1].max() + sums[:, partition.AGAIN, -1].max())
    top = min(whole, best / max(space.microbatches, 1)) if np.isfinite(best) else whole
    for most in np.geomspace(max(least, 1e-12), max(top, least) * 1.001, LARGEST_STAGES)[::-1]:
        total, stages = partition.best_meshes(
            sums, working, memory, table, size, space.microbatches, float(most), min(count, DEEPEST)
        )
        if not np.isfinite(total):
            break
        first, meshes = 0, []
        for cut, mesh in stages:
            meshes.append((int(cut), space.shapes[mesh], first))
            first += int(size[mesh])
        yield _draft(space, meshes)


def _devices(space: Space, table: np.ndarray) -> np.ndarray:
    """Least devices of a mesh by table, over one: for the least largest stage."""
    found = np.ones(int(table.max()) + 1)
    for k, (replicas, shards, _) in enumerate(space.shapes):
        for kind in table[k][table[k] >= 0]:
            found[kind] = 1.0 / (replicas * shards)
    return found


def _draft(
    space: Space, meshes: Sequence[tuple[int, tuple[int, int, int], int]]
) -> tuple[float, Draft]:
    """A draft of stages (first segment, mesh, first device), and the formula's seconds."""
    chain = space.pricer.chain
    ends = [*(cut for cut, _, _ in meshes[1:]), len(chain)]
    stages, seconds, ended = [], [], 0.0
    for k, ((first, shape, device), last) in enumerate(zip(meshes, ends, strict=True)):
        stage = Stage(first, last, Mesh(device, shape[0], shape[1]), shape[2])
        table = space.table(shape, device)
        assert table is not None
        flying = min(len(meshes) - k, space.microbatches)
        seconds.append(
            partition.stage_seconds(
                table.sums, float(table.working), float(table.memory), first, last, flying
            )
        )
        cost = space.pricer.cost(stage)
        assert cost is not None
        ended = max(ended, cost.end)
        stages.append(stage)
    total = sum(seconds) + (space.microbatches - 1) * max(seconds) + ended
    return total, Draft(space.pricer.size, space.microbatches, "1f1b", tuple(stages))


def _bound(space: Space, high: float) -> float:
    """Seconds that no plan with these micro-batches is below."""
    count = space.pricer.fabric.cluster.num_devices
    found = {}
    for replicas, shards, _ in space.shapes:
        for first in range(count):
            mesh = Mesh(first, replicas, shards)
            if mesh.devices.stop > count or (replicas, shards) in found:
                continue
            kinds = space.pricer.fabric.cluster.kinds
            sums = [space.pricer.sums_on((kind,), mesh) for kind in kinds]
            if all(x is not None for x in sums):
                found[replicas, shards] = [x for x in sums if x is not None]
    if not found:
        return float(np.inf)

    def least(*names: str) -> np.ndarray:
        return np.array(
            [np.min([sum(getattr(x, n) for n in names) for x in sums], axis=0)
             for sums in found.values()]
        )  # fmt: skip

    seconds, before = least("forward", "backward", "weights"), least("forward", "backward")
    update = least("update") / np.array([r for r, _ in found])[:, None]
    size = np.array([r * t for r, t in found], dtype=np.int64)
    low = space.microbatches * float((seconds[:, -1] * size).min()) / count
    if count > BOUNDED or not np.isfinite(high):
        return low
    return partition.least_step(
        seconds, before, update, size, count, space.microbatches, low, high, PRECISION
    )


def _simulated(chain: Chain, fabric: Fabric, drafts: list[tuple[float, Draft]]) -> list[Priced]:
    """The best drafts, priced exactly and simulated; the fastest under every schedule."""
    drafts.sort(key=lambda pair: pair[0])
    pricers: dict[int, Pricer] = {}

    def priced(draft: Draft) -> Priced | None:
        pricer = pricers.setdefault(draft.size, Pricer(chain, fabric, draft.size))
        made = fitted(pricer, draft)
        result = None if made is None else realized(pricer, made)
        return result if result is not None and result.lacking[1] <= 0 else None

    found: list[Priced] = []
    seen: set[Draft] = set()
    for _, draft in drafts:
        result = priced(draft)
        if result is not None and result.draft not in seen:
            seen.add(result.draft)
            found.append(result)
        if len(found) >= SHORT_LIST:
            break
    found.sort(key=lambda x: x.step_time)
    for result in found[:FEW]:
        for schedule in OTHERS:
            other = _under(chain, result.draft, schedule)
            again = None if other is None else priced(other)
            if again is not None:
                found.append(again)
    return sorted(found, key=lambda x: x.step_time)


def _under(chain: Chain, draft: Draft, schedule: str) -> Draft | None:
    """The draft under another schedule: with twice the chunks where that has several a rank."""
    ranks = len(draft.stages)
    if ranks < 2:
        return None
    if schedule == "zero-bubble":
        return replace(draft, schedule=schedule)
    if len({(s.mesh.replicas, s.mesh.shards) for s in draft.stages}) > 1:
        return None
    if schedule.startswith("interleaved") and draft.microbatches % ranks:
        return None
    halves = [_halves(s) for s in draft.stages]
    bounds = sorted({b for half in halves for b in half})
    if len(bounds) - 1 != 2 * ranks:
        return None
    chunks = list(itertools.pairwise(bounds))
    order = [*range(ranks), *(reversed(range(ranks)) if schedule == "v" else range(ranks))]
    stages = [
        replace(draft.stages[p], first=a, last=b, recompute=frozenset())
        for p, (a, b) in zip(order, chunks, strict=True)
    ]
    return replace(draft, schedule=schedule, stages=tuple(stages))


def _halves(stage: Stage) -> tuple[int, int, int]:
    return stage.first, (stage.first + stage.last) // 2, stage.last
