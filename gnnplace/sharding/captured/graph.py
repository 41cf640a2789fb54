"""A captured model's calls as operations that can be split, with names that people understand."""

from __future__ import annotations

from collections.abc import Sequence

from gnnplace.sharding.captured.layout import (
    Shape,
    SplitGraph,
    SplitOp,
    SplitValue,
)
from gnnplace.tracing import (
    INPUT,
    SHAPE,
    Axes,
    CallGraph,
    Rule,
    base_label,
    first_label,
    list_labels,
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
        axis: The axis of the examples, by value; values without examples are absent.
        labels: the label that stands for examples in each call, None without one.
    """

    def __init__(self, graph: CallGraph, rules: Sequence[Rule]) -> None:
        self.axis: dict[int, int] = {}
        self.labels: list[str | None] = []

        # Inputs as long as the first one have one row an example.
        num_examples: int | None = None
        for index, value in enumerate(graph.values):
            if value.source != INPUT or not value.shape:
                continue
            if num_examples is None:
                num_examples = value.shape[0]
            if value.shape[0] == num_examples:
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
    candidates = (*rule.results, *rule.reads[:1])
    axes = max(candidates, key=len, default=())
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
        products = list(zip(call.reads, rule.reads, strict=True))[:3]
        for value, axes in products:
            if HEADS in axes:
                self._backwards(value, axes.index(HEADS))
        axes = rule.results[0]
        if HEADS in axes:
            self._forwards(call.results[0], axes.index(HEADS))

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
            rule = self.rules[i]
            label = self._named(i, rule.results[slot], axis)
            if not rule.reads or rule.kind not in (SHAPE, "elementwise"):
                return
            back = _find_axis(rule.reads[0], label)
            if back is None:
                return
            value = self.graph.calls[i].reads[0]
            axis = back

    def _forwards(self, value: int, axis: int) -> None:
        """Name the heads in the calls that read a value, up to the product that takes them in."""
        while len(self.readers.get(value, ())) == 1:
            i, slot = self.readers[value][0]
            rule = self.rules[i]
            label = self._named(i, rule.reads[slot], axis)
            on = _find_axis(rule.results[0], label)
            if on is None or rule.kind != SHAPE:
                return
            value = self.graph.calls[i].results[0]
            axis = on


def _find_axis(axes: Axes, label: str | None) -> int | None:
    bases = [_first(entry) for entry in axes]
    if label is None or label not in bases:
        return None
    return bases.index(label)


def _first(entry: str | None) -> str:
    """Return the first label of an axis, without its groups; empty where there is none."""
    if not entry:
        return ""
    first = list_labels(entry)[0]
    return base_label(first)
