"""`Rule`: the axes along which a call can be split, and the computation of a part of it.

A rule gives every axis of every tensor that a call reads or returns a label, or None if the axis is
not split. To split a label over devices is to give each device an equal part of every axis with
that label. What then follows is the same for every kind of call, as in einsum notation:

* a tensor that is read and lacks the label is replicated, and its gradient is a sum over devices;
* a result that lacks the label is a sum over devices.

A label ``out|3`` is one that cuts each of an axis's three groups (``rules.shapes``). An axis may
have several labels, any of which cuts it: ``0/rows|8`` are rows of 8 examples (tokens of each,
mostly). ``0`` cuts them by examples, ``rows`` cuts the rows of every example. A rule need not know:
what it says of axis 0 of such rows, a `RuleDraft` says of both.

A rule only has labels for which this holds. A call without a rule is replicated: every device
computes all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from gnnplace.torch_names import pytree
from gnnplace.tracing.calls import CallGraph, CallRef, LayerCall
from gnnplace.tracing.rules import (
    Axes,
    Exchanged,
    base_label,
    count_groups,
    first_label,
    list_labels,
)

WHOLE = "whole"
ROWS = "rows"
SPREAD = "spread"  # The label that cuts these examples too, beside a label of examples

Operands = tuple[Any, ...]
Keywords = dict[str, Any]


class Share(Protocol):
    """A device's part of a call, as its computation needs to know it."""

    @property
    def fullest(self) -> float:
        """Return the most rows of a part of experts over the mean's, on paper; at least 1."""
        ...

    def parts(self, label: str) -> int:
        """Return the number of parts that the label is split into; 1 if it is not."""
        ...

    def index(self, label: str) -> int:
        """Return which of the parts this device has."""
        ...

    def total(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """Return the sum over all parts of the label, on each device; differentiable."""
        ...

    def largest(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """Return the largest of all parts of the label, on each device; without a gradient."""
        ...

    def sent(
        self,
        rows: torch.Tensor,
        counts: Sequence[int],
        received: Sequence[int],
        label: str,
    ) -> torch.Tensor:
        """Return the rows that all parts of the label send here; differentiable.

        Args:
            rows: Rows that this device sends, those for the first part first.
            counts: Number of rows that go to each part.
            received: Number of rows that come from each part.
            label: The label.
        """
        ...


Runner = Callable[[LayerCall, Operands, Keywords, Share], Any]
"""Computes a part of a call from the parts of its arguments and the device's share."""


@dataclass(frozen=True)
class Rule:
    """The ways in which a call can be split.

    Attributes:
        kind: The kind in words: "linear", "attention", "elementwise", "shape", …
        extents: Equal parts that each label's axes can be cut into must divide this.
        reads: Labels of each tensor read.
        results: Labels of each tensor returned.
        flops: FLOP of the unsplit call, forward; 0 where only bytes matter.
        run: Computes a part; None: the function itself does, on the parts of its tensors.
        reason: Why it is not split, if it is not.
        exchanges: What all parts of a label exchange while they compute, see `Exchanged`.
        needs_run: Labels that all results have and whose parts the function itself does not make.
    """

    kind: str
    extents: Mapping[str, int]
    reads: tuple[Axes, ...]
    results: tuple[Axes, ...]
    flops: float = 0.0
    run: Runner | None = None
    reason: str = ""
    exchanges: Mapping[str, Exchanged] = field(default_factory=dict)
    needs_run: tuple[str, ...] = ()

    def is_plain(self, label: str) -> bool:
        """Return whether the function makes a part of parts without `run`, random numbers aside."""
        if label in self.exchanges or label in self.needs_run:
            return False
        return self.run is None or all(
            label in map(first_label, axes) for axes in self.results
        )

    def with_fewer_examples(self, label: str, parts: int) -> Rule:
        """Return the rule on one of several parts of the examples, which a label cuts."""
        if ROWS not in self.extents or parts == 1:
            return self

        def with_fewer_examples(axes: Axes) -> Axes:
            examples = count_rows(axes)
            if examples is None or first_label(axes[0]) != label:
                return axes
            groups = f"|{examples // parts}"
            return (axes[0].replace(f"|{examples}", groups), *axes[1:])  # type: ignore[union-attr]

        reads = tuple(map(with_fewer_examples, self.reads))
        results = tuple(map(with_fewer_examples, self.results))
        return replace(self, reads=reads, results=results)


@dataclass(frozen=True)
class RowShare:
    """A share whose rows are cut by examples and within examples, for a rule that knows of one cut.

    Attributes:
        share: the share of the device.
        label: the label of the rows.
    """

    share: Share
    label: str

    @property
    def fullest(self) -> float:
        """Return what the share itself says."""
        return self.share.fullest

    def parts(self, label: str) -> int:
        """Return the number of parts of rows, cut either way."""
        return self.share.parts(label) * (
            self.share.parts(ROWS) if label == self.label else 1
        )

    def index(self, label: str) -> int:
        """Return a number for the part that no other part has; neighbours may be far apart."""
        index = self.share.index(label)
        if label != self.label:
            return index
        return index * self.share.parts(ROWS) + self.share.index(ROWS)

    def total(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """Return the sum over all parts, cut either way."""
        for cut in (label, ROWS) if label == self.label else (label,):
            if self.share.parts(cut) > 1:
                tensor = self.share.total(tensor, cut)
        return tensor

    def largest(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """Return the largest of all parts, cut either way."""
        for cut in (label, ROWS) if label == self.label else (label,):
            if self.share.parts(cut) > 1:
                tensor = self.share.largest(tensor, cut)
        return tensor

    def sent(
        self,
        rows: torch.Tensor,
        counts: Sequence[int],
        received: Sequence[int],
        label: str,
    ) -> torch.Tensor:
        """Return the rows that all parts of another label send here."""
        return self.share.sent(rows, counts, received, label)


@dataclass(frozen=True)
class Case:
    """A call with the shapes of its tensors.

    Attributes:
        call: the call.
        shapes: shapes of the tensors that it reads.
        results: shapes of the tensors that it makes.
        rows: number of examples, by the tensors read whose first axis is rows of examples.
    """

    call: LayerCall
    shapes: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]
    rows: Mapping[int, int] = field(default_factory=dict)

    def reads(self, *labels: Axes) -> RuleDraft:
        """Return a rule being written, with the labels of the first tensors read."""
        draft = RuleDraft(self)
        for slot, axes in enumerate(labels):
            draft.read(slot, axes)
        return draft

    def slot(self, position: int, name: str) -> int | None:
        """Return the index among the tensors read that an argument has; None if it is no tensor."""
        if not isinstance(self.call.argument(position, name), CallRef):
            return None
        earlier: list[Any] = list(self.call.args[:position])
        if len(self.call.args) <= position:
            keys = list(self.call.kwargs)
            earlier += [self.call.kwargs[key] for key in keys[: keys.index(name)]]
        return sum(isinstance(leaf, CallRef) for leaf in pytree.tree_leaves(earlier))

    def shape(self, position: int, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor argument; None if there is none."""
        slot = self.slot(position, name)
        if slot is None:
            return None
        return self.shapes[slot]


@dataclass
class RuleDraft:
    """A rule being written: labels by tensor read, without labels by default."""

    case: Case
    extents: dict[str, int] = field(default_factory=dict)
    labels: dict[int, Axes] = field(default_factory=dict)

    def read(self, slot: int | None, axes: Axes) -> None:
        """Label the axes of a tensor read, whose sizes bound the parts; skip a slot of None."""
        if slot is not None:
            self.labels[slot] = axes
            self._bound(axes, self.case.shapes[slot])

    def _bound(self, axes: Axes, shape: tuple[int, ...]) -> None:
        """Bound the parts of each label by the sizes of its axes."""
        for entry, size in zip(axes, shape, strict=True):
            for label in list_labels(entry):
                base = base_label(label)
                self.extents[base] = math.gcd(
                    self.extents.get(base, 0), size // count_groups(label)
                )

    def rule(
        self,
        kind: str,
        *results: Axes,
        flops: float = 0.0,
        run: Runner | None = None,
        exchanges: Mapping[str, Exchanged] | None = None,
    ) -> Rule:
        """Return the finished rule.

        Args:
            kind: The kind in words.
            *results: Labels of each tensor returned.
            flops: FLOP of the unsplit call, forward.
            run: Computes a part; None: the function itself does.
            exchanges: What parts exchange, by label.
        """
        exchanged = dict(exchanges or {})
        label, examples = self._rows()
        if label is not None:
            # Rows of examples can be cut by examples or within each of them.
            for slot in self.labels:
                self.read(slot, _with_rows(self.labels[slot], label, examples))
            results = tuple(_with_rows(axes, label, examples) for axes in results)
            if run is None:
                run = None
            else:
                run = _make_row_runner(run, label)
            if label in exchanged:
                exchanged[ROWS] = exchanged[label]
        for axes, shape in zip(results, self.case.results, strict=True):
            self._bound(axes, shape)
        reads = tuple(
            self.labels.get(i, (None,) * len(shape))
            for i, shape in enumerate(self.case.shapes)
        )
        extents = {label: n for label, n in self.extents.items() if n > 1}
        return Rule(
            kind=kind,
            extents=extents,
            reads=tuple(_only(axes, extents) for axes in reads),
            results=tuple(_only(axes, extents) for axes in results),
            flops=flops,
            run=run,
            exchanges={
                label: item for label, item in exchanged.items() if label in extents
            },
        )

    def _rows(self) -> tuple[str | None, int]:
        """Return the label of an axis that is rows of examples, and the number of examples."""
        for slot, examples in self.case.rows.items():
            entry = self.labels.get(slot, (None,))[0]
            if entry is not None and "|" not in entry:
                return list_labels(entry)[0], examples
        return None, 1


def _with_rows(axes: Axes, label: str, examples: int) -> Axes:
    """Return labels of axes with that of rows beside the one that cuts the examples.

    Other labels of such an axis but `SPREAD` cut the rows of every example, too.
    """

    def add_rows(entry: str | None) -> str | None:
        first, *more_labels = list_labels(entry) or (None,)
        if first != label:
            return entry
        grouped = (
            x if x == SPREAD else f"{x}|{examples}" for x in (ROWS, *more_labels)
        )
        return "/".join([label, *grouped])

    return tuple(map(add_rows, axes))


def _make_row_runner(run: Runner, label: str) -> Runner:
    """Return a runner that sees both cuts of rows as one."""

    def on_rows(
        call: LayerCall, args: Operands, kwargs: Keywords, share: Share
    ) -> object:
        return run(call, args, kwargs, RowShare(share, label))

    return on_rows


def count_rows(axes: Axes) -> int | None:
    """Return the number of examples of which the first axis has rows; None if it has none."""
    row_labels = (
        x for x in list_labels(axes[0] if axes else None) if x.startswith(f"{ROWS}|")
    )
    return next(map(count_groups, row_labels), None)


def _only(axes: Axes, extents: Mapping[str, int]) -> Axes:
    """Return axes with those labels alone that can be cut."""
    return tuple(
        "/".join(x for x in list_labels(entry) if base_label(x) in extents) or None
        for entry in axes
    )


def make_unsplit_rule(case: Case, reason: str = "") -> Rule:
    """Return the rule of a call that every device computes unsplit."""
    return Rule(
        kind=WHOLE,
        extents={},
        reads=tuple((None,) * len(shape) for shape in case.shapes),
        results=tuple((None,) * len(shape) for shape in case.results),
        reason=reason,
    )


def make_case(graph: CallGraph, call: LayerCall, rows: Mapping[int, int]) -> Case:
    """Return a call of a graph with its shapes.

    Args:
        graph: the graph that has the call.
        call: the call.
        rows: number of examples, by the values whose first axis is rows of examples.
    """
    return Case(
        call=call,
        shapes=tuple(graph.values[i].shape for i in call.reads),
        results=tuple(graph.values[i].shape for i in call.results),
        rows={
            slot: rows[value] for slot, value in enumerate(call.reads) if value in rows
        },
    )


def number_axes(rank: int, *unlabelled: int) -> Axes:
    """Return a label "0", "1", … for each axis but the unlabelled ones."""
    if rank:
        skipped = {axis % rank for axis in unlabelled}
    else:
        skipped = set()
    return tuple(None if axis in skipped else str(axis) for axis in range(rank))


def local_shape(axes: Axes, shape: tuple[int, ...], share: Share) -> tuple[int, ...]:
    """Return the shape of a device's part of a tensor."""
    pairs = zip(axes, shape, strict=True)
    return tuple(
        size // math.prod(share.parts(base_label(x)) for x in list_labels(entry))
        for entry, size in pairs
    )


def get_local_part(tensor: torch.Tensor, axes: Axes, share: Share) -> torch.Tensor:
    """Return a device's part of an unsplit tensor."""
    for axis, entry in enumerate(axes):
        for label in list_labels(entry):
            base = base_label(label)
            groups = count_groups(label)
            parts = share.parts(base)
            index = share.index(base)
            if parts > 1:
                grouped = tensor.unflatten(axis, (groups, -1)).chunk(parts, axis + 1)
                tensor = grouped[index].flatten(axis, axis + 1)
    return tensor
