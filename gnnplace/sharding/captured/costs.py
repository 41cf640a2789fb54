"""Seconds and bytes of a captured model's configurations on a mesh.

As in PaSE (Elango, 2021, arXiv 2407.04001), with layouts that are known:

* compute: 3 F / parts FLOP for F forward FLOP (1 F where no gradient flows), and the bytes that an
  operation touches where the machine says how fast it reads.
* between layouts, one mesh dimension after the other: a sum becomes whole by an all-reduce of the
  bytes that are on a device then, a part of an axis by a reduce-scatter; parts of an axis are
  gathered, and become parts of another axis by an all-to-all; a part of what is there whole costs
  nothing. The gradient goes the way back. Seconds are those of ``costs.collectives``: of the
  cluster's fabric where it is known, else of a ring.
* gradients of parameters are all-reduced over the devices that split what they lack: once, however
  many operations read the parameter.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from gnnplace.costs import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    Exchange,
    compute_ring_seconds,
)
from gnnplace.errors import InputError
from gnnplace.sharding.captured.layout import (
    PARAMETER,
    PARTIAL,
    REPLICATED,
    Configuration,
    Layout,
    Mesh,
    Place,
    SplitGraph,
    SplitOp,
    SplitValue,
    count_layout_parts,
    count_parts,
    get_result_layout,
    pending_layouts,
    read_layout,
    settle_sums,
)

BACKWARD = 3.0  # The backward pass of a product is two products of its size.


@dataclass(frozen=True)
class MeshMachine:
    """One device and its link.

    Attributes:
        flops: FLOP per second that products reach.
        bandwidth: bytes per second of the link.
        latency: seconds of a collective of no bytes.
        reading: bytes per second that elementwise operations touch; infinite: they are free.
        overhead: seconds of an operation, forward and backward, that no split makes less.
        state: copies of a parameter that stay: itself, its gradient and Adam's two moments.
        exchange: what collectives take on a cluster whose fabric is known; else a ring's formula.
        bucketed: whether its collectives go together with others.
        joined: whether what changes along all dimensions alike is one collective.

    Raises:
        InputError: a speed that is not positive.
    """

    flops: float = 10e12
    bandwidth: float = 16e9
    latency: float = 0.0
    reading: float = float("inf")
    overhead: float = 0.0
    state: int = 4
    exchange: Exchange | None = None
    bucketed: bool = False
    joined: bool = False

    def __post_init__(self) -> None:
        for name in ("flops", "bandwidth", "reading"):
            if not getattr(self, name) > 0:
                raise InputError(
                    f"{name}: {getattr(self, name):g} is not a positive number"
                )

    def collective(
        self, op: str, devices: int, size: float, dims: tuple[int, ...] = ()
    ) -> float:
        """Return the seconds of a collective of ``size`` bytes, as ``costs.collectives`` counts
        them.

        It is of the devices along some dimensions of the mesh, which here are all alike.
        """
        if self.exchange is not None:
            seconds = self.exchange.bucketed if self.bucketed else self.exchange.seconds
            return float(seconds(op, np.array(float(devices)), np.array(size)))
        return compute_ring_seconds(op, devices, size, self.bandwidth, self.latency)


@dataclass(frozen=True)
class Moved:
    """Seconds of going from one layout to another.

    Attributes:
        reduction: the seconds of making sums.
        resharding: the seconds of everything else.
    """

    reduction: float = 0.0
    resharding: float = 0.0

    @property
    def total(self) -> float:
        """Return the seconds of computation and exchanges together."""
        return self.reduction + self.resharding

    def __add__(self, other: Moved) -> Moved:
        return Moved(
            self.reduction + other.reduction, self.resharding + other.resharding
        )


@dataclass(frozen=True)
class CostParts:
    """Seconds of one training step, and bytes on a device."""

    compute: float
    reduction: float
    gradient: float
    resharding: float
    memory: float

    @property
    def total(self) -> float:
        """Return the seconds of all terms, of which none overlaps."""
        return self.compute + self.reduction + self.gradient + self.resharding


@lru_cache(maxsize=1 << 18)
def move(
    size: float, before: Layout, after: Layout, mesh: Mesh, machine: MeshMachine
) -> Moved:
    """Return the seconds to bring a tensor of ``size`` bytes from one layout into another."""
    local = size / count_layout_parts(before, mesh)
    places = list(zip(before, after, mesh, range(len(mesh)), strict=True))
    for a, b, n, _ in places:  # what only gets smaller comes first
        if a == REPLICATED and b.cuts:
            local /= n
    reduction = resharding = 0.0
    # The same change along all dimensions is one collective of all devices.
    uniform = machine.joined and len({*zip(before, after, strict=True)}) == 1 < len(
        mesh
    )
    if uniform and before[0] != after[0] and min(mesh) > 1:
        return _price_equal_moves(
            a=before[0],
            b=after[0],
            local=local,
            mesh=mesh,
            machine=machine,
        )
    for a, b, n, dim in places:
        if a == PARTIAL and b.cuts and n > 1:
            reduction += machine.collective(REDUCE_SCATTER, n, local, (dim,))
            local /= n
        elif a == PARTIAL and b != PARTIAL and n > 1:
            reduction += machine.collective(ALL_REDUCE, n, local, (dim,))
    for a, b, n, dim in places:
        if a.cuts and b.cuts and a != b and n > 1:
            resharding += machine.collective(ALL_TO_ALL, n, local, (dim,))
    for a, b, n, dim in reversed(places):
        if a.cuts and not b.cuts and n > 1:
            local *= n
            resharding += machine.collective(ALL_GATHER, n, local, (dim,))
    return Moved(reduction, resharding)


def _price_equal_moves(
    a: Place, b: Place, local: float, mesh: Mesh, machine: MeshMachine
) -> Moved:
    """Price one change along all dimensions of a mesh; a shard of a replicated tensor is free."""
    count = math.prod(mesh)
    dims = tuple(range(len(mesh)))
    if a == PARTIAL:
        op = REDUCE_SCATTER if b.cuts else ALL_REDUCE
        return Moved(reduction=machine.collective(op, count, local, dims))
    if not a.cuts:
        return Moved()
    op, size = (ALL_TO_ALL, local) if b.cuts else (ALL_GATHER, local * count)
    return Moved(resharding=machine.collective(op, count, size, dims))


def price_handover(
    value: SplitValue,
    before: Layout,
    read: Layout,
    gradient: Layout,
    mesh: Mesh,
    machine: MeshMachine,
) -> Moved:
    """Price a value handed from its producer to a reader, and its gradient handed back."""
    forward = move(value.bytes, before, read, mesh, machine)
    if not value.gradient:
        return forward
    return forward + move(value.bytes, gradient, settle_sums(before), mesh, machine)


def compute(
    graph: SplitGraph,
    op: SplitOp,
    split: Configuration,
    mesh: Mesh,
    machine: MeshMachine,
    seconds: float | None = None,
) -> float:
    """Return the seconds of the forward and backward pass of an operation's part.

    Args:
        graph: the operations and the values between them.
        op: the operation that is priced.
        split: the label that each dimension of the mesh splits.
        mesh: sizes of the mesh's dimensions.
        machine: speeds of a device and of its link.
        seconds: the seconds of the whole operation, where they were measured.
    """
    parts = math.prod(count_parts(split, mesh).values())
    if seconds is not None:
        fixed = min(seconds, machine.overhead)
        return fixed + (seconds - fixed) / parts
    if op.shape.moves:
        return 0.0
    passes = BACKWARD if any(graph.values[v].gradient for v in op.results) else 1.0
    touched = sum(
        graph.values[v].bytes / count_layout_parts(read_layout(axes, split), mesh)
        for v, axes in zip(op.reads, op.shape.reads, strict=True)
    )
    work = op.shape.flops / parts / machine.flops
    results = compute_result_bytes(graph, op, split, mesh)
    return machine.overhead + passes * (work + (touched + results) / machine.reading)


def exchange(
    graph: SplitGraph,
    op: SplitOp,
    split: Configuration,
    mesh: Mesh,
    machine: MeshMachine,
) -> float:
    """Return the seconds of what an operation's parts exchange, forward and backward; see
    `Exchanged`.
    """
    parts = count_parts(split, mesh)
    seconds = 0.0
    for label, (elements, sent) in op.shape.exchanges:
        n = parts.get(label, 1)
        size = elements * graph.values[op.reads[0]].element
        dims = tuple(
            dim for dim, split_label in enumerate(split) if split_label == label
        )
        if n > 1 and sent:
            seconds += 4.0 * machine.collective(ALL_TO_ALL, n, size / n, dims)
        elif n > 1:
            seconds += 2.0 * machine.collective(ALL_REDUCE, n, n * size, dims)
    return seconds


def compute_result_bytes(
    graph: SplitGraph, op: SplitOp, split: Configuration, mesh: Mesh
) -> float:
    """Return the bytes of an operation's results on a device; kept for the backward pass."""
    if op.shape.moves:
        return 0.0
    pairs = zip(op.results, op.shape.results, strict=True)
    return sum(
        graph.values[v].bytes / count_layout_parts(get_result_layout(axes, split), mesh)
        for v, axes in pairs
    )


