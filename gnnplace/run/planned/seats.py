"""The pipeline rank, replica and shard of every process, and their process groups.

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
from gnnplace.plans import PlanFile
from gnnplace.run.split import set_mesh_group


@dataclass(frozen=True, eq=False)
class Seats:
    """The processes of a plan.

    Attributes:
        replicas: Number of replicas of every rank, r.
        axes: Number of shards of every rank along each of its axes. [P]
        devices: Name of the device of each process.
    """

    replicas: int
    axes: tuple[tuple[int, ...], ...]
    devices: tuple[str, ...]

    @property
    def shards(self) -> tuple[int, ...]:
        """Number of shards of every rank. [P]"""
        return tuple(math.prod(axes) for axes in self.axes)

    @property
    def count(self) -> int:
        """Number of processes."""
        return len(self.devices)

    def process(self, rank: int, replica: int, shard: int) -> int:
        """Return the number of a process."""
        first = self.replicas * sum(self.shards[:rank])
        return first + replica * self.shards[rank] + shard

    def members(self, rank: int) -> list[list[int]]:
        """Return the processes of a rank, a row for each replica."""
        return [
            [self.process(rank, r, s) for s in range(self.shards[rank])]
            for r in range(self.replicas)
        ]

    def of(self, process: int) -> tuple[int, int, int]:
        """Return rank, replica and shard of a process."""
        for rank, shards in enumerate(self.shards):
            first = self.process(rank, 0, 0)
            if process < first + self.replicas * shards:
                return rank, *divmod(process - first, shards)
        raise InputError(f"plan: there is no process {process} among {self.count}")


def make_seats(file: PlanFile) -> Seats:
    """Return the processes of a plan that was checked.

    Raises:
        MismatchError: its meshes cannot be run, with the reason.
    """
    firsts = [file.stages[file.rank_of.index(p)] for p in range(max(file.rank_of) + 1)]
    rows = [stage.rows for stage in firsts]
    counts = {len(row) for row in rows}
    if len(counts) > 1:
        listed = " and ".join(map(str, sorted(counts)))
        raise MismatchError(
            f"plan: stages[..].devices: stages of {listed} replicas; plans whose stages have "
            "unlike numbers of replicas cannot be run, only predicted; plan again with --runnable"
        )
    devices = [name for mesh in rows for row in mesh for name in row]
    axes = tuple(stage.axes for stage in firsts)
    return Seats(counts.pop(), axes, tuple(devices))


@dataclass(frozen=True, eq=False)
class Seat:
    """The place of one process in a plan, with its groups.

    Attributes:
        seats: the places of all processes.
        process: the number of the process.
        rank: the pipeline rank of the process.
        replica: The index of the replica.
        shard: The index of the shard.
        device: The device that the process computes on.
        mesh: The mesh of the shards of its replica, or None if there is one shard.
        owners: By the axes of shards that a gradient is a sum over, the processes that add it up
            and over the replicas; None if there is one.
        tied: By ranks that share a parameter, the first shards of these in its replica.
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
        """Number of replicas, r."""
        return self.seats.replicas

    @property
    def shards(self) -> int:
        """Number of shards of this rank."""
        return self.seats.shards[self.rank]

    @property
    def axes(self) -> tuple[int, ...]:
        """Number of shards of this rank along each axis."""
        return self.seats.axes[self.rank]

    @property
    def places(self) -> tuple[int, ...]:
        """Return the index of this shard along each axis."""
        return divmod(self.shard, self.axes[-1])[-len(self.axes) :]

    def sources(self, rank: int) -> int:
        """Return the process of another rank that this one receives from."""
        return self.seats.process(
            rank, self.replica, self.shard % self.seats.shards[rank]
        )

    def targets(self, rank: int) -> list[int]:
        """Return the processes of another rank that this one sends to."""
        return [
            self.seats.process(rank, self.replica, shard)
            for shard in range(self.seats.shards[rank])
            if shard % self.shards == self.shard
        ]


def check_processes(count: int) -> None:
    """Refuse to run a plan of so many devices on more or fewer processes.

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


def take_seat(
    seats: Seats, device: torch.device, ties: Iterable[tuple[int, ...]]
) -> Seat:
    """Make the groups of all processes, and return this process's seat.

    Args:
        seats: the places that the plan has.
        device: The device that this process computes on.
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
        along_axes = [_make_groups(row, (k,), process) for k in range(row.ndim)]
        if row.ndim > 1:
            over_all = _make_groups(row, tuple(range(row.ndim)), process)
        else:
            over_all = None
        if (p, r) == (rank, replica) and row.numel() > 1:
            groups = [group for group in along_axes if group is not None]
            mesh = DeviceMesh.from_group(
                groups if row.ndim > 1 else groups[0],
                device.type,
                mesh=row if row.ndim > 1 else None,
                mesh_dim_names=("outer", "inner")[-row.ndim :],
            )
            if over_all is not None:
                set_mesh_group(mesh, over_all)
    # Every process makes every group, in one order.
    owners: dict[tuple[bool, ...], dist.ProcessGroup | None] = {}
    for p in range(len(seats.shards)):
        processes = torch.tensor(seats.members(p)).view(seats.replicas, *seats.axes[p])
        for over in itertools.product((False, True), repeat=len(seats.axes[p])):
            dims = (0, *(k + 1 for k, summed in enumerate(over) if summed))
            group = _make_groups(processes, dims, process)
            owners |= {over: group} if p == rank else {}
    tied = {}
    for ranks in sorted(set(ties)):
        for r in range(seats.replicas):
            firsts = [seats.process(p, r, 0) for p in ranks]
            group = dist.new_group(firsts)
            if r == replica and rank in ranks:
                tied[ranks] = group
    return Seat(
        seats=seats,
        process=process,
        rank=rank,
        replica=replica,
        shard=shard,
        device=device,
        mesh=mesh,
        owners=owners,
        tied=tied,
    )


def _make_groups(
    processes: torch.Tensor, dims: tuple[int, ...], process: int
) -> dist.ProcessGroup | None:
    """Make all groups along dimensions; return this process's, None if it is alone in it."""
    remaining = [k for k in range(processes.ndim) if k not in dims]
    size = math.prod(processes.shape[k] for k in dims)
    rows = (
        processes.permute(*remaining, *dims).flatten(len(remaining)).reshape(-1, size)
    )
    own_group = None
    for row in rows.tolist():
        if len(row) > 1:
            group = dist.new_group(row)
        else:
            group = None
        if process in row:
            own_group = group
    return own_group
