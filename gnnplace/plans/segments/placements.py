"""The split of parameters and calls over shards, in the words of a plan's file.

For every parameter, and every call whose result is not replicated, a plan gives its placement on
each dimension of the mesh, as DTensor's placements do: R (replicated), S and an axis (sharded), P
(a partial sum). `S0/3` shards each of three groups of axis 0, such as joined queries, keys and
values. The first dimension of the mesh is that of replicas, the others are outer and inner shards;
a single axis of shards is the inner one. If several labels of a call would give its result the same
placement, the label follows: `P:in`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest

from gnnplace.errors import MismatchError, suggestion
from gnnplace.plans.plan import StageEntry, border_words
from gnnplace.plans.segments.chain import Segment
from gnnplace.sharding import (
    PARTIAL,
    REPLICATED,
    Configuration,
    Layout,
    Mesh,
    Place,
    count_parts,
    get_result_layout,
    read_layout,
)
from gnnplace.tracing import PARAMETER, CallGraph, Rule

WHOLE_WORDS = ("R", "R", "R")
TOKENS = 1
"""The axis of what crosses cuts that its tokens are, after the examples."""


def border_layout(word: str, shape: Sequence[int], axes: Mesh, examples: int) -> Layout:
    """Return the layout over shards of what crosses a cut; whole where it has no equal parts.

    Args:
        word: What a plan's file says of it, for all shards or for each of their axes.
        shape: Shape of what crosses.
        axes: Shards along each of their axes.
        examples: Examples of a micro-batch. What has as many on its first axis has examples.
    """
    remaining, places = list(shape), []
    for one, count in zip(border_words(word, len(axes)), axes, strict=True):
        axis = {"examples": 0, "tokens": TOKENS}.get(one)
        has = len(remaining) > TOKENS + 1 if axis else remaining[:1] == [examples]
        cut = axis is not None and has and remaining[axis] % count == 0
        if cut and axis is not None:
            remaining[axis] //= count
        places.append(Place(axis) if cut and axis is not None else REPLICATED)
    return tuple(places)


def format_place(place: Place) -> str:
    """Return the word of a place: R, P, an axis such as S1, or one cut in groups such as S0/3."""
    if place == REPLICATED:
        return "R"
    if place == PARTIAL:
        return "P"
    return f"S{place.axis}" + (f"/{place.groups}" if place.groups else "")


def parse_place(word: str) -> Place:
    """Return the place that a word means: R, P, or a cut such as S1 or S0/3."""
    if word in ("R", "P"):
        return REPLICATED if word == "R" else PARTIAL
    axis, _, groups = word.removeprefix("S").partition("/")
    return Place(int(axis), int(groups or 0))


def format_placements(
    graph: CallGraph,
    rules: Sequence[Rule],
    split: Mapping[int, Configuration],
    homes: Mapping[str, Layout] | None = None,
) -> dict[str, list[str]]:
    """Return the words of a plan's file for split calls and the parameters that they read.

    Args:
        graph: The calls of the model.
        rules: How each of its calls may be split.
        split: Labels of each call that is split, by index.
        homes: Layouts of parameters by name; of others, that of the first call that cuts them.

    Returns:
        Words for replicas, outer and inner shards, by name; what is whole is absent.
    """
    homes = homes or {}
    placements = {
        name: _row([format_place(place) for place in home])
        for name, home in homes.items()
        if any(place.cuts for place in home)
    }
    for i in sorted(split):
        call, rule, configuration = graph.calls[i], rules[i], split[i]
        for value, axes in zip(call.reads, rule.reads, strict=True):
            info = graph.values[value]
            if info.source == PARAMETER and info.name not in homes:
                read = read_layout(axes, configuration)
                if any(place.cuts for place in read):
                    placements.setdefault(
                        info.name, _row([format_place(place) for place in read])
                    )
    for i in sorted(split):
        if any(split[i]):
            placements[graph.calls[i].name] = _row(
                [_format_result_place(rules[i], label) for label in split[i]]
            )
    return placements


def _row(words: Sequence[str]) -> list[str]:
    """Return words for replicas, outer and inner shards; those that are not given are R."""
    return [*WHOLE_WORDS[len(words) :], *words]


def _format_result_place(rule: Rule, label: str | None) -> str:
    """Return the word of the result's place, with the label where others give the same place."""
    if label is None:
        return "R"
    word = format_place(get_result_layout(rule.results[0], (label,))[0])
    alike = [
        label
        for label in rule.extents
        if format_place(get_result_layout(rule.results[0], (label,))[0]) == word
    ]
    return word if len(alike) == 1 else f"{word}:{label}"


