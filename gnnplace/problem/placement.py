"""``Placement``: a device for every op, an order of ops for every device; its file; its faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from gnnplace.arrays import IntArray
from gnnplace.errors import FormatError, MismatchError
from gnnplace.files import Schema, parse, read_json, write_json
from gnnplace.problem import OPTIONS_KEY as OPTIONS_KEY
from gnnplace.problem import Problem
from gnnplace.problem.microbatching import with_microbatches

# The key of a placement file for the constraints that were asked.
CONSTRAINTS_KEY = "x-constraints"
CLUSTER_KEY = "x-cluster"  # The key of a placement file for the cluster's name
# Optional keys.
ABOUT = ("predicted_step_time", "lower_bound", "placer", "seconds", "seed")


@dataclass(frozen=True, eq=False)
class Placement:
    """The device of every op of a problem, and the order of ops on each device.

    Attributes:
        device: device of each op. [num_ops]
        sequence: ops of each device in the order they run; None leaves it to ``simulation``.
        predicted_step_time: simulated seconds, if known.
        lower_bound: seconds no placement can be below, if known.
        seconds: what it took to find.
    """

    device: IntArray
    sequence: tuple[IntArray, ...] | None = None
    predicted_step_time: float | None = None
    lower_bound: float | None = None
    placer: str | None = None
    seconds: float | None = None
    seed: int | None = None

    @property
    def key(self) -> bytes:
        """Return a key that is equal for placements with the same devices and sequences."""
        return b"|".join(
            part.tobytes() for part in (self.device, *(self.sequence or ()))
        )


def sequence_from_order(
    device: IntArray, order: IntArray, num_devices: int
) -> tuple[IntArray, ...]:
    """Split one order of all ops into a sequence for every device."""
    placed = device[order]
    return tuple(order[placed == d].astype(np.int32) for d in range(num_devices))


class PlacementFile(Schema):
    """The keys of a placement file."""

    format: Literal["gnnplace-placement"]
    version: Literal[1]
    problem: str | None = None
    fingerprint: str | None = None
    device: dict[str, str]
    sequence: dict[str, list[str]] | None = None
    predicted_step_time: Annotated[float, Field(ge=0)] | None = None
    lower_bound: Annotated[float, Field(ge=0)] | None = None
    placer: str | None = None
    seconds: Annotated[float, Field(ge=0)] | None = None
    seed: int | None = None


def read_placement(path: str | Path, problem: Problem) -> Placement:
    """Read a placement of ``problem``.

    Raises:
        FormatError: a malformed file, an unknown or missing op or device; names the key path.
        MismatchError: the placement was made for another problem.
    """
    return placement_from_data(read_json(path), problem, str(path))


def placement_from_data(
    data: object, problem: Problem, source: str = "placement"
) -> Placement:
    """Build a placement from the data of its file; ``source`` is named in errors."""
    file = parse(PlacementFile, data, source)
    if file.fingerprint is not None and file.fingerprint != problem.fingerprint:
        raise MismatchError(
            f"{source}: fingerprint: the placement was made for another problem than "
            f"{problem.name!r}: {_difference(file, data, problem)}; place this problem anew"
        )
    device = _devices(file, problem, source)
    sequence = _sequences(file, problem, device, source)
    return Placement(device, sequence, **{key: getattr(file, key) for key in ABOUT})


def _difference(file: PlacementFile, data: Any, problem: Problem) -> str:
    """Return what a placement and a problem differ in, the first of what can be told."""
    theirs = data.get(OPTIONS_KEY)
    options = problem.captured
    if isinstance(theirs, dict) and options is not None:
        differing = [
            key for key in theirs if key in options and theirs[key] != options[key]
        ]
        if differing:
            captured = _options(theirs, differing)
            return f"captured with {captured}, not {_options(options, differing)}"
    placed_devices = set(file.device.values()) | set(file.sequence or {})
    devices = [device.name for device in problem.cluster.devices]
    if file.sequence is not None and placed_devices != set(devices):
        return f"devices {', '.join(sorted(placed_devices))}, not {', '.join(devices)}"
    only = [name for name in file.device if name not in problem.graph.index]
    if len(file.device) != problem.num_ops or only:
        if only:
            example = f", such as {only[0]!r} there alone"
        else:
            example = ""
        return f"{len(file.device)} ops, not {problem.num_ops}{example}"
    return "the same ops, but other sizes of tensors (batch, precision) or other edges"


def _options(options: Mapping[str, Any], names: list[str]) -> str:
    return " ".join(f"--{name.replace('_', '-')} {options[name]}" for name in names)


def _devices(file: PlacementFile, problem: Problem, source: str) -> IntArray:
    index = problem.cluster.device_index
    names = problem.graph.names
    for op, device in file.device.items():
        if op not in problem.graph.index:
            raise FormatError(
                f"{source}: device.{op}: no op is named {op!r} in the problem"
            )
        if device not in index:
            raise FormatError(f"{source}: device.{op}: no device is named {device!r}")
    missing = [name for name in names if name not in file.device]
    if missing:
        raise FormatError(
            f"{source}: device: op {missing[0]!r} has no device ({len(missing)} in all)"
        )
    return np.array([index[file.device[name]] for name in names], dtype=np.int32)


def _sequences(
    file: PlacementFile, problem: Problem, device: IntArray, source: str
) -> tuple[IntArray, ...] | None:
    if file.sequence is None:
        return None
    index = problem.graph.index
    devices = problem.cluster.device_index
    for name, ops in file.sequence.items():
        if name not in devices:
            raise FormatError(f"{source}: sequence.{name}: no device is named {name!r}")
        for j, op in enumerate(ops):
            location = f"{source}: sequence.{name}[{j}]"
            if op not in index:
                raise FormatError(f"{location}: no op is named {op!r} in the problem")
            if device[index[op]] != devices[name]:
                raise FormatError(
                    f"{location}: op {op!r} is placed on {file.device[op]!r}"
                )
    count = Counter(op for ops in file.sequence.values() for op in ops)
    for name in problem.graph.names:
        if count[name] != 1:
            if count[name] == 0:
                problem_with_op = "is missing"
            else:
                problem_with_op = "is repeated"
            raise FormatError(f"{source}: sequence: op {name!r} {problem_with_op}")
    return tuple(
        np.array([index[op] for op in file.sequence.get(d.name, [])], dtype=np.int32)
        for d in problem.cluster.devices
    )


def count_placed_microbatches(data: object) -> int:
    """Return the number of micro-batches that a placement file's op names imply."""
    if isinstance(data, dict):
        devices = data.get("device")
    else:
        devices = None
    if isinstance(devices, dict):
        names = devices
    else:
        names = {}
    suffixes = [str(name).rpartition("#")[2] for name in names if "#" in str(name)]
    return 1 + max((int(s) for s in suffixes if s.isdecimal()), default=0)


