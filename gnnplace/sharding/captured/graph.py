"""A captured model's calls as operations that can be split, with names that people understand.

``captured_network`` makes layers of them, for the strategies that need not be executable. Calls
that only move axes are left out: a layer reads what they read, along the axes that lead there. So
are calls that no gradient flows through, such as those that make masks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gnnplace.sharding.captured.layout import (
    CALL,
    PARAMETER,
    Shape,
    SplitGraph,
    SplitOp,
    SplitValue,
)
from gnnplace.sharding.layers import Dimension, Layer, Network, Operation
from gnnplace.tracing import (
    INPUT,
    ROWS,
    SHAPE,
    Axes,
    CallGraph,
    Rule,
    base_label,
    first_label,
    labels_of,
)

DATA = "data"
"""Kind of calls that no gradient flows through, such as those that make masks."""
RANKS = {  # what axes beyond the batch are mostly called, by rank
    2: ("batch", "features"),
    3: ("batch", "sequence", "features"),
    4: ("batch", "heads", "sequence", "features"),
}
IMAGES = ("batch", "channels", "height", "width")
BATCH = "batch"


def split_graph(graph: CallGraph, rules: Sequence[Rule]) -> SplitGraph:
    """Return the operations of all calls, in order."""
    values = tuple(
        SplitValue(
            shape=v.shape,
            element=v.dtype.itemsize,
            gradient=v.gradient,
            source=v.source,
            name=v.name,
        )
        for v in graph.values
    )
    batch = _Batch(graph, rules)
    heads = _Heads(graph, rules).names
    ops = []
    for i, (call, rule) in enumerate(zip(graph.calls, rules, strict=True)):
        label = batch.label(i)
        names = _names(rule, label, heads.get(i, {}))
        shape = Shape(
            extents=tuple(rule.extents.items()),
            reads=rule.reads,
            results=rule.results,
            flops=rule.flops,
            moves=rule.kind == SHAPE,
            exchanges=tuple(rule.exchanges.items()),
        )
        learns = any(graph.values[value].gradient for value in call.results)
        op = SplitOp(
            name=call.name,
            kind=rule.kind if learns else DATA,
            shape=shape,
            reads=call.reads,
            results=call.results,
            batch=label,
            names=names,
            reason=rule.reason if learns else "",
        )
        ops.append(op)
    return SplitGraph(graph.name, tuple(ops), values)


class _Batch:
    """The batch axis of each value, followed from the first axis of the inputs through the calls.

    Attributes:
        axis: which axis has the examples, by value; values without examples are absent.
        labels: the label that stands for examples in each call, None without one.
    """

    def __init__(self, graph: CallGraph, rules: Sequence[Rule]) -> None:
        self.axis: dict[int, int] = {}
        self.labels: list[str | None] = []

        # Inputs as long as the first one have one row an example.
        inputs = [
            (i, v) for i, v in enumerate(graph.values) if v.source == INPUT and v.shape
        ]
        for index, value in inputs:
            if value.shape[0] == inputs[0][1].shape[0]:
                self.axis[index] = 0

        for call, rule in zip(graph.calls, rules, strict=True):
            label = self._batch_label(call.reads, rule.reads)
            self.labels.append(label)
            for result, axes in zip(call.results, rule.results, strict=True):
                axis_labels = [first_label(entry) for entry in axes]
                if label is not None and label in axis_labels:
                    self.axis[result] = axis_labels.index(label)

    def _batch_label(
        self, reads: Sequence[int], axes_of_reads: Sequence[Axes]
    ) -> str | None:
        """Return the label of the batch axis of the first tensor read that has one."""
        for value, axes in zip(reads, axes_of_reads, strict=True):
            axis = self.axis.get(value)
            if axis is not None and axis < len(axes):
                label = first_label(axes[axis])
                if label is not None:
                    return label
        return None

    def label(self, call: int) -> str | None:
        return self.labels[call]


def _names(
    rule: Rule, batch: str | None, heads: dict[str, str]
) -> tuple[tuple[str, str], ...]:
    """Return what people call each label of a call, sorted by label.

    Labels that are decimal numbers stand for axes; they are named by the rank of the largest
    result.

    Args:
        rule: How the call can be split.
        batch: The label that stands for examples, if any.
        heads: Names of the labels that stand for heads of attention.
    """
    axes = max((*rule.results, *rule.reads[:1]), key=len, default=())
    is_image = rule.kind in ("convolution", "pool") and len(axes) == len(IMAGES)
    names_by_axis = IMAGES if is_image else RANKS.get(len(axes), ())
    names = {label: heads.get(label, label) for label in rule.extents}
    for axis, label in enumerate(axes):
        if label is not None and label.isdecimal() and axis < len(names_by_axis):
            names[label] = names_by_axis[axis]

    # Only the label that examples follow is called the batch.
    if batch is not None:
        for label, name in names.items():
            if name == BATCH:
                names[label] = f"axis {label}"
        names[batch] = BATCH
    return tuple(sorted(names.items()))


HEADS = "heads"


class _Heads:
    """Follows the heads of attention to the products that make and read them."""

    def __init__(self, graph: CallGraph, rules: Sequence[Rule]) -> None:
        self.graph = graph
        self.rules = rules
        self.producer = {
            v: (i, k)
            for i, call in enumerate(graph.calls)
            for k, v in enumerate(call.results)
        }
        self.readers: dict[int, list[tuple[int, int]]] = {}
        for i, call in enumerate(graph.calls):
            for slot, value in enumerate(call.reads):
                self.readers.setdefault(value, []).append((i, slot))
        self.names: dict[int, dict[str, str]] = {}
        for i, rule in enumerate(rules):
            if rule.kind == "attention" and HEADS in rule.extents:
                self._attention(i)

    def _attention(self, index: int) -> None:
        call = self.graph.calls[index]
        rule = self.rules[index]
        self.names.setdefault(index, {})[HEADS] = HEADS
        for value, axes in list(zip(call.reads, rule.reads, strict=True))[:3]:
            if HEADS in axes:
                self._backwards(value, axes.index(HEADS))
        if HEADS in rule.results[0]:
            self._forwards(call.results[0], rule.results[0].index(HEADS))

    def _named(self, index: int, axes: Axes, axis: int) -> str | None:
        """Name the first label of an axis after the heads; return it, or None if the axis
        has none.
        """
        label = _first(axes[axis])
        if label:
            self.names.setdefault(index, {})[label] = HEADS
        return label or None

    def _backwards(self, value: int, axis: int) -> None:
        """Name the heads in the calls that produce a value, up to the product that makes them."""
        while value in self.producer:
            i, slot = self.producer[value]
            label = self._named(i, self.rules[i].results[slot], axis)
            back = (
                _axis_of(self.rules[i].reads[0], label) if self.rules[i].reads else None
            )
            if back is None or self.rules[i].kind not in (SHAPE, "elementwise"):
                return
            value = self.graph.calls[i].reads[0]
            axis = back

    def _forwards(self, value: int, axis: int) -> None:
        """Name the heads in the calls that read a value, up to the product that takes them in."""
        while len(self.readers.get(value, ())) == 1:
            i, slot = self.readers[value][0]
            label = self._named(i, self.rules[i].reads[slot], axis)
            on = _axis_of(self.rules[i].results[0], label)
            if on is None or self.rules[i].kind != SHAPE:
                return
            value = self.graph.calls[i].results[0]
            axis = on


def _axis_of(axes: Axes, label: str | None) -> int | None:
    bases = [_first(entry) for entry in axes]
    return bases.index(label) if label is not None and label in bases else None


def _first(entry: str | None) -> str:
    """Return the first label of an axis, without its groups; empty where there is none."""
    return base_label(labels_of(entry)[0]) if entry else ""


def captured_network(graph: SplitGraph) -> Network:
    """Return the layers of a captured model."""
    producer = {value: op for op in graph.ops for value in op.results}
    layers = []
    for op in graph.ops:
        if op.shape.moves or not _has_gradient(graph, op):
            continue
        draft = _Draft(graph, op, producer)
        layers.append(
            Layer(
                name=op.name,
                operation=draft.operation(),
                inputs=draft.sources(),
                reason=op.reason,
            )
        )
    return Network(graph.name, tuple(layers))


def _has_gradient(graph: SplitGraph, op: SplitOp) -> bool:
    return any(graph.values[value].gradient for value in op.results)


@dataclass(eq=False)
class _Draft:
    """One layer being made."""

    graph: SplitGraph
    op: SplitOp
    producer: dict[int, SplitOp]
    dimensions: dict[str, Dimension] = field(default_factory=dict)
    ports: list[tuple[str | None, Axes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        called = dict(self.op.names)
        often = Counter(called.values())
        self.called = {
            k: name if often[name] == 1 else f"{name} {k}" for k, name in called.items()
        }
        for label, extent in self.op.shape.extents:
            if label == ROWS:  # a layer's axis has one label: rows are cut by examples
                continue
            name = self.called.get(label, label)
            self.dimensions[name] = Dimension(name, extent)
        self.dimensions.setdefault(BATCH, Dimension(BATCH, 1, split=False))
        pairs = zip(self.op.reads, self.op.shape.reads, strict=True)
        self.ports = [
            self._port(k, value, axes)
            for k, (value, axes) in enumerate(pairs)
            if self.graph.values[value].source != PARAMETER
        ]

    def _port(self, slot: int, value: int, axes: Axes) -> tuple[str | None, Axes]:
        """Return the layer that an input comes from, and the input's axes as that layer made it."""
        # Calls that only move axes are no layers: look through them to what they read.
        while value in self.producer and self.producer[value].shape.moves:
            op = self.producer[value]
            result_axes = op.shape.results[op.results.index(value)]
            pairs = zip(result_axes, axes, strict=True)
            labels_by_axis = {_first(m): label for m, label in pairs if m is not None}
            labels = [_first(m) for m in op.shape.reads[0]]
            value = op.reads[0]
            axes = tuple(labels_by_axis.get(m) for m in labels)
        names = self._axes(f"in{slot}", value, axes)
        source = self.producer.get(value)
        if source is None or not _has_gradient(self.graph, source):
            return None, names
        return source.name, names

    def _axes(self, prefix: str, value: int, axes: Axes) -> Axes:
        """Return names of a tensor's axes; what no label covers gets dimensions that stay whole."""
        shape = self.graph.values[value].shape
        names: list[str] = []
        uncovered = 1
        for k, (label, size) in enumerate(zip(axes, shape, strict=True)):
            base = _first(label)
            if base in ("", ROWS):
                names.append(self._whole(f"{prefix}.{k}", size))
            else:
                names.append(self.called.get(base, base))
                uncovered *= max(1, size // self.dimensions[names[-1]].extent)
        if uncovered > 1:
            names.append(self._whole(f"{prefix}.rest", uncovered))
        return tuple(names)

    def _whole(self, name: str, size: int) -> str:
        self.dimensions[name] = Dimension(name, size, split=False)
        return name

    def sources(self) -> tuple[str | None, ...]:
        """Return the layers that are read."""
        return tuple(source for source, _ in self.ports)

    def operation(self) -> Operation:
        """Return the layer's operation, without its name."""
        op = self.op
        values = self.graph.values
        result = op.results[0]
        output = self._axes("out", result, op.shape.results[0])
        parameters = tuple(
            tuple(name for name in self._axes(f"p{k}", value, axes) if name is not None)
            for k, (value, axes) in enumerate(
                zip(op.reads, op.shape.reads, strict=True)
            )
            if values[value].source == PARAMETER
        )
        needs = any(values[v].gradient and values[v].source == CALL for v in op.reads)
        return Operation(
            kind=op.kind,
            dimensions=tuple(self.dimensions.values()),
            flops=op.shape.flops or float(math.prod(values[result].shape)),
            output=output,
            inputs=tuple(axes for _, axes in self.ports),
            parameters=parameters,
            needs_gradient=needs,
        )
