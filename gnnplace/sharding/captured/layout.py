"""Layers of a captured model on a mesh of devices: what can be split, and into which layouts.

A configuration of an operation gives each dimension of the mesh a label of the operation, or none.
It determines which device holds which shard, so that the exchanges between two layers are known
exactly. Every configuration can be expressed by DTensor's placements.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from gnnplace.errors import InputError
from gnnplace.tracing import Axes, Exchanged, base_label, count_groups, list_labels

Mesh = tuple[int, ...]
Configuration = tuple[str | None, ...]


class Place(NamedTuple):
    """The effect of one dimension of the mesh on a tensor.

    Attributes:
        axis: The axis that it cuts. Negative for ``REPLICATED`` and ``PARTIAL``.
        groups: the groups of the axis, each of which is cut by itself; 0 where the axis is cut as a
            whole.
    """

    axis: int
    groups: int = 0

    @property
    def cuts(self) -> bool:
        """Return whether devices hold different parts."""
        return self.axis >= 0


# Every device has all of it; every device has a summand.
REPLICATED, PARTIAL = (Place(-1), Place(-2))
Layout = tuple[Place, ...]  # for each dimension of the mesh
PARAMETER = "parameter"
CALL = "call"


@dataclass(frozen=True)
class SplitValue:
    """A tensor between operations.

    Attributes:
        shape: the shape of the whole.
        element: bytes of an element.
        gradient: whether a gradient flows into it.
        source: ``PARAMETER``, ``CALL``, or anything else for what is there from the start.
        name: the name of a parameter.
    """

    shape: tuple[int, ...]
    element: int
    gradient: bool
    source: str
    name: str = ""

    @cached_property
    def bytes(self) -> float:
        """Return the bytes of the whole tensor."""
        return float(math.prod(self.shape) * self.element)


@dataclass(frozen=True)
class Shape:
    """The properties that decide an operation's costs. Equal ones share tables.

    A label ``out|3`` means that the axis has three groups, each of which ``out`` cuts: such as
    queries, keys and values side by side, of which each device gets the same heads. An axis may
    have several labels, of which one configuration cuts one: ``0/rows|8`` are rows of 8 examples,
    cut as a whole (examples) or within each example.

    Attributes:
        extents: labels, and what the number of parts must divide.
        reads: labels of each tensor read.
        results: labels of each tensor made.
        flops: the flops of the forward pass.
        moves: Whether it only moves axes, which takes no time.
        exchanges: labels whose parts exchange something while they compute.
    """

    extents: tuple[tuple[str, int], ...]
    reads: tuple[Axes, ...]
    results: tuple[Axes, ...]
    flops: float
    moves: bool = False
    exchanges: tuple[tuple[str, Exchanged], ...] = ()


@dataclass(frozen=True)
class SplitOp:
    """An operation.

    Attributes:
        name: its name, which no other operation has.
        kind: what people call it, such as linear.
        shape: how it can be split.
        reads: numbers of the values that it reads.
        results: numbers of the values that it makes.
        batch: the label that stands for examples, if any.
        names: what people call its labels.
        reason: why it cannot be split, if so.
    """

    name: str
    kind: str
    shape: Shape
    reads: tuple[int, ...]
    results: tuple[int, ...]
    batch: str | None = None
    names: tuple[tuple[str, str], ...] = ()
    reason: str = ""

    def words(self, configuration: Configuration, mesh: Mesh) -> str:
        """Describe a configuration, such as ``heads over 4, batch over 2``; the largest split
        first.
        """
        parts = count_parts(configuration, mesh)
        called = dict(self.names)
        by_size = [(-n, called.get(label, label)) for label, n in parts.items()]
        cut = sorted(by_size)
        return (
            ", ".join(f"{name} over {-n}" for n, name in cut) or "whole on every device"
        )


@dataclass(frozen=True)
class SplitGraph:
    """Operations in the order they run, and the values between them."""

    name: str
    ops: tuple[SplitOp, ...]
    values: tuple[SplitValue, ...]


def default_mesh(devices: int) -> Mesh:
    """Return two dimensions as near to a square as can be, the larger first; one for a prime.

    Raises:
        InputError: the number of devices is below 1.
    """
    if devices < 1:
        raise InputError(f"devices {devices}: must be at least 1")
    up_to_root = range(1, math.isqrt(devices) + 1)
    small = max(k for k in up_to_root if devices % k == 0)
    return (devices // small, small) if small > 1 else (devices,)


@lru_cache(maxsize=4096)
def mesh_configurations(shape: Shape, mesh: Mesh) -> tuple[Configuration, ...]:
    """Return all assignments of labels to the mesh's dimensions that make equal parts. The first
    splits nothing.
    """
    extents = dict(shape.extents)
    axes = itertools.chain(*shape.reads, *shape.results)
    grouped = frozenset(
        entry for entry in axes if entry is not None and {"|", "/"} & {*entry}
    )
    labels = [None, *extents]
    sending = frozenset(label for label, _ in shape.exchanges)
    return tuple(
        c
        for c in itertools.product(labels, repeat=len(mesh))
        if all(extents[label] % n == 0 for label, n in count_parts(c, mesh).items())
        and not _cut_twice(c, mesh, grouped, sending)
    )


def _cut_twice(
    configuration: Configuration,
    mesh: Mesh,
    entries: frozenset[str],
    sending: frozenset[str],
) -> bool:
    """Return whether two mesh dimensions cut an axis with groups, or by labels that exclude each
    other.

    DTensor gets groups wrong (torch 2.13); rows are sent to other parts along one dimension.
    """
    cut = Counter(label for label, n in zip(configuration, mesh, strict=True) if n > 1)
    for entry in entries:
        cut_labels = [base_label(x) for x in list_labels(entry) if cut[base_label(x)]]
        alone = (
            len(cut_labels) == 1 and "|" not in entry and cut_labels[0] not in sending
        )
        if sum(cut[label] for label in cut_labels) > 1 and not alone:
            return True
    return False


def count_parts(configuration: Configuration, mesh: Mesh) -> dict[str, int]:
    """Return the number of parts of each label that is split."""
    parts: Counter[str] = Counter()
    for label, size in zip(configuration, mesh, strict=True):
        if label is not None and size > 1:
            parts[label] = max(1, parts[label]) * size
    return dict(parts)


@lru_cache(maxsize=1 << 16)
def get_result_layout(axes: Axes, configuration: Configuration) -> Layout:
    """Return the layout of a result: a sum over the devices that split a label it lacks."""
    return tuple(_axis(axes, label, PARTIAL) for label in configuration)


gradient_layout = get_result_layout
"""Layout of the gradient that a read leaves behind: it is made as results are."""


@lru_cache(maxsize=1 << 16)
def read_layout(axes: Axes, configuration: Configuration) -> Layout:
    """Return the layout in which a tensor is read."""
    return tuple(_axis(axes, label, REPLICATED) for label in configuration)


def is_gathered(before: Layout, after: Layout, mesh: Mesh) -> bool:
    """Return whether a device has more of a tensor in the layout where it is read than where it is
    made.
    """
    return PARTIAL not in before and count_layout_parts(
        before, mesh
    ) > count_layout_parts(after, mesh)


def _axis(axes: Axes, label: str | None, missing: Place) -> Place:
    if label is None:
        return REPLICATED
    for axis, entry in enumerate(axes):
        for label_in_axis in list_labels(entry):
            if base_label(label_in_axis) == label:
                groups = count_groups(label_in_axis)
                return Place(axis, groups if groups > 1 else 0)
    return missing


def settle_sums(layout: Layout) -> Layout:
    """Return a layout with its sums made: the gradient of a tensor in this layout must be in it."""
    return tuple(REPLICATED if place == PARTIAL else place for place in layout)


def pending_layouts(home: Layout, gradients: Collection[Layout]) -> list[Layout]:
    """Return the layouts in which a parameter's gradient may wait until it is summed once.

    They are sums over any of the mesh dimensions along which the parameter is whole and a reader
    leaves a sum; along the others as the parameter is.

    Args:
        home: layout of the parameter.
        gradients: layouts of the gradients that its readers leave.
    """
    choices = [
        (place, PARTIAL)
        if place == REPLICATED and any(g[dim] == PARTIAL for g in gradients)
        else (place,)
        for dim, place in enumerate(home)
    ]
    return list(itertools.product(*choices))


def count_layout_parts(layout: Layout, mesh: Mesh) -> int:
    """Return the number of parts that a tensor in a layout is cut into."""
    return math.prod(n for place, n in zip(layout, mesh, strict=True) if place.cuts)


def uses(graph: SplitGraph) -> dict[int, list[tuple[int, int]]]:
    """Return, for each value, the operations that read it, and which of their reads it is."""
    readers: dict[int, list[tuple[int, int]]] = {}
    for i, op in enumerate(graph.ops):
        for slot, value in enumerate(op.reads):
            readers.setdefault(value, []).append((i, slot))
    return readers
