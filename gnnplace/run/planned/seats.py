"""Which process does what: pipeline rank, replica and shard of every process, and their groups.

Processes are numbered as the plan lists devices: rank by rank, replica by replica, shard by shard.
All processes make all groups, in one order, as `torch.distributed.new_group` needs it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gnnplace.errors import InputError, MismatchError
from gnnplace.plans.plan import PlanFile
from gnnplace.sharding.run.move import told_group


@dataclass(frozen=True, eq=False)
class Seats:
    """All processes of a plan.

    Attributes:
        replicas: of every rank, r.
        axes: shards of every rank along each of their axes. [P]
        devices: name of the device of each process.
    """

    replicas: int
    axes: tuple[tuple[int, ...], ...]
    devices: tuple[str, ...]

    @property
    def shards(self) -> tuple[int, ...]:
        """Of every rank. [P]"""
        return tuple(math.prod(axes) for axes in self.axes)

    @property
    def count(self) -> int:
        """Processes."""
        return len(self.devices)

    def process(self, rank: int, replica: int, shard: int) -> int:
        """Number of a process."""
        before = self.replicas * sum(self.shards[:rank])
        return before + replica * self.shards[rank] + shard

    def members(self, rank: int) -> list[list[int]]:
        """Processes of a rank, a row a replica."""
        return [
            [self.process(rank, r, s) for s in range(self.shards[rank])]
            for r in range(self.replicas)
        ]

    def of(self, process: int) -> tuple[int, int, int]:
        """Rank, replica and shard of a process."""
        for rank, shards in enumerate(self.shards):
            first = self.process(rank, 0, 0)
            if process < first + self.replicas * shards:
                return rank, *divmod(process - first, shards)
        raise InputError(f"plan: there is no process {process} among {self.count}")


def seats_of(file: PlanFile) -> Seats:
    """The processes of a plan that was checked.

    Raises:
        MismatchError: its meshes cannot be run, with the reason.
    """
    firsts = [file.stages[file.rank_of.index(p)] for p in range(max(file.rank_of) + 1)]
    rows = [stage.rows for stage in firsts]
    counts = {len(row) for row in rows}
    if len(counts) > 1:
        told = " and ".join(map(str, sorted(counts)))
        raise MismatchError(
            f"plan: stages[..].devices: stages of {told} replicas; plans whose stages have unlike "
            "numbers of replicas cannot be run, only predicted; plan again with --runnable"
        )
    devices = [name for mesh in rows for row in mesh for name in row]
    axes = tuple(stage.axes for stage in firsts)
    return Seats(counts.pop(), axes, tuple(devices))


@dataclass(frozen=True, eq=False)
class Seat:
    """One process.

    Attributes:
        seats: the places of all processes.
        process: the number of the process.
        rank: the pipeline rank of the process.
        replica: which of the replicas.
        shard: which of the shards.
        device: that it computes on.
        mesh: of the shards of its replica, along their axes; None if it is the only one.
        owners: by the axes of shards that a gradient is a sum over, the processes that add it up
            and over the replicas; None if there is one.
        tied: by ranks that share a parameter, the first shards of these in its replica.
    """

    seats: Seats
    process: int
    rank: int
    replica: int
    shard: int
    device: torch.device
    mesh: DeviceMesh | None
    owners: dict[tuple[bool, ...], dist.ProcessGroup | None]
    tied: dict[tuple[int, ...], dist.ProcessGroup] = field(default_factory=dict)

    @property
    def replicas(self) -> int:
        """Replicas, r."""
        return self.seats.replicas

    @property
    def shards(self) -> int:
        """Shards of this rank."""
        return self.seats.shards[self.rank]

    @property
    def axes(self) -> tuple[int, ...]:
        """Along each of their axes."""
        return self.seats.axes[self.rank]

    @property
    def places(self) -> tuple[int, ...]:
        """The place of this shard along each axis."""
        return divmod(self.shard, self.axes[-1])[-len(self.axes) :]

    def sources(self, rank: int) -> int:
        """The process of another rank that this one has messages from."""
        return self.seats.process(rank, self.replica, self.shard % self.seats.shards[rank])

    def targets(self, rank: int) -> list[int]:
        """Those of another rank that have messages from this one."""
        there, here = self.seats.shards[rank], self.shards
        return [
            self.seats.process(rank, self.replica, shard)
            for shard in range(there)
            if shard % here == self.shard
        ]


def check_processes(count: int) -> None:
    """Refuses to run a plan of so many devices on more or fewer processes.

    Raises:
        InputError: there is no process group, or one of another size.
    """
    if not dist.is_initialized():
        raise InputError(
            f"plan over {count} devices: there is no process group; start the script with "
            f"torchrun --nproc-per-node {count}"
        )
    if dist.get_world_size() != count:
        raise InputError(
            f"plan over {count} devices: there are {dist.get_world_size()} processes; make a plan "
            "for as many, or start as many"
        )


def take_seat(seats: Seats, device: torch.device, ties: Iterable[tuple[int, ...]]) -> Seat:
    """This process's seat; makes the groups of all.

    Args:
        seats: the places that the plan has.
        device: that this process computes on.
        ties: ranks that share a parameter.

    Raises:
        InputError: there are more or fewer processes than devices.
    """
    if seats.count > 1 or dist.is_initialized():
        check_processes(seats.count)
    process = dist.get_rank() if seats.count > 1 else 0
    rank, replica, shard = seats.of(process)
    mesh: DeviceMesh | None = None
    for p, r in itertools.product(range(len(seats.shards)), range(seats.replicas)):
        row = torch.tensor(seats.members(p)[r]).view(seats.axes[p])
        own = [_grouped(row, (k,), process) for k in range(row.ndim)]
        all_own = _grouped(row, tuple(range(row.ndim)), process) if row.ndim > 1 else None
        if (p, r) == (rank, replica) and row.numel() > 1:
            groups = [group for group in own if group is not None]
            names = ("outer", "inner")[-row.ndim :]
            mesh = DeviceMesh.from_group(
                groups if row.ndim > 1 else groups[0], device.type,
                mesh=row if row.ndim > 1 else None, mesh_dim_names=names,
            )  # fmt: skip
            if all_own is not None:
                told_group(mesh, all_own)
    owners: dict[tuple[bool, ...], dist.ProcessGroup | None] = {}
    for p in range(len(seats.shards)):
        every = torch.tensor(seats.members(p)).view(seats.replicas, *seats.axes[p])
        for over in itertools.product((False, True), repeat=len(seats.axes[p])):
            dims = (0, *(k + 1 for k, summed in enumerate(over) if summed))
            group = _grouped(every, dims, process)
            owners |= {over: group} if p == rank else {}
    tied = {}
    for ranks in sorted(set(ties)):
        for r in range(seats.replicas):
            firsts = [seats.process(p, r, 0) for p in ranks]
            group = dist.new_group(firsts)
            if r == replica and rank in ranks:
                tied[ranks] = group
    return Seat(seats, process, rank, replica, shard, device, mesh, owners, tied)


def _grouped(
    processes: torch.Tensor, dims: tuple[int, ...], process: int
) -> dist.ProcessGroup | None:
    """This process's group along some dimensions; all groups are made. None if it is alone."""
    rest = [k for k in range(processes.ndim) if k not in dims]
    found = None
    for row in processes.permute(*rest, *dims).flatten(len(rest)).reshape(-1, math.prod(
            processes.shape[k] for k in dims)).tolist():  # fmt: skip
        group = dist.new_group(row) if len(row) > 1 else None
        found = group if process in row else found
    return found
