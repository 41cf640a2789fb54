"""Queries, keys and values that one layer makes side by side.

A layer whose features are cut into equal pieces afterwards (``split``, ``chunk``, or a ``view``
that gives the pieces an axis of their own) could be split along its features only by parts that lie
in one piece. Here it is split within each piece instead: each device makes the same heads of
queries, of keys and of values. The label of such an axis says how many pieces there are: ``out|3``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gnnplace.sharding.captured.calls import CALL, PARAMETER, CallGraph, LayerCall
from gnnplace.sharding.captured.layout import base_label
from gnnplace.sharding.rules.rule import Axes, Rule, Share
from gnnplace.sharding.rules.shapes import SHAPE

PIECE = "piece"
CUTS = ("split", "chunk")
PRODUCTS = ("linear", "convolution")


def with_groups(graph: CallGraph, rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Rules with the layers that feed a cut into equal pieces split within the pieces."""
    found = list(rules)
    producer = {v: i for i, call in enumerate(graph.calls) for v in call.results}
    readers: dict[int, int] = {}
    for call in graph.calls:
        for value in call.reads:
            readers[value] = readers.get(value, 0) + 1
    for i, call in enumerate(graph.calls):
        cut = _cut_axis(graph, call) or _folded_axis(found[i])
        if cut is None:
            continue
        axis, pieces = cut
        chain = _chain(graph, found, producer, readers, i, axis)
        if chain is not None:
            if call.kind in CUTS:
                found[i] = _cut_rule(graph, call, found[i], axis)
            for index, label in chain:
                found[index] = _grouped(graph.calls[index], found[index], label, pieces, graph)
    return tuple(found)


def _folded_axis(rule: Rule) -> tuple[int, int] | None:
    """The axis that a call reshapes into pieces and their features, and the number of pieces."""
    if rule.kind != SHAPE:
        return None
    labels = enumerate(rule.reads[0])
    return next(((k, int(x.split("|")[1])) for k, x in labels if x is not None and "|" in x), None)


def _cut_axis(graph: CallGraph, call: LayerCall) -> tuple[int, int] | None:
    """The axis that a call cuts into equal pieces, and their number."""
    if call.kind not in CUTS or len(call.results) < 2:
        return None
    before = graph.values[call.reads[0]].shape
    axis = int(call.argument(2, "dim", 0)) % len(before)
    sizes = {graph.values[value].shape[axis] for value in call.results}
    equal = len(sizes) == 1 and len(call.results) * sizes.pop() == before[axis]
    return (axis, len(call.results)) if equal else None


def _chain(
    graph: CallGraph,
    rules: Sequence[Rule],
    producer: dict[int, int],
    readers: dict[int, int],
    cut: int,
    axis: int,
) -> list[tuple[int, str]] | None:
    """Calls from the cut back to the product that makes the axis, each with the axis's label."""
    value, chain = graph.calls[cut].reads[0], []
    while graph.values[value].source == CALL and readers[value] == 1:
        index = producer[value]
        rule = rules[index]
        label = rule.results[0][axis] if len(rule.results) == 1 else None
        if label is None or "|" in label:
            return None
        chain.append((index, label))
        if rule.kind in PRODUCTS:
            return chain if _made_by_parameters(graph, graph.calls[index], rule, label) else None
        if rule.kind != SHAPE or label not in rule.reads[0]:
            return None
        value, axis = graph.calls[index].reads[0], rule.reads[0].index(label)
    return None


def _made_by_parameters(graph: CallGraph, call: LayerCall, rule: Rule, label: str) -> bool:
    """Whether parameters alone bring the axis."""
    pairs = zip(call.reads, rule.reads, strict=True)
    return all(graph.values[value].source == PARAMETER for value, axes in pairs if label in axes)


def _cut_rule(graph: CallGraph, call: LayerCall, rule: Rule, axis: int) -> Rule:
    """The cut itself: its pieces are parts of the pieces that one device would have."""
    size = graph.values[call.results[0]].shape[axis]
    pieces = len(call.results)
    read = _with(rule.reads[0], axis, f"{PIECE}|{pieces}")
    made = tuple(_with(axes, axis, PIECE) for axes in rule.results)

    def run(call: LayerCall, args: Any, kwargs: Any, share: Share) -> Any:
        return args[0].chunk(pieces, axis)

    reads = (read, *rule.reads[1:])
    return replace(rule, extents={**rule.extents, PIECE: size}, reads=reads, results=made, run=run)


def _with(axes: Axes, axis: int, label: str) -> Axes:
    return (*axes[:axis], label, *axes[axis + 1 :])


def _grouped(call: LayerCall, rule: Rule, label: str, pieces: int, graph: CallGraph) -> Rule:
    """The same rule with one label cutting each of its axis's groups."""

    def renamed(axes: Axes) -> Axes:
        return tuple(f"{x}|{pieces}" if x == label else x for x in axes)

    axis = rule.results[0].index(label)
    size = graph.values[call.results[0]].shape[axis] // pieces
    return replace(
        rule,
        extents={**rule.extents, base_label(label): size},
        reads=tuple(renamed(axes) for axes in rule.reads),
        results=tuple(renamed(axes) for axes in rule.results),
    )
