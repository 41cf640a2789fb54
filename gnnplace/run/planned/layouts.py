"""The layouts in which the stages of one process hold parameters and compute calls.

The plan's stages say how each call is split and where each parameter is at home. `make_layouts`
reads both, and finds which parameters a call reads in another layout than their home, and whose
gradients are sums over shards. O(calls of the stages).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gnnplace.plans import StageEntry, make_home_layout, parse_configuration
from gnnplace.run.planned.stages import StageCalls
from gnnplace.sharding import (
    PARTIAL,
    REPLICATED,
    Configuration,
    LayerGraph,
    Layout,
    gradient_layout,
    pending_layout,
    read_layout,
)
from gnnplace.tracing import PARAMETER, CallGraph, Rule


@dataclass(frozen=True)
class Layouts:
    """The layouts of the stages of one process.

    Attributes:
        split: Label that every call splits over each axis of the shards, or None. [calls][axes]
        homes: Layout of every parameter.
        summed: For parameters whose gradients are sums over shards, over which axes they are.
        converted: Values of parameters that a call reads in another layout than their home, or
            whose gradient it leaves in another one than the others.
        replicated: Layout of what every shard has in full.
    """

    split: tuple[Configuration, ...]
    homes: Mapping[str, Layout]
    summed: Mapping[str, tuple[bool, ...]]
    converted: frozenset[int]
    replicated: Layout


def make_layouts(
    layers: LayerGraph, pieces: Sequence[StageCalls], entries: Sequence[StageEntry]
) -> Layouts:
    """Return the layouts of the stages of one process.

    Args:
        layers: The model's calls and their rules.
        pieces: Stages of the process.
        entries: The same stages in the plan.

    Raises:
        MismatchError: A call cannot have its placement.
    """
    graph, axes = layers.calls, entries[0].axes
    split: list[Configuration] = [(None,) * len(axes)] * len(graph.calls)
    for piece, entry in zip(pieces, entries, strict=True):
        for i in piece.calls:
            words = entry.placements.get(graph.calls[i].name)
            if words is not None:
                name = graph.calls[i].name
                split[i] = parse_configuration(
                    layers.rules[i], words, axes, f"placements.{name}"
                )
    return _with_homes(graph, layers.rules, pieces, entries, split)


def _with_homes(
    graph: CallGraph,
    rules: Sequence[Rule],
    pieces: Sequence[StageCalls],
    entries: Sequence[StageEntry],
    split: Sequence[Configuration],
) -> Layouts:
    """Return layouts in which every parameter is at home where its first stage says."""
    homes: dict[str, Layout] = {}
    reads: dict[int, set[tuple[Layout, Layout]]] = {}
    for piece, entry in zip(pieces, entries, strict=True):
        for i in piece.calls:
            for value, axes in zip(graph.calls[i].reads, rules[i].reads, strict=True):
                info = graph.values[value]
                if info.source != PARAMETER:
                    continue
                homes.setdefault(info.name, make_home_layout(entry, info.name))
                ways = reads.setdefault(value, set())
                ways.add((read_layout(axes, split[i]), gradient_layout(axes, split[i])))

    summed: dict[str, tuple[bool, ...]] = {}
    converted = set()
    for value, ways in reads.items():
        name = graph.values[value].name
        home = homes[name]
        pending = pending_layout(home, {g for _, g in ways}, entries[0].axes)
        if PARTIAL in pending:
            summed[name] = tuple(place == PARTIAL for place in pending)
        if ways != {(home, pending)}:
            converted.add(value)
    return Layouts(
        split=tuple(split),
        homes=homes,
        summed=summed,
        converted=frozenset(converted),
        replicated=(REPLICATED,) * len(entries[0].axes),
    )
