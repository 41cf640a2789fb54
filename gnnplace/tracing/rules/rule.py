"""`Rule`: along which dimensions a call can be split, and how a part of it is computed.

A rule gives every axis of every tensor that a call reads or returns a label, or None where it stays
whole. To split a label over devices is to give each device an equal part of every axis with that
label. What then follows is the same for every kind of call, as in einsum notation:

* a tensor that is read and lacks the label is there whole, and its gradient is a sum over devices;
* a result that lacks the label is a sum over devices.

A label ``out|3`` is one that cuts each of an axis's three groups (``rules.shapes``). An axis may
have several labels, any of which cuts it: ``0/rows|8`` are rows of 8 examples (tokens of each,
mostly). ``0`` cuts them by examples, ``rows`` cuts the rows of every example. A rule need not know:
what it says of axis 0 of such rows, a `RuleDraft` says of both.

A rule only has labels for which this holds. A call that no rule knows stays whole: every device
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
from gnnplace.tracing.rules import Axes, Exchanged, base_label, first_label, groups_of, labels_of

WHOLE, ROWS = "whole", "rows"
SPREAD = "spread"  # beside a label of examples it cuts these, too


class Share(Protocol):
    """What a device's part of a call needs to know while it is computed."""

    @property
    def fullest(self) -> float:
        """How many times the mean's rows the fullest part of experts has, on paper; at least 1."""
        ...

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

    def sent(
        self, rows: torch.Tensor, counts: Sequence[int], received: Sequence[int], label: str
    ) -> torch.Tensor:
        """Rows that all parts of the label send here; differentiable.

        Args:
            rows: what this device sends, those for the first part first.
            counts: how many rows go to each part.
            received: how many come from each.
            label: the label.
        """
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
        exchanges: What all parts of a label exchange while they compute, see `Exchanged`.
        own: Labels that all results have and whose parts the function itself does not make.
    """

    kind: str
    extents: Mapping[str, int]
    reads: tuple[Axes, ...]
    results: tuple[Axes, ...]
    flops: float = 0.0
    run: Runner | None = None
    reason: str = ""
    exchanges: Mapping[str, Exchanged] = field(default_factory=dict)
    own: tuple[str, ...] = ()

    def is_plain(self, label: str) -> bool:
        """Whether the function makes a part of parts, but for random numbers; `run` aside."""
        made = all(label in map(first_label, axes) for axes in self.results)
        return label not in (*self.exchanges, *self.own) and (self.run is None or made)

    def of_fewer(self, label: str, parts: int) -> Rule:
        """The rule on one of several parts of the examples, which a label cuts."""
        if ROWS not in self.extents or parts == 1:
            return self

        def fewer(axes: Axes) -> Axes:
            examples = rows_in(axes)
            if examples is None or first_label(axes[0]) != label:
                return axes
            groups = f"|{examples // parts}"
            return (axes[0].replace(f"|{examples}", groups), *axes[1:])  # type: ignore[union-attr]

        reads, results = tuple(map(fewer, self.reads)), tuple(map(fewer, self.results))
        return replace(self, reads=reads, results=results)


@dataclass(frozen=True)
class RowShare:
    """A share of which rows are cut by examples and within examples, to a rule that knows of one.

    Attributes:
        share: the share of the device.
        label: the label of the rows.
    """

    share: Share
    label: str

    @property
    def fullest(self) -> float:
        """Of the share itself."""
        return self.share.fullest

    def parts(self, label: str) -> int:
        """Parts of rows, cut either way."""
        return self.share.parts(label) * (self.share.parts(ROWS) if label == self.label else 1)

    def index(self, label: str) -> int:
        """Which of them, by a number that no other part has; they are no neighbours."""
        within = label == self.label
        number = self.share.index(label)
        return number * self.share.parts(ROWS) + self.share.index(ROWS) if within else number

    def total(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """The sum over all of them."""
        for one in (label, ROWS) if label == self.label else (label,):
            tensor = self.share.total(tensor, one) if self.share.parts(one) > 1 else tensor
        return tensor

    def largest(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """The largest of all of them."""
        for one in (label, ROWS) if label == self.label else (label,):
            tensor = self.share.largest(tensor, one) if self.share.parts(one) > 1 else tensor
        return tensor

    def sent(
        self, rows: torch.Tensor, counts: Sequence[int], received: Sequence[int], label: str
    ) -> torch.Tensor:
        """Rows that all parts of another label send here."""
        return self.share.sent(rows, counts, received, label)


@dataclass(frozen=True)
class Case:
    """A call with the shapes of its tensors.

    Attributes:
        call: the call.
        shapes: of the tensors that it reads.
        results: of those that it makes.
        rows: of tensors read whose first axis is rows of examples, the number of examples.
    """

    call: LayerCall
    shapes: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]
    rows: Mapping[int, int] = field(default_factory=dict)

    def reads(self, *axes: Axes) -> RuleDraft:
        """A rule being written, with the labels of the first tensors read."""
        draft = RuleDraft(self)
        for slot, own in enumerate(axes):
            draft.read(slot, own)
        return draft

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
        if slot is not None:
            self.labels[slot] = axes
            self._bound(axes, self.case.shapes[slot])

    def _bound(self, axes: Axes, shape: tuple[int, ...]) -> None:
        for entry, size in zip(axes, shape, strict=True):
            for label in labels_of(entry):
                base = base_label(label)
                self.extents[base] = math.gcd(self.extents.get(base, 0), size // groups_of(label))

    def rule(
        self,
        kind: str,
        *results: Axes,
        flops: float = 0.0,
        run: Runner | None = None,
        exchanges: Mapping[str, Exchanged] | None = None,
    ) -> Rule:
        """The finished rule."""
        sent = dict(exchanges or {})
        label, examples = self._rows()
        if label is not None:
            for slot in self.labels:
                self.read(slot, _with_rows(self.labels[slot], label, examples))
            results = tuple(_with_rows(axes, label, examples) for axes in results)
            run = None if run is None else _on_rows(run, label)
            sent |= {ROWS: sent[label]} if label in sent else {}
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
            exchanges={label: found for label, found in sent.items() if label in extents},
        )

    def _rows(self) -> tuple[str | None, int]:
        """The label of what is rows of examples, and the number of examples."""
        for slot, examples in self.case.rows.items():
            entry = self.labels.get(slot, (None,))[0]
            if entry is not None and "|" not in entry:
                return labels_of(entry)[0], examples
        return None, 1


def _with_rows(axes: Axes, label: str, examples: int) -> Axes:
    """Labels of axes with that of rows beside the one that cuts the examples.

    Others beside it but `SPREAD` cut the rows of every example, too.
    """

    def beside(entry: str | None) -> str | None:
        first, *rest = labels_of(entry) or (None,)
        if first != label:
            return entry
        grouped = (one if one == SPREAD else f"{one}|{examples}" for one in (ROWS, *rest))
        return "/".join([label, *grouped])

    return tuple(map(beside, axes))


def _on_rows(run: Runner, label: str) -> Runner:
    def on_rows(call: LayerCall, args: Any, kwargs: Any, share: Share) -> Any:
        return run(call, args, kwargs, RowShare(share, label))

    return on_rows


def rows_in(axes: Axes) -> int | None:
    """Of how many examples the first axis is rows; None: it is none."""
    own = (x for x in labels_of(axes[0] if axes else None) if x.startswith(f"{ROWS}|"))
    return next(map(groups_of, own), None)


def _only(axes: Axes, extents: Mapping[str, int]) -> Axes:
    return tuple(
        "/".join(x for x in labels_of(entry) if base_label(x) in extents) or None for entry in axes
    )


def whole(case: Case, reason: str = "") -> Rule:
    """Every device computes all of it."""
    return Rule(
        WHOLE,
        {},
        tuple((None,) * len(shape) for shape in case.shapes),
        tuple((None,) * len(shape) for shape in case.results),
        reason=reason,
    )


def case_of(graph: CallGraph, call: LayerCall, rows: Mapping[int, int]) -> Case:
    """A call of a graph with its shapes.

    Args:
        graph: the graph that has the call.
        call: the call.
        rows: of values whose first axis is rows of examples, the number of examples.
    """
    return Case(
        call,
        tuple(graph.values[i].shape for i in call.reads),
        tuple(graph.values[i].shape for i in call.results),
        {slot: rows[value] for slot, value in enumerate(call.reads) if value in rows},
    )


def numbered(rank: int, *unlabelled: int) -> Axes:
    """A label "0", "1", … for each axis but those given."""
    left = {axis % rank for axis in unlabelled} if rank else set()
    return tuple(None if axis in left else str(axis) for axis in range(rank))


def local_shape(axes: Axes, shape: tuple[int, ...], share: Share) -> tuple[int, ...]:
    """Shape of a device's part of a tensor."""
    pairs = zip(axes, shape, strict=True)
    return tuple(
        size // math.prod(share.parts(base_label(x)) for x in labels_of(entry))
        for entry, size in pairs
    )


def own_part(tensor: torch.Tensor, axes: Axes, share: Share) -> torch.Tensor:
    """A device's part of a whole tensor."""
    for axis, entry in enumerate(axes):
        for label in labels_of(entry):
            base, groups = base_label(label), groups_of(label)
            parts, index = share.parts(base), share.index(base)
            if parts > 1:
                grouped = tensor.unflatten(axis, (groups, -1)).chunk(parts, axis + 1)
                tensor = grouped[index].flatten(axis, axis + 1)
    return tensor