def parse_configuration(
    rule: Rule, words: Sequence[str], axes: Mesh, where: str
) -> Configuration:
    """Return the labels whose split gives a call's result its places; None where it is whole.

    Args:
        rule: How the call may be split.
        words: Words of its result's places.
        axes: Shards along each of their axes.
        where: Key path in the plan's file, for error messages.

    Raises:
        MismatchError: The call cannot be split so.
    """
    return tuple(_find_label(rule, word, where) for word in words[-len(axes) :])


def _find_label(rule: Rule, word: str, where: str) -> str | None:
    place, _, label = word.partition(":")
    if place == "R" and not label:
        return None
    for name in rule.extents:
        if (
            label in ("", name)
            and format_place(get_result_layout(rule.results[0], (name,))[0]) == place
        ):
            return name
    raise MismatchError(
        f"plan: {where}: cannot be {word!r}; it can be split along "
        f"{', '.join(rule.extents) or 'nothing'}"
    )


def check_stages(segments: Sequence[Segment], entries: Sequence[StageEntry]) -> None:
    """Check that a plan's stages have a model's calls, modules and segments.

    Args:
        segments: The model's segments.
        entries: The plan's stages.

    Raises:
        MismatchError: They differ; the message names the key path and the first that does.
    """
    own = [name for segment in segments for name in segment.members]
    listed = [(k, name) for k, entry in enumerate(entries) for name in entry.members]
    for wanted, pair in zip_longest(own, listed):
        k, name = pair or (len(entries) - 1, None)
        if wanted != name:
            raise MismatchError(
                f"plan: stages[{k}].members: {name or 'nothing'!r} where the model has "
                f"{wanted or 'nothing'!r}; make a plan for this one"
            )
    for k, entry in enumerate(entries):
        members = frozenset(entry.members)
        some = [
            segment for segment in segments if not members.isdisjoint(segment.members)
        ]
        modules = dict.fromkeys(path for segment in some for path in segment.modules)
        for path in (*entry.modules, *modules):
            if path not in modules or path not in entry.modules:
                raise MismatchError(
                    f"plan: stages[{k}].modules: {path!r} is not both here and "
                    "among the modules of the stage's members"
                )
        whole_modules = {
            segment.name for segment in some if members.issuperset(segment.members)
        }
        for name in entry.recompute.modules:
            if name not in whole_modules:
                raise MismatchError(
                    f"plan: stages[{k}].recompute.modules: {name!r} is the first "
                    "call of none of the stage's segments"
                )


def check_placements(
    graph: CallGraph, rules: Sequence[Rule], entries: Sequence[StageEntry]
) -> None:
    """Check that calls and parameters can be split as a plan's stages say.

    Args:
        graph: The model's calls.
        rules: How each may be split, on one micro-batch.
        entries: The stages, which have these calls.

    Raises:
        MismatchError: One cannot; the message names the key path and what is possible.
    """
    index = {call.name: i for i, call in enumerate(graph.calls)}
    for k, entry in enumerate(entries):
        ways: dict[str, set[str]] = {}
        for i in (index[name] for name in entry.members):
            told = entry.placements.get(graph.calls[i].name, WHOLE_WORDS)
            where = f"stages[{k}].placements.{graph.calls[i].name}"
            # A split must leave equal parts.
            configuration = parse_configuration(rules[i], told, entry.axes, where)
            for label, shards in count_parts(configuration, entry.axes).items():
                if rules[i].extents[label] % shards:
                    raise MismatchError(
                        f"plan: {where}: {rules[i].extents[label]} of {label} have no {shards} "
                        "equal parts"
                    )
            for value, axes in zip(graph.calls[i].reads, rules[i].reads, strict=True):
                if graph.values[value].source == PARAMETER:
                    words = _row(
                        [
                            format_place(place)
                            for place in read_layout(axes, configuration)
                        ]
                    )
                    ways.setdefault(graph.values[value].name, set()).add(
                        " ".join(words)
                    )
        # The plan must place a parameter as one of its calls reads it.
        for name, words in entry.placements.items():
            if name not in ways and name not in entry.members:
                raise MismatchError(
                    f"plan: stages[{k}].placements.{name}: the stage has no such "
                    f"call or parameter{suggestion(name, ways)}"
                )
            if name not in entry.members and not _is_home(words, ways[name]):
                raise MismatchError(
                    f"plan: stages[{k}].placements.{name}: {' '.join(words)!r}: "
                    f"it is read as {', '.join(sorted(ways[name]))}"
                )


def _is_home(words: Sequence[str], ways: Collection[str]) -> bool:
    """Return whether a parameter is along each dimension as one of its calls reads it there."""
    return all(
        any(word == way.split()[dim] for way in ways) for dim, word in enumerate(words)
    )


def make_home_layout(entry: StageEntry, name: str) -> Layout:
    """Return the layout of a parameter over the shards of a plan's stage."""
    words = entry.placements.get(name, WHOLE_WORDS)[-len(entry.axes) :]
    return tuple(parse_place(word) for word in words)
