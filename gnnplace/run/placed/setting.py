"""What the workers of a run share with their parent: board, transport, clocks, cores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from gnnplace.errors import UnsupportedError
from gnnplace.problem import Placement, Problem
from gnnplace.run.placed.plan import ExecutionPlan
from gnnplace.run.placed.source import TICKS, DeviceProgram, device_program
from gnnplace.run.placed.worker import Records
from gnnplace.run.workers import (
    ARRIVED,
    SEGMENT,
    STEP,
    WAITING,
    Board,
    Hosts,
    NetworkTransport,
    Transport,
    available_cores,
    make_shared_words,
    make_transport,
)
from gnnplace.tracing import Program, move_to_cuda


class RunSetting:
    """Shared memory and cores of the workers of one plan; made before they are forked.

    Args:
        plan: What every device does.
        mode: "measured" or "emulated".
        transport: "shm" or "gloo".
        rows: Steps whose clocks are kept.
        saved: Values that workers hand to `save` where they are made.
        hosts: Several hosts, of which this is one; None if there is only this one.

    Attributes:
        host_of: Host of each worker.
        workers: Numbers of the workers that this host runs; all others run elsewhere.
        cores: The cores to use: these, in order.

    Raises:
        InputError: devices that cannot be dealt out to the hosts.
        UnsupportedError: devices that are not here, or fewer cores than devices in use.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        mode: str,
        transport: str,
        rows: int,
        saved: Iterable[str],
        hosts: Hosts | None = None,
    ) -> None:
        self.plan = plan
        self.mode = mode
        count = len(plan.devices)
        rank = hosts.rank if hosts else 0
        # All hosts know where each worker runs; each assigns cores to its own workers alone.
        if hosts:
            self.host_of = hosts.host_of(plan.devices, plan.problem.num_devices)
        else:
            self.host_of = (0,) * count
        self.workers = [w for w in range(count) if self.host_of[w] == rank]
        torch_devices = [
            torch_device(plan.problem, plan.devices[w], mode) for w in self.workers
        ]
        self.kinds = dict(zip(self.workers, torch_devices, strict=True))
        self.cores = assign_cores(
            torch_devices, mode, hosts.free_cores(len(torch_devices)) if hosts else None
        )
        saved = tuple(saved)
        # Board, transport and clocks are memory that workers inherit: made before they are forked.
        self.programs: list[DeviceProgram] = [
            device_program(plan, device, saved) for device in plan.devices
        ]
        self.board = Board(
            len(plan.devices), crowded=len(set(self.cores)) < len(self.cores)
        )
        if hosts is not None:
            self.transport: Transport = NetworkTransport(
                plan.messages, self.board, hosts, self.host_of
            )
        else:
            self.transport = make_transport(transport, plan.messages, self.board)
        self.records = [
            Records(make_shared_words(rows * (TICKS * p.num_ticks + 1)), p.num_ticks)
            for p in self.programs
        ]

    def worker_arguments(self, number: int) -> dict[str, Any]:
        """Return the arguments of a `DeviceWorker` that the setting has."""
        return {
            "number": number,
            "device": self.plan.devices[number],
            "plan": self.plan,
            "program": self.programs[number],
            "transport": self.transport,
            "board": self.board,
            "records": self.records[number],
            "torch_device": self.kinds[number],
        }

    def name(self, number: int) -> str:
        """Return the name of a worker's device."""
        return self.plan.problem.cluster.devices[self.plan.devices[number]].name

    def doing(self, number: int) -> str:
        """Return what a worker is doing, for messages."""
        step = self.board.get(number, STEP)
        if step == 0:
            return " before its first step"
        segment = self.plan.segments[self.plan.devices[number]][
            self.board.get(number, SEGMENT)
        ]
        return f" in op {self.plan.problem.graph.names[segment.op]!r}, step {step - 1}"

    def suspect(self) -> int | None:
        """Return a worker that neither waits for a message nor for the others at the barrier."""
        board = self.board
        last = min(board.get(w, ARRIVED) for w in self.workers)
        for w in self.workers:
            if board.get(w, ARRIVED) == last and not board.get(w, WAITING):
                return w
        return None


def execution_mode(placement: Placement, problem: Problem) -> str:
    """Return "measured" if every device in use has a core or GPU here, else "emulated"."""
    used = [problem.cluster.devices[d] for d in sorted(set(placement.device.tolist()))]
    cores = sum(device.kind == "cpu" for device in used)
    are_local = all(device.name.startswith(("cpu:", "cuda:")) for device in used)
    if are_local and cores <= len(available_cores()):
        return "measured"
    return "emulated"


def list_emulated_kinds(
    problem: Problem, devices: Iterable[int], mode: str
) -> tuple[str, ...]:
    """Return the kinds of devices other than the CPU that the CPU emulates."""
    kinds = dict.fromkeys(problem.cluster.devices[d].kind for d in devices)
    if mode == "emulated":
        return tuple(kind for kind in kinds if kind != "cpu")
    return ()


def torch_device(problem: Problem, device: int, mode: str) -> torch.device:
    """Return where the tensors of a device live: "cuda:N" is that GPU, kind "cpu" the CPU.

    Emulated devices all live on the CPU.

    Raises:
        UnsupportedError: there is no such device here.
    """
    described = problem.cluster.devices[device]
    if mode == "emulated" or described.kind == "cpu":
        return torch.device("cpu")
    kind, _, number = described.name.partition(":")
    num_gpus = torch.cuda.device_count()
    if kind != "cuda" or not number.isdecimal() or int(number) >= num_gpus:
        raise UnsupportedError(
            f"device {described.name!r} ({described.kind}) is not on this machine, which has "
            f"{num_gpus} CUDA devices: profile the model for a cluster that is, or execute with "
            "mode='emulated'"
        )
    return torch.device("cuda", int(number))


def adapt_to_devices(
    program: Program, problem: Problem, placement: Placement, mode: str
) -> Program:
    """Return the program with its values as they are on the devices that run it."""
    used = set(placement.device.tolist())
    host = mode == "emulated" or all(
        problem.cluster.devices[d].kind == "cpu" for d in used
    )
    if host:
        return program
    return move_to_cuda(program)


def assign_cores(
    devices: list[torch.device], mode: str, cores: list[int] | None = None
) -> list[int]:
    """Return a core for every worker; only emulated workers may share one.

    Args:
        devices: The devices of the workers.
        mode: "measured" or "emulated".
        cores: The cores that are free; all by default.

    Raises:
        UnsupportedError: more workers than cores.
    """
    if cores is None:
        cores = available_cores()
    if len(devices) > len(cores) and mode != "emulated":
        raise UnsupportedError(
            f"{len(devices)} devices are in use but there are {len(cores)} cores: place on fewer "
            "devices, or execute with mode='emulated'"
        )
    return [cores[w % len(cores)] for w in range(len(devices))]
