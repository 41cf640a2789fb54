"""``Problem``: a graph with costs on a cluster; its fingerprint, its placement units.

Problem files: JSON that is read with all its faults named, and written whole.
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
    read_json,
    uncollected,
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


@dataclass(frozen=True, eq=False)
class Problem:
    """A computation graph, what its ops cost, and the cluster to place it on.

    Attributes:
        time: seconds of each op by device kind, inf where that kind cannot run it. [num_ops]
        state: bytes that stay for the whole step. [num_ops]
        phase: FORWARD, BACKWARD or UPDATE. [num_ops]
        colocate: class of ops that share a device, or None. [num_ops]
        pin: device an op must be on, -1 if free. [num_ops]
        forbid: whether an op must not be on a device; None: nothing is forbidden. [num_ops, D]
        module: dotted module path an op comes from, or None. [num_ops]
        members: captured nodes of each op. [num_ops]
        estimated: whether the op's times were not measured. [num_ops]
        error: expected deviation of the log of each time by device kind, NaN where nothing is
            known; no entry for kinds of which nothing is. [num_ops]
        source: where each time is from, by device kind, or None. [num_ops]
        microbatches: shares of the batch in flight together.
        captured: how the model was captured, as far as that is known: options by name.
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
        for field_name in (
            "state",
            "phase",
            "colocate",
            "pin",
            "module",
            "members",
            "estimated",
        ):
            if len(getattr(self, field_name)) != self.num_ops:
                raise InputError(
                    f"{field_name}: has {len(getattr(self, field_name))} entries, not one an op"
                )
        if self.forbid is not None and self.forbid.shape != (
            self.num_ops,
            self.num_devices,
        ):
            raise InputError(
                f"forbid: its shape is {self.forbid.shape}, not ops by devices"
            )
        by_kind: list[tuple[str, Sized]] = [*self.error.items(), *self.source.items()]
        for kind, values in by_kind:
            if len(values) != self.num_ops:
                raise InputError(
                    f"{kind}: has {len(values)} errors or sources, not one an op"
                )
        # Times may be infinite (that kind cannot run the op), but neither NaN nor negative.
        for kind, seconds in self.time.items():
            bad = np.flatnonzero(
                ~((seconds >= 0) & ((seconds <= MOST) | np.isinf(seconds)))
            )
            if len(seconds) != self.num_ops or bad.size:
                if bad.size:
                    key_path = f"ops[{bad[0]}].time.{kind}"
                else:
                    key_path = f"time.{kind}"
                raise InputError(
                    f"{key_path}: must be one number of seconds, 0 to {MOST:g}, an op"
                )
        bad = np.flatnonzero(~((self.state >= 0) & (self.state <= MOST)))
        if bad.size:
            raise InputError(
                f"ops[{bad[0]}].state: must be a number of bytes, 0 to {MOST:g}"
            )

    @property
    def num_ops(self) -> int:
        """Number of ops n."""
        return self.graph.num_ops

    @property
    def num_devices(self) -> int:
        """Number of devices D."""
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
        """Return whether an op may be on a device by itself: kind, pin and forbids. [num_ops, D]"""
        allowed = np.isfinite(self.kind_times).take(self.kind_of, axis=1)
        if self.forbid is not None:
            allowed &= ~self.forbid
        pinned = np.flatnonzero(self.pin >= 0)
        allowed[pinned] &= np.arange(self.num_devices) == self.pin[pinned, None]
        return allowed

    @property
    def idle(self) -> str:
        """Return which devices can run no op because no op has a time for their kind, or ""."""
        without = [kind for kind in self.cluster.kinds if kind not in self.time]
        names = [d.name for d in self.cluster.devices if d.kind in without]
        if not names:
            return ""
        shown = ", ".join(names[:4]) + (
            f" and {len(names) - 4} more" if len(names) > 4 else ""
        )
        kinds_with_times = ", ".join(repr(kind) for kind in self.time) or "none"
        return (
            f"no op has a time for kind {' or '.join(map(repr, without))}, so nothing can run on "
            f"{shown}; there are times for {kinds_with_times}"
        )

    @cached_property
    def unit_of(self) -> IntArray:
        """Return the placement unit of each op: its colocation class, or itself. [num_ops]"""
        itself = np.arange(self.num_ops, dtype=np.int32)
        n = self.num_ops
        first = dict(zip(reversed(self.colocate), range(n - 1, -1, -1), strict=True))
        leader = np.fromiter(map(first.__getitem__, self.colocate), np.int32, n)
        leader = np.where(leader == first.get(None, -1), itself, leader)
        unit = np.cumsum(leader == itself, dtype=np.int32) - np.int32(1)
        return np.asarray(unit[leader])

    @cached_property
    def num_units(self) -> int:
        """Number of placement units U."""
        return int(self.unit_of.max()) + 1

    @cached_property
    def unit_allowed(self) -> BoolArray:
        """Return whether a whole unit may be on a device. [U, D]"""
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
        """Return the micro-batch of each op, from ``#k`` in its name; 0 for updates. [num_ops]"""
        if self.microbatches == 1:
            return np.zeros(self.num_ops, dtype=np.int32)
        number = {f"#{k}": k for k in range(self.microbatches)}
        named = [number.get(name[name.rfind("#") :], 0) for name in self.graph.names]
        return np.where(self.phase == UPDATE, 0, np.array(named, dtype=np.int32))

    @cached_property
    def fingerprint(self) -> str:
        """Return the SHA-256 of all that a placement depends on.

        Names, edges, bytes, ``colocate``, device names and micro-batches.
        """
        graph = self.graph
        parts = [
            list(graph.names),
            [graph.producer.tolist(), graph.size.tolist()],
            [graph.consumer_offset.tolist(), graph.consumer.tolist()],
            list(self.colocate),
            [device.name for device in self.cluster.devices],
            self.microbatches,
        ]
        return hashlib.sha256(
            json.dumps(parts, separators=(",", ":")).encode()
        ).hexdigest()


