"""A captured model as a network of layers, for the strategies that need not be executable.

Calls that only move axes are left out: a layer reads what they read, along the axes that lead
there. So are calls that no gradient flows through, such as those that make masks.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from gnnplace.sharding.captured.layout import CALL, PARAMETER, Axes, SplitGraph, SplitOp, base_label
from gnnplace.sharding.layers import Dimension, Layer, Network, Operation

BATCH = "batch"


def captured_network(graph: SplitGraph) -> Network:
    """The layers of a captured model."""
    producer = {value: op for op in graph.ops for value in op.results}
    layers = []
    for op in graph.ops:
        if op.shape.moves or not _has_gradient(graph, op):
            continue
        draft = _Draft(graph, op, producer)
        layers.append(Layer(op.name, draft.operation(), draft.sources(), op.reason))
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
        self.called = {k: name if often[name] == 1 else f"{name} {k}" for k, name in called.items()}
        for label, extent in self.op.shape.extents:
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
        """The layer that an input comes from, and the input's axes as that layer made it."""
        while value in self.producer and self.producer[value].shape.moves:
            op = self.producer[value]
            moved = op.shape.results[op.results.index(value)]
            pairs = zip(moved, axes, strict=True)
            there = {base_label(m): label for m, label in pairs if m is not None}
            labels = [base_label(m or "") for m in op.shape.reads[0]]
            value, axes = op.reads[0], tuple(there.get(m) for m in labels)
        source = self.producer.get(value)
        known = source is not None and _has_gradient(self.graph, source)
        return (source.name if known and source else None), self._axes(f"in{slot}", value, axes)

    def _axes(self, prefix: str, value: int, axes: Axes) -> Axes:
        """Names of a tensor's axes; what no label covers gets dimensions that stay whole."""
        shape = self.graph.values[value].shape
        names: list[str] = []
        rest = 1
        for k, (label, size) in enumerate(zip(axes, shape, strict=True)):
            if label is None:
                names.append(self._whole(f"{prefix}.{k}", size))
            else:
                names.append(self.called.get(base_label(label), base_label(label)))
                rest *= max(1, size // self.dimensions[names[-1]].extent)
        if rest > 1:
            names.append(self._whole(f"{prefix}.rest", rest))
        return tuple(names)

    def _whole(self, name: str, size: int) -> str:
        self.dimensions[name] = Dimension(name, size, split=False)
        return name

    def sources(self) -> tuple[str | None, ...]:
        """Layers that are read."""
        return tuple(source for source, _ in self.ports)

    def operation(self) -> Operation:
        """The operation, its name left aside."""
        op, values = self.op, self.graph.values
        result = op.results[0]
        output = self._axes("out", result, op.shape.results[0])
        parameters = tuple(
            tuple(name for name in self._axes(f"p{k}", value, axes) if name is not None)
            for k, (value, axes) in enumerate(zip(op.reads, op.shape.reads, strict=True))
            if values[value].source == PARAMETER
        )
        needs = any(values[v].gradient and values[v].source == CALL for v in op.reads)
        return Operation(
            op.kind,
            tuple(self.dimensions.values()),
            op.shape.flops or float(math.prod(values[result].shape)),
            output,
            tuple(axes for _, axes in self.ports),
            parameters,
            needs,
        )
