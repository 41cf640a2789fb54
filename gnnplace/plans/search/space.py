"""The meshes that are planned with, and what segments take on each.

Shards are powers of two within a server; any number of replicas on up to `MIXED` devices, on more
of them powers of two and what divides the cluster; ZeRO 1, 2 and 3 where there are replicas (0
takes no less than 1 and holds more).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gnnplace.costs.collectives import ALL_GATHER, REDUCE_SCATTER
from gnnplace.costs.memory import PARAMETER, state_bytes
from gnnplace.plans.mesh import Mesh, MeshFabric
from gnnplace.plans.search import partition
from gnnplace.plans.search.stage import Pricer

MIXED = 16  # devices up to which stages may have unlike meshes
SIZES = 12  # sizes of micro-batches that are tried
ZEROS = (1, 2, 3)
BARRED = 2.0**20  # seconds of a segment where it may not be; keeps the digits of the others
Shape = tuple[int, int, int]
"""Replicas, shards, ZeRO."""


@dataclass(frozen=True, eq=False)
class Space:
    """Meshes for micro-batches of one size, and their tables.

    Attributes:
        pricer: of the model and the cluster.
        microbatches: M, the number of micro-batches of a step.
        shapes: replicas, shards and ZeRO of each mesh.
        tables: of each mesh. [meshes]
        barred: tables with what segments that may not be there take.
    """

    pricer: Pricer
    microbatches: int
    shapes: tuple[Shape, ...]
    tables: dict[tuple[Shape, tuple[str, ...]], partition.Tables] = field(default_factory=dict)
    barred: dict[tuple[int, bytes], partition.Tables] = field(default_factory=dict)

    def table(self, shape: Shape, first: int = 0) -> partition.Tables | None:
        """What segments take on a mesh that begins at a device; None where there is none.

        Segments that may not be there take `BARRED` seconds each.
        """
        made = self.plain_table(shape, first)
        allowed = self.pricer.chain.allowed
        if made is None or allowed is None:
            return made
        mesh = Mesh(first, shape[0], shape[1])
        barred = ~allowed[:, mesh.devices.start : mesh.devices.stop].all(axis=1)
        key = id(made), barred.tobytes()  # `tables` keeps them
        if key not in self.barred:
            sums = made.sums.copy()
            sums[partition.SECONDS, 1:] += BARRED * np.cumsum(barred)
            self.barred[key] = made._replace(sums=sums)
        return self.barred[key]

    def plain_table(self, shape: Shape, first: int = 0) -> partition.Tables | None:
        """What segments take on a mesh, whether or not they may be there."""
        mesh = Mesh(first, shape[0], shape[1])
        fabric = self.pricer.fabric
        if mesh.devices.stop > fabric.cluster.num_devices:
            return None
        key = (shape, fabric.kinds(mesh))
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
    state = state_bytes(
        1.0, optimizer=chain.optimizer, precision=chain.precision, zero=zero, replicas=mesh.replicas
    )
    during, after = _exchanged(pricer, mesh, zero, float(found.parameters[-1]))
    freed = np.maximum(costs.saved - costs.entering, 0.0)
    sums = np.zeros((partition.WIDTH, len(chain) + 1))
    sums[partition.SECONDS] = found.forward + found.backward + found.weights
    sums[partition.SECONDS] += found.parameters * during
    sums[partition.AGAIN, 1:] = np.cumsum(np.where(freed > 0, costs.forward, 0.0))
    sums[partition.FREED, 1:] = np.cumsum(freed)
    sums[partition.KEPT] = found.saved
    sums[partition.STATE] = state * found.parameters
    sums[partition.STATE] += PARAMETER[chain.precision][0] * found.frozen
    working = float(costs.working.max(initial=0.0))
    end = found.update / mesh.replicas + found.parameters * after
    return partition.Tables(sums, np.array(working), np.array(pricer.fabric.memory(mesh)), end)


def _exchanged(pricer: Pricer, mesh: Mesh, zero: int, total: float) -> tuple[float, float]:
    """Seconds a parameter of what replicas exchange: for every micro-batch, and at the end."""
    own, gradient, _ = PARAMETER[pricer.chain.precision]
    members, total = mesh.of_replicas(), max(total, 1.0)
    gather = pricer.fabric.collective(ALL_GATHER, own * total, members, mesh.shards) / total
    scatter = (
        pricer.fabric.collective(REDUCE_SCATTER, gradient * total, members, mesh.shards) / total
    )
    during = {2: scatter, 3: 2 * gather + scatter}.get(zero, 0.0)
    after = {3: 0.0, 2: gather}.get(zero, gather + scatter)
    return during, after


def space_of(pricer: Pricer, microbatches: int) -> Space:
    """All meshes for micro-batches of one size."""
    count, size = pricer.fabric.cluster.num_devices, pricer.size
    most = devices_of_server(pricer.fabric)
    shapes: list[Shape] = []
    for shards in (2**k for k in range(count.bit_length()) if 2**k <= most):
        for replicas in range(1, count // shards + 1):
            if size % replicas or (pricer.chain.mixes and replicas > 1):
                continue
            if count > MIXED and replicas & (replicas - 1) and count % (replicas * shards):
                continue
            shapes += [(replicas, shards, zero) for zero in (ZEROS if replicas > 1 else (0,))]
    space = Space(pricer, microbatches, tuple(shapes))
    for shape in shapes:
        space.plain_table(shape)  # priced now: every search begins with equal meshes
    return space


def devices_of_server(fabric: MeshFabric) -> int:
    """Devices of the smallest server: shards stay within one."""
    held = np.bincount(np.array(fabric.server, dtype=np.int64))
    return int(held[held > 0].min()) if held.max() > 1 else fabric.cluster.num_devices


def micro_batch_sizes(batch: int) -> list[int]:
    """Divisors of a batch, at most `SIZES` of them, spread evenly by their logarithm."""
    divisors = [d for d in range(1, batch + 1) if batch % d == 0]
    if len(divisors) <= SIZES:
        return divisors[::-1]
    wanted = np.geomspace(1, batch, SIZES)
    near = {min(divisors, key=lambda d: abs(np.log(d / w))) for w in wanted}
    return sorted(near, reverse=True)
