"""Several hosts: one process each, as `torchrun` starts them, and the store where they meet.

Every process runs the same program and forks workers for its own devices: the devices of the
cluster are dealt out in equal parts, in their order. Processes that find themselves on one machine
(two "hosts" on loopback) take cores that no other one takes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from gnnplace.errors import ExecutionError, InputError, MismatchError
from gnnplace.run.workers.tasks import available_cores

MEET = 120.0
"""Seconds for all hosts to arrive: each captures the model first."""
PAUSE = 0.05
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_runs = 0


@dataclass(frozen=True)
class Hosts:
    """This process among those that `torchrun` started.

    Attributes:
        rank: The rank of this host; host 0 reports.
        count: The number of hosts.
        address: The address of the store: name and port.
        prefix: The prefix of this run's keys, the same on all hosts.
        store: The store where the hosts meet.
    """

    rank: int
    count: int
    address: tuple[str, int]
    prefix: str
    store: dist.Store

    @property
    def first(self) -> bool:
        """Return whether this host collects and reports."""
        return self.rank == 0

    def client(self) -> dist.Store:
        """Return a connection of a worker's own to the store."""
        name, port = self.address
        far = dist.TCPStore(
            name, port, is_master=False, timeout=timedelta(seconds=MEET)
        )
        return dist.PrefixStore(self.prefix, far)

    def host_of(self, devices: Sequence[int], num_devices: int) -> tuple[int, ...]:
        """Return the host of each of these devices.

        Raises:
            InputError: the cluster's devices cannot be dealt out evenly, or none of these is on
                host 0.
        """
        if num_devices % self.count:
            raise InputError(
                f"hosts: {num_devices} devices cannot be dealt out evenly to {self.count} hosts; "
                "place on a multiple of the number of hosts"
            )
        hosts = tuple(device // (num_devices // self.count) for device in devices)
        if 0 not in hosts:
            raise InputError(
                "hosts: the placement leaves host 0 without work; place anew"
            )
        return hosts

    def agree(self, what: str, text: str) -> None:
        """Make sure that all hosts are about to do the same.

        Raises:
            MismatchError: another host is about to do something else.
            ExecutionError: a host did not come.
        """
        for rank, host_text in enumerate(self.exchange(what, text)):
            if host_text != text:
                raise MismatchError(
                    f"hosts: {what} of host {rank} differs from that of host {self.rank}; give all "
                    "the same command, files and versions"
                )

    def exchange(self, what: str, text: str) -> list[str]:
        """Return what every host says, in order of rank.

        Raises:
            ExecutionError: a host did not say anything in time.
        """
        self.store.set(f"{what}/{self.rank}", text)
        keys = [f"{what}/{rank}" for rank in range(self.count)]
        deadline = time.monotonic() + MEET
        for rank, key in enumerate(keys):
            while not self.store.check([key]):
                if time.monotonic() > deadline:
                    raise ExecutionError(f"host {rank} did not come within {MEET:g} s")
                time.sleep(PAUSE)
        return [self.store.get(key).decode() for key in keys]

    def free_cores(self, wanted: int) -> list[int]:
        """Return cores for this host's workers.

        Hosts on the same machine get different ones.
        """
        wanted_by_host = self.exchange("cores", f"{_machine()} {wanted}")
        offset = 0
        for host_text in wanted_by_host[: self.rank]:
            machine, count = host_text.rsplit(" ", 1)
            offset += int(count) if machine == _machine() else 0
        cores = available_cores()
        if offset < len(cores):
            return cores[offset:] + cores[:offset]
        return cores


def from_environment() -> Hosts | None:
    """Return the hosts that `torchrun` says there are; None if this process was started alone.

    Raises:
        InputError: half of what is needed is missing.
        ExecutionError: the others cannot be met.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return None
    missing = [name for name in NEEDED if name not in os.environ]
    if missing:
        raise InputError(
            f"hosts: {missing[0]} is not set; start all of them with torchrun"
        )
    rank = int(os.environ["RANK"])
    count = int(os.environ["WORLD_SIZE"])
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    try:
        store, *_ = next(dist.rendezvous("env://", rank, count))
    except (RuntimeError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ExecutionError(
            f"hosts: cannot meet at {address[0]}:{address[1]}: {reason}"
        ) from None
    prefix = _prefix()
    return Hosts(rank, count, address, prefix, dist.PrefixStore(prefix, store))


def _prefix() -> str:
    """Return a prefix for the keys of this run.

    It differs from that of earlier runs and from before a restart.
    """
    global _runs
    _runs += 1
    job = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return f"gnnplace/{job}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{_runs}"


def _machine() -> str:
    """Return the same text for processes on one running machine, and for no others."""
    try:
        return (
            Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        )
    except OSError:
        return os.uname().nodename