def parameter_gradient(
    value: SplitValue, pending: Layout, mesh: Mesh, machine: MeshMachine
) -> float:
    """Return the seconds to add up a parameter's gradient, once, as the passes have left it.

    Args:
        value: the parameter.
        pending: the layout of its gradient, in which sums are not made yet.
        mesh: sizes of the mesh's dimensions.
        machine: speeds of a device and of its link.
    """
    if value.source != PARAMETER or not value.gradient:
        return 0.0
    # All gradients go in a few collectives.
    together = replace(machine, latency=0.0, bucketed=True)
    return move(value.bytes, pending, settle_sums(pending), mesh, together).total


def pending_layout(home: Layout, gradients: Collection[Layout], mesh: Mesh) -> Layout:
    """Return the layout in which the passes leave a parameter's gradient, to be summed once.

    Of those possible it is the one that moves the least bytes. Where several do, more is summed
    once, together with other parameters.

    Args:
        home: layout of the parameter.
        gradients: the different layouts of the gradients that its readers leave.
        mesh: sizes of the mesh's dimensions.
    """

    def moved(pending: Layout) -> float:
        ways = [(gradient, pending) for gradient in gradients] + [(pending, home)]
        return sum(
            move(1.0, a, b, mesh, MeshMachine(bandwidth=1.0)).total for a, b in ways
        )

    layouts = pending_layouts(home, gradients)
    return min(
        layouts, key=lambda pending: (round(moved(pending), 9), -pending.count(PARTIAL))
    )


def parameter_bytes(
    value: SplitValue, home: Layout, mesh: Mesh, machine: MeshMachine
) -> float:
    """Return the bytes of a parameter with its gradient and optimizer state on a device."""
    copies = machine.state if value.gradient else 1
    return copies * value.bytes / count_layout_parts(home, mesh)