def build_problem(
    name: str,
    graph: ComputationGraph,
    cluster: Cluster,
    time: dict[str, Any],
    **given: object,
) -> Problem:
    """Build a problem whose other attributes are plain: no state, all forward, no colocation.

    Raises:
        InputError: an unknown attribute or one of the wrong length.
    """
    n = graph.num_ops
    plain: dict[str, Any] = {
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
    unknown = set(given) - set(plain)
    if unknown:
        raise InputError(f"problem attribute {sorted(unknown)[0]!r}: unknown")
    costs = {
        kind: np.asarray(seconds, dtype=np.float64) for kind, seconds in time.items()
    }
    return Problem(name, graph, cluster, costs, **(plain | given))


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
    """The keys of a problem file."""

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
        FormatError: naming the file, the key path and the fault.
    """
    with uncollected():
        return problem_from_data(read_json(path), str(path))


def problem_from_data(data: object, source: str = "problem") -> Problem:
    """Build a problem from the data of a problem file; ``source`` is named in errors."""
    file = parse(ProblemFile, data, source)
    faults = [
        *cluster_faults(file.devices, file.links),
        *_op_faults(file),
        *_tensor_faults(file),
    ]
    # Each op that is no update has a copy for every micro-batch.
    if file.microbatches > len(file.ops):
        reason = f"{file.microbatches}, but there are {len(file.ops)} ops with a copy for each"
        faults.append(f"microbatches: {reason}")
    if faults:
        raise join_faults(FormatError, faults, source)
    try:
        cluster = Cluster(tuple(file.devices), tuple(file.links))
        problem = replace(_assemble(file, cluster), captured=_captured(data))
    except InputError as error:
        raise FormatError(f"{source}: {error}") from None
    # Kinds of the cluster that no op has a time for and that are a known one, spelt differently.
    plain = {_plain(kind): kind for kind in problem.time}
    faults = [
        f"devices[{i}].kind: no op has a time for {device.kind!r} but ops have for "
        f"{plain[_plain(device.kind)]!r}; write both alike"
        for i, device in enumerate(problem.cluster.devices)
        if device.kind not in problem.time and _plain(device.kind) in plain
    ]
    if faults:
        raise join_faults(FormatError, faults, source)
    return problem


def _captured(data: object) -> dict[str, Any] | None:
    if isinstance(data, dict):
        options = data.get(OPTIONS_KEY)
    else:
        options = None
    if isinstance(options, dict):
        return options
    return None


def _assemble(file: ProblemFile, cluster: Cluster) -> Problem:
    ops = file.ops
    at = {op.name: i for i, op in enumerate(ops)}
    triples = [
        (at[t.producer], t.bytes, [at[c] for c in t.consumers]) for t in file.tensors
    ]
    graph = ComputationGraph.from_tensors([op.name for op in ops], triples)
    return build_problem(
        file.name,
        graph,
        cluster,
        _by_kind(ops, "time", np.inf, np.array),
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
        error=_by_kind(ops, "error", np.nan, np.array),
        source=_by_kind(ops, "source", None, tuple),
        forbid=_forbidden(ops, cluster),
    )


def _by_kind(
    ops: list[OpEntry],
    name: str,
    missing: float | None,
    make: Callable[[list[Any]], Values],
) -> dict[str, Values]:
    """Return what ops say of each kind of device that any of them names.

    Args:
        ops: The ops.
        name: The attribute, a mapping by kind.
        missing: The value of an op that does not say it.
        make: Makes a kind's values of a list with one for each op.
    """
    entries = [getattr(op, name) for op in ops]
    values = {}
    for kind in dict.fromkeys(chain.from_iterable(entries)):
        values[kind] = make([entry.get(kind, missing) for entry in entries])
    return values


def _forbidden(ops: list[OpEntry], cluster: Cluster) -> BoolArray | None:
    """Return whether an op must not be on a device, or None if no op says so. [num_ops, D]"""
    forbid = np.zeros((len(ops), cluster.num_devices), dtype=bool)
    for i, op in enumerate(ops):
        for name in op.forbid:
            forbid[i, cluster.device_index[name]] = True
    if forbid.any():
        return forbid
    return None


def _op_faults(file: ProblemFile) -> list[str]:
    """Return a line for each repeated op name and each pin to a device that does not exist."""
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


def _tensor_faults(file: ProblemFile) -> list[str]:
    """Return faults of producers and consumers that are not there."""
    ops = {op.name for op in file.ops}
    faults = []
    for k, tensor in enumerate(file.tensors):
        if tensor.producer not in ops:
            faults.append(f"tensors[{k}].producer: no op is named {tensor.producer!r}")
        for j, consumer in enumerate(tensor.consumers):
            if consumer not in ops:
                place = f"tensors[{k}].consumers[{j}]"
                faults.append(f"{place}: no op is named {consumer!r}")
    return faults


def plain_number(value: float) -> int | float:
    """Return a whole ``value`` as an int, so that files say 4096 and not 4096.0."""
    if float(value).is_integer() and abs(value) < 2**53:
        return int(value)
    return float(value)


def problem_to_data(problem: Problem) -> dict[str, Any]:
    """Return the data of a problem file."""
    graph = problem.graph
    return {
        "format": "gnnplace-problem",
        "version": 1,
        "name": problem.name,
        "microbatches": problem.microbatches,
        "devices": [
            d.model_dump(exclude_defaults=True) for d in problem.cluster.devices
        ],
        "links": [
            link.model_dump(exclude_defaults=True) for link in problem.cluster.links
        ],
        "ops": [_op_data(problem, i) for i in range(problem.num_ops)],
        "tensors": [
            {
                "producer": graph.names[graph.producer[k]],
                "bytes": plain_number(graph.size[k]),
                "consumers": [graph.names[c] for c in graph.consumers(k)],
            }
            for k in range(graph.num_tensors)
        ],
    }


def _op_data(problem: Problem, i: int) -> dict[str, Any]:
    times = {kind: float(t[i]) for kind, t in problem.time.items() if np.isfinite(t[i])}
    data: dict[str, Any] = {"name": problem.graph.names[i], "time": times}
    if problem.state[i]:
        data["state"] = plain_number(problem.state[i])
    data["phase"] = PHASES[problem.phase[i]]
    if problem.colocate[i] is not None:
        data["colocate"] = problem.colocate[i]
    if problem.pin[i] >= 0:
        data["pin"] = problem.cluster.devices[problem.pin[i]].name
    if problem.forbid is not None and problem.forbid[i].any():
        data["forbid"] = [
            problem.cluster.devices[d].name for d in np.flatnonzero(problem.forbid[i])
        ]
    if problem.module[i] is not None:
        data["module"] = problem.module[i]
    if problem.members[i]:
        data["members"] = list(problem.members[i])
    if problem.estimated[i]:
        data["estimated"] = True
    error = {
        k: round(float(e[i]), 4) for k, e in problem.error.items() if np.isfinite(e[i])
    }
    source = {
        kind: named[i] for kind, named in problem.source.items() if named[i] is not None
    }
    return (
        data
        | ({"error": error} if error else {})
        | ({"source": source} if source else {})
    )


def write_problem(path: str | Path, problem: Problem) -> None:
    """Write a problem file atomically."""
    write_json(path, problem_to_data(problem))


def _plain(kind: str) -> str:
    return "".join(letter for letter in kind.lower() if letter.isalnum())
