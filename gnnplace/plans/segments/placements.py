"""The split of parameters and calls over shards, in the words of a plan's file.

A plan names, for every parameter and every call whose result is not whole, what each dimension of
the mesh does with it, as DTensor's placements do: R (each has all of it), S and an axis (a part), P
(a summand); `S0|3` cuts each of three groups of the axis, as in queries, keys and values side by
side. The first dimension is that of the replicas, the second that of the shards. Where several
labels of a call give its result the same place, the label follows: `P:in`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gnnplace.errors import MismatchError
from gnnplace.plans.plan import StageEntry
from gnnplace.plans.run.cutting import Piece
from gnnplace.sharding.captured.calls import PARAMETER, CallGraph
from gnnplace.sharding.captured.layout import (
    PARTIAL,
    REPLICATED,
    Configuration,
    Layout,
    Place,
    gradient_layout,
    made_layout,
    read_layout,
)
from gnnplace.sharding.rules.rule import Rule
from gnnplace.sharding.run.planning import LayerGraph

WHOLE: Layout = (REPLICATED,)


def word_of(place: Place) -> str:
    """R, P, S1, or S0|3."""
    if place == REPLICATED:
        return "R"
    if place == PARTIAL:
        return "P"
    return f"S{place.axis}" + (f"|{place.groups}" if place.groups else "")


def placements_of(
    graph: CallGraph, rules: Sequence[Rule], split: Mapping[int, Configuration]
) -> dict[str, list[str]]:
    """What a plan's file says of calls that are split.

    Args:
        graph: the calls of the model.
        rules: how each of its calls may be split.
        split: label of each call that is split, by index.
    """
    found: dict[str, list[str]] = {}
    for i in sorted(split):
        call, rule, chosen = graph.calls[i], rules[i], split[i]
        for value, axes in zip(call.reads, rule.reads, strict=True):
            info = graph.values[value]
            if info.source == PARAMETER:
                place = read_layout(axes, chosen)[0]
                if place.cuts:
                    found.setdefault(info.name, ["R", word_of(place)])
    for i in sorted(split):
        if split[i] != (None,):
            found[graph.calls[i].name] = ["R", _told(rules[i], split[i])]
    return found


def _told(rule: Rule, chosen: Configuration) -> str:
    """The result's place, and the label after it where others would give the same."""
    word = word_of(made_layout(rule.results[0], chosen)[0])
    alike = [
        label for label in rule.extents
        if word_of(made_layout(rule.results[0], (label,))[0]) == word
    ]  # fmt: skip
    return word if len(alike) == 1 else f"{word}:{chosen[0]}"


def label_of(rule: Rule, word: str, name: str) -> str | None:
    """The label whose split gives a call's result this place; None: it stays whole.

    Args:
        rule: how the call may be split.
        word: of its result's place.
        name: of the call, for messages.

    Raises:
        MismatchError: the call cannot be split so.
    """
    place, _, label = word.partition(":")
    if place == "R" and not label:
        return None
    for found in rule.extents:
        if label in ("", found) and word_of(made_layout(rule.results[0], (found,))[0]) == place:
            return found
    raise MismatchError(f"plan: placements: {name!r} cannot be {word!r}; it can be split along "
                        f"{', '.join(rule.extents) or 'nothing'}")  # fmt: skip


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
        layers: the model's calls and their rules.
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
