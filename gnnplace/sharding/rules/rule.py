"""`Rule`: along which dimensions a call can be split, and how a part of it is computed.

A rule gives every axis of every tensor that a call reads or returns a label, or None where it stays
whole. To split a label over devices is to give each device an equal part of every axis with that
label. What then follows is the same for every kind of call, as in einsum notation:

* a tensor that is read and lacks the label is there whole, and its gradient is a sum over devices;
* a result that lacks the label is a sum over devices.

A label ``out|3`` is one that cuts each of an axis's three groups (``layer_groups.py``).

A rule only has labels for which this holds. A call that no rule knows stays whole: every device
computes all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from gnnplace.sharding.captured.calls import CallGraph, CallRef, LayerCall
from gnnplace.sharding.captured.calls import fill as fill
from gnnplace.sharding.captured.layout import base_label

Axes = tuple[str | None, ...]
WHOLE = "whole"


class Share(Protocol):
    """What a device's part of a call needs to know while it is computed."""

    def parts(self, label: str) -> int:
        """Parts that the label is split into; 1 if it is not."""
        ...

    def index(self, label: str) -> int:
        """Which of the parts this device has."""
        ...

    def total(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """The sum over all parts of the label, on each device; differentiable."""
        ...

    def largest(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """The largest of all parts of the label, on each device; without a gradient."""
        ...


Runner = Callable[[LayerCall, tuple[Any, ...], dict[str, Any], Share], Any]


@dataclass(frozen=True)
class Rule:
    """How a call can be split.

    Attributes:
        kind: For people: "linear", "attention", "elementwise", "shape", …
        extents: Equal parts that each label's axes can be cut into must divide this.
        reads: Labels of each tensor read.
        results: Labels of each tensor returned.
        flops: FLOP of the whole call, forward; 0 where only bytes matter.
        run: Computes a part; None: the function itself does, on the parts of its tensors.
        reason: Why it stays whole, if it does.
        exchanges: Elements for each part that all parts of a label exchange while they compute.
    """

    kind: str
    extents: Mapping[str, int]
    reads: tuple[Axes, ...]
    results: tuple[Axes, ...]
    flops: float = 0.0
    run: Runner | None = None
    reason: str = ""
    exchanges: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A call with the shapes of its tensors."""

    call: LayerCall
    shapes: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]

    def slot(self, position: int, name: str) -> int | None:
        """Which of the tensors read this argument is; None if it is none."""
        if not isinstance(self.call.argument(position, name), CallRef):
            return None
        before: list[Any] = list(self.call.args[:position])
        if len(self.call.args) <= position:
            keys = list(self.call.kwargs)
            before += [self.call.kwargs[key] for key in keys[: keys.index(name)]]
        return sum(isinstance(leaf, CallRef) for leaf in pytree.tree_leaves(before))

    def shape(self, position: int, name: str) -> tuple[int, ...] | None:
        """Shape of a tensor argument; None if there is none."""
        slot = self.slot(position, name)
        return None if slot is None else self.shapes[slot]


@dataclass
class RuleDraft:
    """A rule being written: labels by tensor read, whole by default."""

    case: Case
    extents: dict[str, int] = field(default_factory=dict)
    labels: dict[int, Axes] = field(default_factory=dict)

    def read(self, slot: int | None, axes: Axes) -> None:
        """Labels the axes of a tensor read; its sizes bound the parts."""
        if slot is None:
            return
        self.labels[slot] = axes
        self._bound(axes, self.case.shapes[slot])

    def _bound(self, axes: Axes, shape: tuple[int, ...]) -> None:
        for label, size in zip(axes, shape, strict=True):
            if label is not None:
                base, groups = base_label(label), int(label.partition("|")[2] or 1)
                self.extents[base] = math.gcd(self.extents.get(base, 0), size // groups)

    def rule(
        self, kind: str, *results: Axes, flops: float = 0.0, run: Runner | None = None
    ) -> Rule:
        """The finished rule."""
        for axes, shape in zip(results, self.case.results, strict=True):
            self._bound(axes, shape)
        reads = tuple(
            self.labels.get(i, (None,) * len(shape)) for i, shape in enumerate(self.case.shapes)
        )
        extents = {label: n for label, n in self.extents.items() if n > 1}
        return Rule(
            kind,
            extents,
            tuple(_only(axes, extents) for axes in reads),
            tuple(_only(axes, extents) for axes in results),
            flops,
            run,
        )


def _only(axes: Axes, extents: Mapping[str, int]) -> Axes:
    return tuple(x if x is not None and base_label(x) in extents else None for x in axes)


def whole(case: Case, reason: str = "") -> Rule:
    """Every device computes all of it."""
    return Rule(
        WHOLE,
        {},
        tuple((None,) * len(shape) for shape in case.shapes),
        tuple((None,) * len(shape) for shape in case.results),
        reason=reason,
    )


def case_of(graph: CallGraph, call: LayerCall) -> Case:
    """A call of a graph with its shapes."""
    return Case(
        call,
        tuple(graph.values[i].shape for i in call.reads),
        tuple(graph.values[i].shape for i in call.results),
    )


def numbered(rank: int, *unlabelled: int) -> Axes:
    """A label "0", "1", … for each axis but those given."""
    left = {axis % rank for axis in unlabelled} if rank else set()
    return tuple(None if axis in left else str(axis) for axis in range(rank))


def local_shape(axes: Axes, shape: tuple[int, ...], share: Share) -> tuple[int, ...]:
    """Shape of a device's part of a tensor."""
    pairs = zip(axes, shape, strict=True)
    return tuple(
        size if label is None else size // share.parts(base_label(label)) for label, size in pairs
    )