def placement_to_data(placement: Placement, problem: Problem) -> dict[str, Any]:
    """Return the data of a placement file; attributes that are not known are left out."""
    names = problem.graph.names
    devices = problem.cluster.devices
    device_of: dict[str, str] = {}
    for name, index in zip(names, placement.device, strict=True):
        device_of[name] = devices[index].name
    data: dict[str, Any] = {
        "format": "gnnplace-placement",
        "version": 1,
        "problem": problem.name,
        "fingerprint": problem.fingerprint,
        "device": device_of,
    }
    if placement.sequence is not None:
        data["sequence"] = {
            device.name: [names[i] for i in ops]
            for device, ops in zip(devices, placement.sequence, strict=True)
        }
    for key in ABOUT:
        if getattr(placement, key) is not None:
            data[key] = getattr(placement, key)
    return data


def write_placement(path: str | Path, placement: Placement, problem: Problem) -> None:
    """Write a placement file atomically."""
    write_json(path, placement_to_data(placement, problem))


def list_faults(problem: Problem, device: IntArray) -> list[str]:
    """Return every reason, except memory, why the ops cannot run on these devices.

    Checks the kinds that can run an op, pins, colocation and links for the tensors that travel.
    """
    return [
        *_faults_by_op(problem, device),
        *_faults_by_class(problem, device),
        *_faults_by_link(problem, device),
    ]


def _faults_by_op(problem: Problem, device: IntArray) -> list[str]:
    names = problem.graph.names
    devices = problem.cluster.devices
    lines = []
    for i in np.flatnonzero(~problem.allowed[np.arange(problem.num_ops), device]):
        on = devices[device[i]]
        if problem.forbid is not None and problem.forbid[i, device[i]]:
            lines.append(f"op {names[i]!r} is on {on.name!r}, which is forbidden to it")
        elif np.isfinite(problem.times[i, device[i]]):
            lines.append(
                f"op {names[i]!r} is on {on.name!r} but pinned to {devices[problem.pin[i]].name!r}"
            )
        else:
            lines.append(
                f"op {names[i]!r} cannot run on {on.name!r}: no time for kind {on.kind!r}"
            )
    return lines


def _faults_by_class(problem: Problem, device: IntArray) -> list[str]:
    if problem.num_units == problem.num_ops:
        return []
    first = np.full(problem.num_units, -1, dtype=np.int64)
    np.maximum.at(first, problem.unit_of, device)
    split = np.unique(problem.unit_of[device != first[problem.unit_of]])
    lines = []
    for unit in split:
        ops = np.flatnonzero(problem.unit_of == unit)
        a = ops[0]
        b = next(i for i in ops if device[i] != device[ops[0]])
        names = problem.graph.names
        lines.append(
            f"ops {names[a]!r} and {names[b]!r} are colocated ({problem.colocate[a]!r}) "
            "but on different devices"
        )
    return lines


def _faults_by_link(problem: Problem, device: IntArray) -> list[str]:
    graph = problem.graph
    cluster = problem.cluster
    source = device[graph.producer[graph.consumption_tensor]]
    target = device[graph.consumer]
    missing = np.flatnonzero((source != target) & ~cluster.linked[source, target])
    lines = []
    for k in missing:
        a = cluster.devices[source[k]].name
        b = cluster.devices[target[k]].name
        producer = graph.names[graph.producer[graph.consumption_tensor[k]]]
        lines.append(
            f"tensor of {producer!r} for {graph.names[graph.consumer[k]]!r}: "
            f"no link from {a!r} to {b!r}"
        )
    return lines


def read_placement_for(path: str | Path, problem: Problem) -> tuple[Placement, Problem]:
    """Read a placement and its problem, which is cut into micro-batches if the placement is.

    Raises:
        FormatError, MismatchError: see ``read_placement``.
    """
    data = read_json(path)
    count = count_placed_microbatches(data)
    if count > 1 and problem.microbatches == 1:
        problem = with_microbatches(problem, count)
    return placement_from_data(data, problem, str(path)), problem
