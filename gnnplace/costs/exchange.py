"""What the devices of a cluster take to exchange tensors: collectives by how many take part.

A split of a layer says of how many devices a group is, not which; groups are taken to be neighbours
as the cluster lists its devices, so that as few servers as possible take part. Where a number does
not divide evenly over these servers, it is that of the next larger group that does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from gnnplace.costs.collectives import ALL_REDUCE, Group, collective_seconds, group_of
from gnnplace.costs.links import FloatArray, Table, shipped
from gnnplace.errors import InputError
from gnnplace.problem.cluster import Cluster

# Gradients are reduced together in buckets of so many bytes: PyTorch DDP's default.
BUCKET = 25 * 2**20


@dataclass(frozen=True, eq=False)
class Exchange:
    """Collectives on a cluster whose links name their fabric.

    Attributes:
        cluster: where.
        table: what was measured.

    Raises:
        InputError: the links name no fabric, or one that the table does not know.
    """

    cluster: Cluster
    table: Table = field(default_factory=shipped)

    def __post_init__(self) -> None:
        if self.whole is None or not self.whole.fabrics <= self.table.latency.keys():
            raise InputError(
                f"cluster {self.cluster.name!r}: its links name no measured fabric, so that what "
                "collectives take is not known; give --bandwidth, or --links with a log of "
                "nccl-tests"
            )

    @cached_property
    def whole(self) -> Group | None:
        """The group of all devices."""
        return group_of(self.cluster, range(self.cluster.num_devices))

    @property
    def bandwidth(self) -> float:
        """Bytes per second of a message over the slowest link."""
        return float(self.cluster.bandwidth[self.cluster.linked].min(initial=np.inf))

    def group(self, count: int) -> Group:
        """The group of so many neighbours."""
        assert self.whole is not None
        if count <= self.whole.each:
            return Group(self.whole.inside, None, 1, count)
        servers = -(-count // self.whole.each)
        return Group(self.whole.inside, self.whole.between, servers, -(-count // servers))

    def in_buckets(self, count: int, total: float) -> float:
        """Seconds of all-reducing ``total`` bytes of gradients over ``count`` devices, as DDP."""
        counts, sizes = np.array(float(count)), np.array(float(BUCKET))
        return total / BUCKET * float(self.seconds(ALL_REDUCE, counts, sizes))

    def bucketed(self, op: str, counts: FloatArray, sizes: FloatArray) -> FloatArray:
        """Seconds of collectives that share buckets with others: a part of a bucket's where small.

        Arguments are those of ``seconds``.
        """
        part = np.minimum(sizes / BUCKET, 1.0)
        return part * self.seconds(op, counts, np.where(sizes > 0, np.maximum(sizes, BUCKET), 0.0))

    def seconds(self, op: str, counts: FloatArray, sizes: FloatArray) -> FloatArray:
        """Seconds of collectives; none for one device, or of no bytes.

        Args:
            op: one of ``costs.collectives.COLLECTIVES``.
            counts: devices of each group. [any shape]
            sizes: bytes of each, as ``costs.collectives`` counts them. [the same shape]
        """
        counts, sizes = np.broadcast_arrays(counts, sizes)
        found = np.zeros(counts.shape)
        for count in np.unique(counts):
            here = (counts == count) & (sizes > 0)
            if count > 1 and here.any():
                group = self.group(round(float(count)))
                found[here] = collective_seconds(op, sizes[here], group, self.table)
        return found
