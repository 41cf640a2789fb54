"""Layouts of a process's parameters and calls over the shards, from a plan's `placements`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gnnplace.plans.plan import StageEntry
from gnnplace.plans.run.cutting import Piece
from gnnplace.plans.segments.placements import label_of
from gnnplace.sharding.captured.calls import PARAMETER, CallGraph
from gnnplace.sharding.captured.layout import (
    PARTIAL,
    REPLICATED,
    Configuration,
    Layout,
    gradient_layout,
    read_layout,
)
from gnnplace.sharding.rules.rule import Rule
from gnnplace.sharding.run.planning import LayerGraph

WHOLE: Layout = (REPLICATED,)


@dataclass(frozen=True)
class Layouts:
    """Of the stages of one process.

    Attributes:
        split: label that every call splits over the shards, or none. [calls][1]
        homes: layout of every parameter.
        summed: parameters whose gradients are sums over the shards.
        several: values of parameters that are read in several ways, each brought there.
    """

    split: tuple[Configuration, ...]
    homes: Mapping[str, Layout]
    summed: frozenset[str]
    several: frozenset[int]
    whole: Layout = WHOLE


def layouts_of(
    layers: LayerGraph, pieces: Sequence[Piece], entries: Sequence[StageEntry]
) -> Layouts:
    """Layouts of a process's stages.

    Args:
        layers: the model's calls.
        pieces: stages of the process.
        entries: the same in the plan.

    Raises:
        MismatchError: a placement that the call cannot have.
    """
    graph = layers.calls
    split: list[Configuration] = [(None,)] * len(graph.calls)
    for piece, entry in zip(pieces, entries, strict=True):
        for i in piece.calls:
            told = entry.placements.get(graph.calls[i].name)
            if told is not None:
                split[i] = (label_of(layers.rules[i], told[-1], graph.calls[i].name),)
    return _with_homes(graph, layers.rules, pieces, split)


def _with_homes(
    graph: CallGraph,
    rules: Sequence[Rule],
    pieces: Sequence[Piece],
    split: Sequence[Configuration],
) -> Layouts:
    """Parameters are at home where they are first read."""
    homes: dict[str, Layout] = {}
    summed: set[str] = set()
    reads: dict[int, set[tuple[Layout, Layout]]] = {}
    for i in (i for piece in pieces for i in piece.calls):
        for value, axes in zip(graph.calls[i].reads, rules[i].reads, strict=True):
            info = graph.values[value]
            if info.source != PARAMETER:
                continue
            read, made = read_layout(axes, split[i]), gradient_layout(axes, split[i])
            homes.setdefault(info.name, read)
            reads.setdefault(value, set()).add((read, made))
            if made[0] == PARTIAL:
                summed.add(info.name)
    several = frozenset(value for value, ways in reads.items() if len(ways) > 1)
    summed -= {graph.values[value].name for value in several}
    return Layouts(tuple(split), homes, frozenset(summed), several)
