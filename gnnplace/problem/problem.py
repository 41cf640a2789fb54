"""``Problem``: a computation graph with the costs of its ops, and a cluster to place it on.

Ops of one colocation class are one placement *unit*. ``fingerprint`` tells for which problems a
placement is valid. ``build_problem`` makes a problem from arrays; ``read_problem`` and
``write_problem`` are for problem files, which are JSON. A file is checked completely, and one error
names all that is wrong with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.errors import FormatError, InputError, join_faults
from gnnplace.files import (
    MOST,
    Bytes,
    Schema,
    Seconds,
    parse,
    pause_garbage_collection,
    read_json,
    write_json,
)
from gnnplace.graph import ComputationGraph
from gnnplace.problem.cluster import Cluster, Device, Link
from gnnplace.problem.cluster.cluster import cluster_faults

Values = TypeVar("Values")

FORWARD = 0
BACKWARD = 1
UPDATE = 2
PHASES = ("forward", "backward", "update")
MOST_SHOWN = 4  # devices that a message lists
DECIMALS = 4  # of errors in a problem file
LARGEST_WHOLE = 2**53  # below it, every whole number is exact in double precision


@dataclass(frozen=True, eq=False)
class Problem:
    """A computation graph, what its ops cost, and the cluster to place it on.

    Attributes:
        name: The name of the problem.
        graph: The ops and the tensors between them.
        cluster: The devices and the links between them.
        time: Seconds of each op by device kind, inf where that kind cannot run it. [num_ops]
        state: Bytes of each op that stay on its device for the whole step. [num_ops]
        phase: FORWARD, BACKWARD or UPDATE. [num_ops]
        colocate: Colocation class of each op, or None; ops of a class share a device. [num_ops]
        pin: The device that an op must be on, -1 if there is none. [num_ops]
        module: Dotted path of the module that an op comes from, or None. [num_ops]
        members: Names of the captured nodes of each op. [num_ops]
        estimated: Whether an op's times were estimated, not measured. [num_ops]
        microbatches: Number of micro-batches that the batch is cut into.
        error: Expected error of the logarithm of each time by device kind, NaN where it is unknown.
            Kinds without any known error are absent. [num_ops]
        source: Where each time comes from, in words or None, by device kind. [num_ops]
        forbid: Whether an op must not be on a device. None: nothing is forbidden. [num_ops, D]
        captured: Options by name with which the model was captured; None if unknown.

    Raises:
        InputError: There is no op, an attribute has the wrong length, or a time or a state is no
            number from 0 on.
    """

    name: str
    graph: ComputationGraph
    cluster: Cluster
    time: dict[str, FloatArray]
    state: FloatArray
    phase: NDArray[np.int8]
    colocate: tuple[str | None, ...]
    pin: IntArray
    module: tuple[str | None, ...]
    members: tuple[tuple[str, ...], ...]
    estimated: BoolArray
    microbatches: int = 1
    error: dict[str, FloatArray] = field(default_factory=dict)
    source: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    forbid: BoolArray | None = None
    captured: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.num_ops == 0:
            raise InputError("ops: at least one op is needed")
        # Every array of ops has one entry an op; forbid, errors and sources may be absent.
        entries: dict[str, Sized] = {
            "state": self.state,
            "phase": self.phase,
            "colocate": self.colocate,
            "pin": self.pin,
            "module": self.module,
            "members": self.members,
            "estimated": self.estimated,
        }
        for field_name, values in entries.items():
            if len(values) != self.num_ops:
                raise InputError(
                    f"{field_name}: has {len(values)} entries, not one for each of "
                    f"{self.num_ops} ops"
                )
        shape = (self.num_ops, self.num_devices)
        if self.forbid is not None and self.forbid.shape != shape:
            raise InputError(
                f"forbid: its shape is {self.forbid.shape}; must be {shape}, ops by devices"
            )
        by_kind: list[tuple[str, Sized]] = [*self.error.items(), *self.source.items()]
        for kind, values in by_kind:
            if len(values) != self.num_ops:
                raise InputError(
                    f"{kind}: has {len(values)} errors or sources, not one for each of "
                    f"{self.num_ops} ops"
                )
        # Times may be infinite (that kind cannot run the op), but neither NaN nor negative.
        for kind, seconds in self.time.items():
            is_valid = (seconds >= 0) & ((seconds <= MOST) | np.isinf(seconds))
            invalid = np.flatnonzero(~is_valid)
            if invalid.size:
                raise InputError(
                    f"ops[{invalid[0]}].time.{kind}: must be a number of seconds, 0 to {MOST:g}"
                )
            if len(seconds) != self.num_ops:
                raise InputError(
                    f"time.{kind}: has {len(seconds)} entries, not one for each of "
                    f"{self.num_ops} ops"
                )
        invalid = np.flatnonzero(~((self.state >= 0) & (self.state <= MOST)))
        if invalid.size:
            raise InputError(
                f"ops[{invalid[0]}].state: must be a number of bytes, 0 to {MOST:g}"
            )

    @property
    def num_ops(self) -> int:
        """Return the number of ops, n."""
        return self.graph.num_ops

    @property
    def num_devices(self) -> int:
        """Return the number of devices, D."""
        return self.cluster.num_devices

    @cached_property
    def kind_of(self) -> NDArray[np.intp]:
        """Return the kind of each device, an index into ``cluster.kinds``. [D]"""
        index = {kind: k for k, kind in enumerate(self.cluster.kinds)}
        return np.array([index[device.kind] for device in self.cluster.devices])

    @cached_property
    def kind_times(self) -> FloatArray:
        """Return the seconds of each op on each kind of device, inf if impossible. [num_ops, K]"""
        never = np.full(self.num_ops, np.inf)
        columns = [self.time.get(kind, never) for kind in self.cluster.kinds]
        return np.ascontiguousarray(np.stack(columns, axis=1))

    @cached_property
    def times(self) -> FloatArray:
        """Return the seconds of each op on each device, inf where it cannot run. [num_ops, D]"""
        return self.kind_times.take(self.kind_of, axis=1)

    @cached_property
    def allowed(self) -> BoolArray:
        """Return whether an op may be on a device, by its times, pin and forbids. [num_ops, D]

        Ops of one unit may be allowed on different devices; see ``unit_allowed``.
        """
        allowed = np.isfinite(self.kind_times).take(self.kind_of, axis=1)
        if self.forbid is not None:
            allowed &= ~self.forbid
        pinned = np.flatnonzero(self.pin >= 0)
        allowed[pinned] &= np.arange(self.num_devices) == self.pin[pinned, None]
        return allowed

    @property
    def idle(self) -> str:
        """Return a message about devices for whose kind no op has a time; "" if there are none."""
        idle_kinds = [kind for kind in self.cluster.kinds if kind not in self.time]
        names = [d.name for d in self.cluster.devices if d.kind in idle_kinds]
        if not names:
            return ""
        shown = ", ".join(names[:MOST_SHOWN])
        if len(names) > MOST_SHOWN:
            shown += f" and {len(names) - MOST_SHOWN} more"
        kinds = " or ".join(map(repr, idle_kinds))
        kinds_with_times = ", ".join(map(repr, self.time)) or "none"
        return (
            f"no op has a time for kind {kinds}, so nothing can run on {shown}; "
            f"there are times for {kinds_with_times}"
        )

    @cached_property
    def unit_of(self) -> IntArray:
        """Return the placement unit of each op: its colocation class, or itself. [num_ops]

        Units are numbered in the order of their first ops.
        """
        n = self.num_ops
        itself = np.arange(n, dtype=np.int32)
        # The first op of a class leads it. Filled from the end, so that the first op comes last.
        first = dict(zip(reversed(self.colocate), range(n - 1, -1, -1), strict=True))
        leader = np.fromiter(map(first.__getitem__, self.colocate), np.int32, n)
        # An op without a class leads itself.
        leader = np.where(leader == first.get(None, -1), itself, leader)
        unit = np.cumsum(leader == itself, dtype=np.int32) - np.int32(1)
        return np.asarray(unit[leader])

    @cached_property
    def num_units(self) -> int:
        """Return the number of placement units, U."""
        return int(self.unit_of.max()) + 1

    @cached_property
    def unit_allowed(self) -> BoolArray:
        """Return whether all ops of a unit may be on a device. [U, D]"""
        allowed = np.ones((self.num_units, self.num_devices), dtype=bool)
        op, device = np.nonzero(~self.allowed)
        allowed[self.unit_of[op], device] = False
        return allowed

    @cached_property
    def unit_state(self) -> FloatArray:
        """Return the bytes of state of each unit. [U]"""
        return np.bincount(self.unit_of, self.state, self.num_units).astype(np.float64)

    @cached_property
    def microbatch(self) -> IntArray:
        """Return the micro-batch of each op. [num_ops]

        It is the k of ``#k`` at the end of an op's name; 0 without one, and for updates.
        """
        if self.microbatches == 1:
            return np.zeros(self.num_ops, dtype=np.int32)
        numbers = {f"#{k}": k for k in range(self.microbatches)}
        microbatch = []
        for name in self.graph.names:
            suffix = name[name.rfind("#") :]
            microbatch.append(numbers.get(suffix, 0))
        return np.where(self.phase == UPDATE, 0, np.array(microbatch, dtype=np.int32))

    @cached_property
    def fingerprint(self) -> str:
        """Return the SHA-256 of what must be equal for a placement to be valid.

        That is: names of ops, tensors, ``colocate``, names of devices, and micro-batches.
        """
        graph = self.graph
        structure = [
            list(graph.names),
            [graph.producer.tolist(), graph.size.tolist()],
            [graph.consumer_offset.tolist(), graph.consumer.tolist()],
            list(self.colocate),
            [device.name for device in self.cluster.devices],
            self.microbatches,
        ]
        text = json.dumps(structure, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def build_problem(
    name: str,
    graph: ComputationGraph,
    cluster: Cluster,
    time: dict[str, Any],
    **attributes: object,
) -> Problem:
    """Build a problem with some attributes given and the others at their defaults.

    By default there is no state, all ops are forward ops and measured, nothing is colocated, pinned
    or forbidden, and there are no micro-batches.

    Args:
        name: The name of the problem.
        graph: The ops and the tensors between them.
        cluster: The devices and the links between them.
        time: Seconds of each op by device kind. [num_ops]
        attributes: Attributes of ``Problem`` by name.

    Raises:
        InputError: An attribute is unknown, or has the wrong length.
    """
    n = graph.num_ops
    defaults: dict[str, Any] = {
        "state": np.zeros(n),
        "phase": np.zeros(n, dtype=np.int8),
        "colocate": (None,) * n,
        "pin": np.full(n, -1, dtype=np.int32),
        "module": (None,) * n,
        "members": ((),) * n,
        "estimated": np.zeros(n, dtype=bool),
        "microbatches": 1,
        "error": {},
        "source": {},
        "forbid": None,
    }
    unknown = set(attributes) - set(defaults)
    if unknown:
        raise InputError(
            f"problem attribute {sorted(unknown)[0]!r}: unknown; attributes: {', '.join(defaults)}"
        )
    seconds_by_kind = {
        kind: np.asarray(seconds, dtype=np.float64) for kind, seconds in time.items()
    }
    return Problem(
        name=name,
        graph=graph,
        cluster=cluster,
        time=seconds_by_kind,
        **(defaults | attributes),
    )


# The key of problem and placement files for how the model was captured.
OPTIONS_KEY = "x-capture"
Name = Annotated[str, Field(min_length=1)]


class OpEntry(Schema):
    """An op of a problem file."""

    name: Name
    time: dict[str, Seconds]
    state: Bytes = 0.0
    phase: Literal["forward", "backward", "update"] = "forward"
    colocate: Name | None = None
    pin: str | None = None
    forbid: list[str] = Field(default_factory=list)
    module: str | None = None
    members: list[str] = Field(default_factory=list)
    estimated: bool = False
    error: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    source: dict[str, str] = Field(default_factory=dict)


class TensorEntry(Schema):
    """A tensor of a problem file."""

    producer: str
    bytes: Bytes
    consumers: list[str]


class ProblemFile(Schema):
    """A problem file."""

    format: Literal["gnnplace-problem"]
    version: Literal[1]
    name: str
    microbatches: Annotated[int, Field(ge=1)] = 1
    devices: list[Device]
    links: list[Link]
    ops: Annotated[list[OpEntry], Field(min_length=1)]
    tensors: list[TensorEntry]


def read_problem(path: str | Path) -> Problem:
    """Read a problem file.

    Raises:
        FormatError: The file is malformed; the message names the file, each key and its fault.
    """
    # Garbage is not collected meanwhile: the entries of a large file are many objects.
    with pause_garbage_collection():
        return problem_from_data(read_json(path), str(path))


def problem_from_data(data: object, source: str = "problem") -> Problem:
    """Build a problem from the data of a problem file.

    Args:
        data: The data, as JSON gives it.
        source: The name of the file, for messages.

    Raises:
        FormatError: The data are malformed; the message names each key and its fault.
    """
    file = parse(ProblemFile, data, source)
    faults = [
        *cluster_faults(file.devices, file.links),
        *_check_ops(file),
        *_check_tensors(file),
    ]
    # An op has a copy for every micro-batch, so that there are at least as many ops.
    if file.microbatches > len(file.ops):
        reason = f"{file.microbatches}, but there are {len(file.ops)} ops with a copy for each"
        faults.append(f"microbatches: {reason}")
    if faults:
        raise join_faults(FormatError, faults, source)
    try:
        cluster = Cluster(tuple(file.devices), tuple(file.links))
        problem = replace(
            _assemble(file, cluster), captured=_read_capture_options(data)
        )
    except InputError as error:
        raise FormatError(f"{source}: {error}") from None
    faults = _check_kinds(problem)
    if faults:
        raise join_faults(FormatError, faults, source)
    return problem


def _check_kinds(problem: Problem) -> list[str]:
    """Return a line for each device whose kind is spelt differently from a kind that ops name."""
    kind_by_letters = {_strip_kind(kind): kind for kind in problem.time}
    faults = []
    for i, device in enumerate(problem.cluster.devices):
        letters = _strip_kind(device.kind)
        if device.kind not in problem.time and letters in kind_by_letters:
            faults.append(
                f"devices[{i}].kind: no op has a time for {device.kind!r} but ops have for "
                f"{kind_by_letters[letters]!r}; write both alike"
            )
    return faults


def _read_capture_options(data: object) -> dict[str, Any] | None:
    """Return the options of the capture that a file's data have, or None."""
    if isinstance(data, dict):
        options = data.get(OPTIONS_KEY)
    else:
        options = None
    if isinstance(options, dict):
        return options
    return None


