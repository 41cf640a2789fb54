"""``Problem``: a graph with costs on a cluster; its fingerprint, its placement units."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sized
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.errors import InputError
from gnnplace.graph import ComputationGraph
from gnnplace.problem.cluster import Cluster

FORWARD, BACKWARD, UPDATE = 0, 1, 2
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
        source: where each time is from by device kind, or None; likewise. [num_ops]
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
        for what in ("state", "phase", "colocate", "pin", "module", "members", "estimated"):
            if len(getattr(self, what)) != self.num_ops:
                raise InputError(f"{what}: has {len(getattr(self, what))} entries, not one an op")
        if self.forbid is not None and self.forbid.shape != (self.num_ops, self.num_devices):
            raise InputError(f"forbid: its shape is {self.forbid.shape}, not ops by devices")
        told: list[tuple[str, Sized]] = [*self.error.items(), *self.source.items()]
        for kind, values in told:
            if len(values) != self.num_ops:
                raise InputError(f"{kind}: has {len(values)} errors or sources, not one an op")
        for kind, seconds in self.time.items():
            bad = np.flatnonzero(~(seconds >= 0))
            if len(seconds) != self.num_ops or bad.size:
                where = f"ops[{bad[0]}].time.{kind}" if bad.size else f"time.{kind}"
                raise InputError(f"{where}: must be one number of seconds, not negative, an op")

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
        """Kind of each device, an index into ``cluster.kinds``. [D]"""
        index = {kind: k for k, kind in enumerate(self.cluster.kinds)}
        return np.array([index[device.kind] for device in self.cluster.devices])

    @cached_property
    def kind_times(self) -> FloatArray:
        """Seconds of each op on each of ``cluster.kinds``, inf where it cannot run. [num_ops, K]"""
        never = np.full(self.num_ops, np.inf)
        columns = [self.time.get(kind, never) for kind in self.cluster.kinds]
        return np.ascontiguousarray(np.stack(columns, axis=1))

    @cached_property
    def times(self) -> FloatArray:
        """Seconds of each op on each device, inf where it cannot run. [num_ops, D]"""
        return self.kind_times.take(self.kind_of, axis=1)

    @cached_property
    def allowed(self) -> BoolArray:
        """Whether an op may be on a device by itself: kind, pin and forbids. [num_ops, D]"""
        allowed = np.isfinite(self.kind_times).take(self.kind_of, axis=1)
        if self.forbid is not None:
            allowed &= ~self.forbid
        pinned = np.flatnonzero(self.pin >= 0)
        allowed[pinned] &= np.arange(self.num_devices) == self.pin[pinned, None]
        return allowed

    @property
    def idle(self) -> str:
        """Says which devices can run no op, since no op has a time for their kind; else empty."""
        without = [kind for kind in self.cluster.kinds if kind not in self.time]
        names = [d.name for d in self.cluster.devices if d.kind in without]
        if not names:
            return ""
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        known = ", ".join(repr(kind) for kind in self.time) or "none"
        return (
            f"no op has a time for kind {' or '.join(map(repr, without))}, so nothing can run on "
            f"{shown}; there are times for {known}"
        )

    @cached_property
    def unit_of(self) -> IntArray:
        """Placement unit of each op: its colocation class, or the op alone. [num_ops]"""
        own, n = np.arange(self.num_ops, dtype=np.int32), self.num_ops
        first = dict(zip(reversed(self.colocate), range(n - 1, -1, -1), strict=True))
        leader = np.fromiter(map(first.__getitem__, self.colocate), np.int32, n)
        leader = np.where(leader == first.get(None, -1), own, leader)
        unit = np.cumsum(leader == own, dtype=np.int32) - np.int32(1)
        return np.asarray(unit[leader])

    @cached_property
    def num_units(self) -> int:
        """Number of placement units U."""
        return int(self.unit_of.max()) + 1

    @cached_property
    def unit_allowed(self) -> BoolArray:
        """Whether a whole unit may be on a device. [U, D]"""
        allowed = np.ones((self.num_units, self.num_devices), dtype=bool)
        op, device = np.nonzero(~self.allowed)
        allowed[self.unit_of[op], device] = False
        return allowed

    @cached_property
    def unit_state(self) -> FloatArray:
        """Bytes of state of each unit. [U]"""
        return np.bincount(self.unit_of, self.state, self.num_units).astype(np.float64)

    @cached_property
    def microbatch(self) -> IntArray:
        """Micro-batch of each op, read off its name's ``#k``; 0 for update ops. [num_ops]"""
        if self.microbatches == 1:
            return np.zeros(self.num_ops, dtype=np.int32)
        number = {f"#{k}": k for k in range(self.microbatches)}
        named = [number.get(name[name.rfind("#") :], 0) for name in self.graph.names]
        return np.where(self.phase == UPDATE, 0, np.array(named, dtype=np.int32))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of names, edges, bytes, ``colocate``, device names and micro-batches."""
        graph = self.graph
        parts = [
            list(graph.names),
            [graph.producer.tolist(), graph.size.tolist()],
            [graph.consumer_offset.tolist(), graph.consumer.tolist()],
            list(self.colocate),
            [device.name for device in self.cluster.devices],
            self.microbatches,
        ]
        return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()


def build_problem(
    name: str, graph: ComputationGraph, cluster: Cluster, time: dict[str, Any], **given: Any
) -> Problem:
    """A problem whose unnamed attributes are plain: no state, all forward, nothing colocated.

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
    costs = {kind: np.asarray(seconds, dtype=np.float64) for kind, seconds in time.items()}
    return Problem(name, graph, cluster, costs, **(plain | given))
