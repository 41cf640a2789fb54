"""A predicted step as Chakra execution traces: one file a device, for simulators of networks.

Chakra's schema (MLCommons, ``schema/protobuf/et_def.proto``) has a graph for each rank: ops that
compute, sends and receives, and what each waits for. This writes it in the JSON form that
protobuf's own ``json_format`` reads, a message a line: ``GlobalMetadata`` first, then ``Node`` by
``Node``. An op waits for what it reads (``data_deps``) and for the op before it on its device
(``ctrl_deps``).

The schema counts whole microseconds; the attribute ``seconds`` has the rest. It has one size an op;
``tensors`` has the number and the bytes of every tensor that an op makes, ``reads`` the numbers of
those that it reads, so that ``convert FOLDER --from chakra`` gives the graph back. It has no
channels that links share, no device kinds, no memory of devices: these are not written, nor are
times on other kinds of devices, pins, forbidden devices, captured nodes, and where a time is from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnplace.errors import InputError
from gnnplace.files import write_text
from gnnplace.problem import PHASES, Problem
from gnnplace.simulation import Simulation

VERSION = "0.0.4"  # The version of Chakra's schema
MICRO = 1e6
Message = dict[str, Any]


def write_chakra(
    folder: str | Path, problem: Problem, simulation: Simulation
) -> list[Path]:
    """Write ``rank.D.json`` for every device D, in the order of the cluster.

    Args:
        folder: is made if it is not there.
        problem: what was placed.
        simulation: its predicted step.

    Raises:
        InputError: the placement cannot run, or the folder cannot be made.
    """
    if not simulation.feasible:
        raise InputError(f"chakra: the placement cannot run: {simulation.faults[0]}")
    directory = Path(folder)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"chakra: folder {str(directory)!r} cannot be made: {error}"
        ) from None
    paths = [directory / f"rank.{d}.json" for d in range(problem.num_devices)]
    for device, path in enumerate(paths):
        lines = map(json.dumps, trace(problem, simulation, device))
        write_text(path, "".join(f"{line}\n" for line in lines))
    return paths


def trace(problem: Problem, simulation: Simulation, device: int) -> Iterator[Message]:
    """Yield the messages of one device's trace."""
    name = problem.cluster.devices[device].name
    attributes = [
        _attribute("model", "string", problem.name),
        _attribute("rank", "int32", device),
    ]
    yield {
        "version": VERSION,
        "attr": [*attributes, _attribute("device", "string", name)],
    }
    yield from _transfers(problem, simulation, device)
    yield from _ops(problem, simulation, device)


def _ops(problem: Problem, simulation: Simulation, device: int) -> Iterator[Message]:
    transfers = simulation.transfers
    # Nodes that receive are numbered behind ops and nodes that send.
    first = problem.num_ops + len(transfers.tensor)
    arrives = (transfers.target == device).nonzero()[0].tolist()
    received = {int(transfers.tensor[k]): first + k for k in arrives}
    inputs: dict[int, list[int]] = {}
    outputs: dict[int, list[tuple[int, float]]] = {}
    read: dict[int, list[int]] = {}
    for tensor, producer in enumerate(problem.graph.producer.tolist()):
        outputs.setdefault(producer, []).append(
            (tensor, float(problem.graph.size[tensor]))
        )
        for op in problem.graph.consumers(tensor).tolist():
            read.setdefault(op, []).append(tensor)
            source = received.get(tensor, producer)
            if simulation.device[op] == device and source not in inputs.setdefault(
                op, []
            ):
                inputs[op].append(source)
    local_ops = (simulation.device == device).nonzero()[0]
    previous: list[int] = []
    for op in sorted(
        local_ops.tolist(), key=lambda op: (simulation.start[op], simulation.finish[op])
    ):
        kind = problem.cluster.devices[device].kind
        seconds = float(problem.time[kind][op])
        tensors = outputs.get(op, [])
        attributes = [
            _attribute("is_cpu_op", "bool", kind == "cpu"),
            _attribute("seconds", "double", seconds),
            _attribute("module", "string", problem.module[op] or ""),
            _attribute("phase", "string", PHASES[problem.phase[op]]),
            _attribute("colocate", "string", problem.colocate[op] or ""),
            _attribute("state", "double", float(problem.state[op])),
            _attribute(
                "tensor_size", "int64", str(int(sum(size for _, size in tensors)))
            ),
            _attribute("tensors", "string", json.dumps(tensors)),
            _attribute("reads", "string", json.dumps(read.get(op, []))),
        ]
        start = float(simulation.start[op])
        named = problem.graph.names[op]
        node = _Node(
            number=op,
            name=named,
            kind="COMP_NODE",
            start=start,
            seconds=seconds,
            attributes=attributes,
            data=inputs.get(op, []),
            control=previous,
        )
        yield node.message()
        previous = [op]


def _transfers(
    problem: Problem, simulation: Simulation, device: int
) -> Iterator[Message]:
    transfers = simulation.transfers
    graph = problem.graph
    for k, tensor in enumerate(transfers.tensor.tolist()):
        ends = (int(transfers.source[k]), int(transfers.target[k]))
        if device not in ends:
            continue
        attributes = [
            _attribute("is_cpu_op", "bool", False),
            _attribute("comm_src", "int32", ends[0]),
            _attribute("comm_dst", "int32", ends[1]),
            _attribute("comm_size", "int64", str(int(graph.size[tensor]))),
            _attribute("comm_tag", "int32", tensor),
        ]
        sends = device == ends[0]
        producer = int(graph.producer[tensor])
        number = problem.num_ops + k + (0 if sends else len(transfers.tensor))
        node = _Node(
            number=number,
            name=f"{'send' if sends else 'receive'} {graph.names[producer]}",
            kind="COMM_SEND_NODE" if sends else "COMM_RECV_NODE",
            start=float(transfers.start[k]),
            seconds=float(transfers.arrival[k] - transfers.start[k]),
            attributes=attributes,
            data=[producer] if sends else [],
        )
        yield node.message()


@dataclass(frozen=True)
class _Node:
    """One node of a trace.

    Attributes:
        number: Its number in the trace.
        name: What it is called.
        kind: Its type, in Chakra's words.
        start: Seconds from the beginning of the step to its start.
        seconds: Its duration.
        attributes: Everything else that the format has a place for.
        data: Nodes whose results it reads.
        control: Nodes that it waits for without reading anything.
    """

    number: int
    name: str
    kind: str
    start: float
    seconds: float
    attributes: list[Message]
    data: Sequence[int] = ()
    control: Sequence[int] = ()

    def message(self) -> Message:
        """Return the node as protobuf's JSON form has it: numbers of 64 bits are text."""
        return {
            "id": str(self.number),
            "name": self.name,
            "type": self.kind,
            "ctrl_deps": [str(node) for node in self.control],
            "data_deps": [str(node) for node in self.data],
            "start_time_micros": str(round(self.start * MICRO)),
            "duration_micros": str(round(self.seconds * MICRO)),
            "attr": self.attributes,
        }


def _attribute(name: str, kind: str, value: object) -> Message:
    return {"name": name, f"{kind}_val": value}