def _assemble(file: ProblemFile, cluster: Cluster) -> Problem:
    """Build the problem of a checked file."""
    ops = file.ops
    op_index = {op.name: i for i, op in enumerate(ops)}
    tensors = []
    for tensor in file.tensors:
        consumers = [op_index[name] for name in tensor.consumers]
        tensors.append((op_index[tensor.producer], tensor.bytes, consumers))
    graph = ComputationGraph.from_tensors([op.name for op in ops], tensors)
    return build_problem(
        file.name,
        graph,
        cluster,
        _collect_by_kind(ops, "time", np.inf, np.array),
        state=np.array([op.state for op in ops], dtype=np.float64),
        phase=np.array([PHASES.index(op.phase) for op in ops], dtype=np.int8),
        colocate=tuple(op.colocate for op in ops),
        pin=np.array(
            [-1 if op.pin is None else cluster.device_index[op.pin] for op in ops],
            dtype=np.int32,
        ),
        module=tuple(op.module for op in ops),
        members=tuple(tuple(op.members) for op in ops),
        estimated=np.array([op.estimated for op in ops], dtype=bool),
        microbatches=file.microbatches,
        error=_collect_by_kind(ops, "error", np.nan, np.array),
        source=_collect_by_kind(ops, "source", None, tuple),
        forbid=_build_forbid(ops, cluster),
    )


