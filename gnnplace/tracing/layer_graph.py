"""A captured model's calls as operations that can be split, with names that people understand."""

from __future__ import annotations

from collections.abc import Sequence

from gnnplace.sharding.captured import Shape, SplitGraph, SplitOp, SplitValue
from gnnplace.tracing.layer_calls import INPUT, CallGraph
from gnnplace.tracing.layer_rule import Rule
from gnnplace.tracing.layer_shapes import SHAPE

BATCH = "batch"
RANKS = {  # what axes beyond the batch are mostly called, by rank
    2: ("batch", "features"),
    3: ("batch", "sequence", "features"),
    4: ("batch", "heads", "sequence", "features"),
}
IMAGES = ("batch", "channels", "height", "width")


def split_graph(graph: CallGraph, rules: Sequence[Rule]) -> SplitGraph:
    """Operations of all calls, in order."""
    values = tuple(
        SplitValue(v.shape, v.dtype.itemsize, v.gradient, v.source, v.name) for v in graph.values
    )
    batch = _Batch(graph, rules)
    heads = _heads(graph, rules)
    ops = []
    for i, (call, rule) in enumerate(zip(graph.calls, rules, strict=True)):
        label = batch.label(i)
        names = _names(rule, label, heads.get(i, {}))
        shape = Shape(
            tuple(rule.extents.items()), rule.reads, rule.results, rule.flops, rule.kind == SHAPE
        )
        ops.append(
            SplitOp(call.name, rule.kind, shape, call.reads, call.results, label, names,
                    rule.reason)
        )  # fmt: skip
    return SplitGraph(graph.name, tuple(ops), values)


class _Batch:
    """Follows the first axis of the first input through the calls."""

    def __init__(self, graph: CallGraph, rules: Sequence[Rule]) -> None:
        self.axis: dict[int, int] = {}
        self.labels: list[str | None] = []
        inputs = [(i, v) for i, v in enumerate(graph.values) if v.source == INPUT and v.shape]
        size = inputs[0][1].shape[0] if inputs else 0
        self.axis = {i: 0 for i, v in inputs if v.shape[0] == size}
        for call, rule in zip(graph.calls, rules, strict=True):
            found = [
                axes[self.axis[value]]
                for value, axes in zip(call.reads, rule.reads, strict=True)
                if value in self.axis and self.axis[value] < len(axes)
            ]
            label = next((x for x in found if x is not None), None)
            self.labels.append(label)
            for value, axes in zip(call.results, rule.results, strict=True):
                if label is not None and label in axes:
                    self.axis[value] = axes.index(label)

    def label(self, call: int) -> str | None:
        return self.labels[call]


def _names(rule: Rule, batch: str | None, heads: dict[str, str]) -> tuple[tuple[str, str], ...]:
    rank = max((len(axes) for axes in (*rule.results, *rule.reads[:1])), default=0)
    images = rule.kind in ("convolution", "pool")
    by_rank = IMAGES if images and rank == 4 else RANKS.get(rank, ())
    axes = max((*rule.results, *rule.reads[:1]), key=len, default=())
    names = {label: heads.get(label, label) for label in rule.extents}
    for axis, label in enumerate(axes):
        if label is not None and label.isdecimal() and axis < len(by_rank):
            names[label] = by_rank[axis]
    taken = {label: name for label, name in names.items() if label != batch}
    if batch is not None:
        taken = {label: f"axis {label}" if n == BATCH else n for label, n in taken.items()}
        taken[batch] = BATCH
    return tuple(sorted(taken.items()))


def _heads(graph: CallGraph, rules: Sequence[Rule]) -> dict[int, dict[str, str]]:
    """Labels of products whose features are the heads of attention, by call."""
    producer = {v: (i, k) for i, c in enumerate(graph.calls) for k, v in enumerate(c.results)}
    readers: dict[int, list[tuple[int, int]]] = {}
    for i, call in enumerate(graph.calls):
        for slot, value in enumerate(call.reads):
            readers.setdefault(value, []).append((i, slot))
    found: dict[int, dict[str, str]] = {}
    for i, (call, rule) in enumerate(zip(graph.calls, rules, strict=True)):
        if rule.kind != "attention" or "heads" not in rule.extents:
            continue
        for value, axes in list(zip(call.reads, rule.reads, strict=True))[:3]:
            _backwards(value, axes.index("heads"), graph, rules, producer, found)
        _forwards(call.results[0], rule.results[0].index("heads"), graph, rules, readers, found)
        found.setdefault(i, {})["heads"] = "heads"
    return found


def _backwards(value, axis, graph, rules, producer, found) -> None:  # type: ignore[no-untyped-def]
    while value in producer:
        i, slot = producer[value]
        label = rules[i].results[slot][axis]
        if label is None:
            return
        found.setdefault(i, {})[label] = "heads"
        if rules[i].kind not in (SHAPE, "elementwise") or label not in rules[i].reads[0]:
            return
        value, axis = graph.calls[i].reads[0], rules[i].reads[0].index(label)


def _forwards(value, axis, graph, rules, readers, found) -> None:  # type: ignore[no-untyped-def]
    while len(readers.get(value, ())) == 1:
        i, slot = readers[value][0]
        label = rules[i].reads[slot][axis]
        if label is None:
            return
        found.setdefault(i, {})[label] = "heads"
        if rules[i].kind != SHAPE or label not in rules[i].results[0]:
            return
        value, axis = graph.calls[i].results[0], rules[i].results[0].index(label)