def _collect_by_kind(
    ops: list[OpEntry],
    name: str,
    missing: float | None,
    make: Callable[[list[Any]], Values],
) -> dict[str, Values]:
    """Collect an attribute of ops by device kind, for all kinds that an op names.

    Args:
        ops: The ops.
        name: The attribute, which is a mapping by kind.
        missing: The value of an op that does not name a kind.
        make: Makes the values of a kind from a list with one for each op.
    """
    entries = [getattr(op, name) for op in ops]
    values = {}
    for kind in dict.fromkeys(chain.from_iterable(entries)):
        values[kind] = make([entry.get(kind, missing) for entry in entries])
    return values


def _build_forbid(ops: list[OpEntry], cluster: Cluster) -> BoolArray | None:
    """Return whether an op must not be on a device, or None if no op says so. [num_ops, D]"""
    forbid = np.zeros((len(ops), cluster.num_devices), dtype=bool)
    for i, op in enumerate(ops):
        for name in op.forbid:
            forbid[i, cluster.device_index[name]] = True
    if forbid.any():
        return forbid
    return None


def _check_ops(file: ProblemFile) -> list[str]:
    """Return a line for each repeated name, and for each pin or forbid of no device."""
    earlier_names: set[str] = set()
    devices = {device.name for device in file.devices}
    faults = []
    for i, op in enumerate(file.ops):
        if op.name in earlier_names:
            faults.append(f"ops[{i}].name: {op.name!r} is repeated")
        if op.pin is not None and op.pin not in devices:
            faults.append(f"ops[{i}].pin: no device is named {op.pin!r}")
        for j, name in enumerate(op.forbid):
            if name not in devices:
                faults.append(f"ops[{i}].forbid[{j}]: no device is named {name!r}")
        earlier_names.add(op.name)
    return faults


def _check_tensors(file: ProblemFile) -> list[str]:
    """Return a line for each producer and consumer that is no op."""
    ops = {op.name for op in file.ops}
    faults = []
    for k, tensor in enumerate(file.tensors):
        if tensor.producer not in ops:
            faults.append(f"tensors[{k}].producer: no op is named {tensor.producer!r}")
        for j, consumer in enumerate(tensor.consumers):
            if consumer not in ops:
                key = f"tensors[{k}].consumers[{j}]"
                faults.append(f"{key}: no op is named {consumer!r}")
    return faults


def plain_number(value: float) -> int | float:
    """Return a whole ``value`` as an int, so that files have 4096 and not 4096.0."""
    if float(value).is_integer() and abs(value) < LARGEST_WHOLE:
        return int(value)
    return float(value)


def problem_to_data(problem: Problem) -> dict[str, Any]:
    """Return the data of a problem file, as JSON takes it."""
    graph = problem.graph
    tensors = []
    for k in range(graph.num_tensors):
        tensors.append(
            {
                "producer": graph.names[graph.producer[k]],
                "bytes": plain_number(graph.size[k]),
                "consumers": [graph.names[op] for op in graph.consumers(k)],
            }
        )
    return {
        "format": "gnnplace-problem",
        "version": 1,
        "name": problem.name,
        "microbatches": problem.microbatches,
        "devices": [
            device.model_dump(exclude_defaults=True)
            for device in problem.cluster.devices
        ],
        "links": [
            link.model_dump(exclude_defaults=True) for link in problem.cluster.links
        ],
        "ops": [_make_op_data(problem, i) for i in range(problem.num_ops)],
        "tensors": tensors,
    }


def _make_op_data(problem: Problem, i: int) -> dict[str, Any]:
    """Return the data of op ``i``. Attributes at their defaults are left out."""
    times = {
        kind: float(seconds[i])
        for kind, seconds in problem.time.items()
        if np.isfinite(seconds[i])
    }
    data: dict[str, Any] = {"name": problem.graph.names[i], "time": times}
    if problem.state[i]:
        data["state"] = plain_number(problem.state[i])
    data["phase"] = PHASES[problem.phase[i]]
    if problem.colocate[i] is not None:
        data["colocate"] = problem.colocate[i]
    if problem.pin[i] >= 0:
        data["pin"] = problem.cluster.devices[problem.pin[i]].name
    if problem.forbid is not None and problem.forbid[i].any():
        forbidden = np.flatnonzero(problem.forbid[i])
        data["forbid"] = [problem.cluster.devices[d].name for d in forbidden]
    if problem.module[i] is not None:
        data["module"] = problem.module[i]
    if problem.members[i]:
        data["members"] = list(problem.members[i])
    if problem.estimated[i]:
        data["estimated"] = True
    error = {
        kind: round(float(errors[i]), DECIMALS)
        for kind, errors in problem.error.items()
        if np.isfinite(errors[i])
    }
    if error:
        data["error"] = error
    source = {
        kind: sources[i]
        for kind, sources in problem.source.items()
        if sources[i] is not None
    }
    if source:
        data["source"] = source
    return data


def write_problem(path: str | Path, problem: Problem) -> None:
    """Write a problem file, which is replaced at once or not at all."""
    write_json(path, problem_to_data(problem))


def _strip_kind(kind: str) -> str:
    """Return the letters and digits of a kind in lower case, which spellings have in common."""
    return "".join(letter for letter in kind.lower() if letter.isalnum())
