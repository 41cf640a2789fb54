"""Positions at which a model's calls can be cut into stages, and runs of calls that are equal.

Position p is between calls p - 1 and p. It is crossed by the values that earlier calls computed
from parameters and that calls from p on read; views of one tensor count once. Values that come from
inputs, buffers and constants alone (masks, positions) do not cross: every stage computes its own.

A cut is a position where the number of crossing values has a local minimum. Before and after a
block of a transformer that is one tensor, inside two or more; in the decoder of a translator the
encoder's result crosses too, in a U-Net the skips. A wider minimum between two narrower ones is a
cut only if a good part of the model's products is between these (`LARGE`). So a stage never begins
inside one attention, whose split over shards is found as a whole. A run with neither parameters nor
a product joins the run before it.

Runs with equal calls, shapes and wiring are of one kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gnnplace.plans.segments.chain import Segment, Tied
from gnnplace.torch_names import pytree
from gnnplace.tracing import PARAMETER, SHAPE, CallGraph, CallRef, LayerCall, Rule

NEARBY = 8  # calls on both sides of a cut
# The share of the model's FLOPs between the narrower places on both sides of a cut.
LARGE = 0.25
MOST = 256  # segments
FUSED = "scaled_dot_product_attention"
PRODUCTS = ("matmul", "bmm", "baddbmm", "einsum")


@dataclass(frozen=True, eq=False)
class Cuts:
    """A model's calls as segments.

    Attributes:
        runs: First call and the call after the last, of every segment.
        segments: Names and kinds of the segments.
        crossing: Values that cross the cut before every segment; none before the first. [segments]
        derived: Values that come from parameters. Every stage makes the others for itself.
        aside: Calls that make only such others; they are in no segment.
        tied: Parameters that several segments read.
        shared: Buffers that the forward pass changes and that calls apart from each other use.
    """

    runs: tuple[tuple[int, int], ...]
    segments: tuple[Segment, ...]
    crossing: tuple[tuple[int, ...], ...]
    derived: frozenset[int]
    aside: frozenset[int]
    tied: tuple[Tied, ...]
    shared: tuple[str, ...] = ()


def find_cuts(graph: CallGraph, rules: Sequence[Rule]) -> Cuts:
    """Cut a model's calls into segments.

    Args:
        graph: The calls.
        rules: How each of them may be split.
    """
    parameters = {i for i, v in enumerate(graph.values) if v.source == PARAMETER}
    for call in graph.calls:
        if parameters.intersection(call.reads):
            parameters.update(call.results)
    derived = frozenset(parameters)  # values that parameters have a part in
    aside = frozenset(
        i
        for i, c in enumerate(graph.calls)
        if c.results and not derived.intersection(c.results)
    )
    crossing = _crossing(graph, rules, derived, aside)
    joined = _find_joined_positions(graph, aside)
    # A buffer joins layers if a cut would be at its positions without it.
    free = _starts(graph, rules, crossing, aside, frozenset())
    shared = tuple(
        name for name, positions in joined.items() if positions.intersection(free)
    )
    starts = _starts(graph, rules, crossing, aside, frozenset().union(*joined.values()))
    ends = [*starts[1:], len(graph.calls)]
    runs = tuple(zip(starts, ends, strict=True))
    kinds: dict[Any, int] = {}
    segments = tuple(_segment(graph, run, aside, kinds) for run in runs)
    return Cuts(
        runs,
        segments,
        tuple(crossing[start] if start else () for start in starts),
        derived,
        aside,
        _find_tied(graph, runs),
        shared,
    )


def attention_runs(graph: CallGraph, calls: Sequence[int]) -> list[range]:
    """Return the runs of calls that make attention's result from queries, keys and values.

    Fused attention is one call. Otherwise a run is a softmax and what is between the nearest
    products of two activations before and after it: scores, mask, softmax and dropout (what
    Megatron's selective recomputation takes again, Korthikanti et al., 2022, arXiv 2205.05198).

    Args:
        graph: The model's calls.
        calls: Indices of the calls that are looked at.
    """

    def product(index: int) -> bool:
        reads = [graph.values[v] for v in graph.calls[index].reads]
        trained = [v for v in reads if v.source != PARAMETER and v.gradient]
        return graph.calls[index].kind in PRODUCTS and len(trained) > 1

    runs: list[range] = []
    products = [i for i in calls if product(i)]
    for i in calls:
        if graph.calls[i].kind == FUSED:
            runs.append(range(i, i + 1))
        elif graph.calls[i].kind == "softmax":
            product_before = max((p for p in products if p < i), default=-1)
            product_after = min((p for p in products if p > i), default=-1)
            if min(product_before, product_after) >= 0 and not any(
                product_before in run for run in runs
            ):
                runs.append(range(product_before, product_after + 1))
    return runs


def _roots(graph: CallGraph, rules: Sequence[Rule]) -> dict[int, int]:
    """Return the tensor that each value is a view of; its own where it is none."""
    root: dict[int, int] = {}
    for call, rule in zip(graph.calls, rules, strict=True):
        views = rule.kind == SHAPE and len(call.reads) == 1
        for value in call.results:
            root[value] = root.get(call.reads[0], call.reads[0]) if views else value
    return root


def _crossing(
    graph: CallGraph,
    rules: Sequence[Rule],
    derived: frozenset[int],
    aside: frozenset[int],
) -> list[tuple[int, ...]]:
    """Return the values that cross every position, one of all views of a tensor. [calls + 1]

    Args:
        graph: The model's calls.
        rules: How each of them may be split.
        derived: Values that come from parameters; others do not cross.
        aside: Calls that are in no segment.
    """
    makers = {
        v: i for i, c in enumerate(graph.calls) for v in c.results if v in derived
    }
    last = {}
    for i, call in enumerate(graph.calls):
        if i not in aside:
            last.update({v: i for v in call.reads if v in makers})
    for leaf in pytree.tree_leaves(graph.output):
        if isinstance(leaf, CallRef) and leaf.value in makers:
            last[leaf.value] = len(graph.calls)
    root = _roots(graph, rules)
    crossing: list[dict[int, int]] = [{} for _ in range(len(graph.calls) + 1)]
    for value, end in last.items():
        for position in range(makers[value] + 1, end + 1):
            crossing[position].setdefault(root.get(value, value), value)
    return [tuple(sorted(values.values())) for values in crossing]


def _find_joined_positions(
    graph: CallGraph, aside: frozenset[int]
) -> dict[str, frozenset[int]]:
    """Return the positions between calls that share a buffer, by buffers that the pass changes.

    Two stages would each have a buffer of their own there. A call beside the segments runs where
    its results are read; one that changes the buffer runs with the call after it.
    """
    positions: dict[str, frozenset[int]] = {}
    within = [i for i in range(len(graph.calls)) if i not in aside]
    for name, changing in graph.changed.items():
        todo = [*graph.readers(name), *changing]
        users = set[int]()
        visited = set[int]()
        while todo:
            index = todo.pop()
            if index in visited:
                continue
            visited.add(index)
            if index not in aside:
                users.add(index)
            elif index in changing:
                users.add(next((i for i in within if i > index), within[-1]))
            else:
                results = set(graph.calls[index].results)
                todo += [
                    i
                    for i, c in enumerate(graph.calls)
                    if results.intersection(c.reads)
                ]
        first = min(users, default=0)
        last = max(users, default=0)
        positions[name] = frozenset(range(first + 1, last + 1))
    return positions


def _starts(
    graph: CallGraph,
    rules: Sequence[Rule],
    crossing: Sequence[tuple[int, ...]],
    aside: frozenset[int],
    joined: frozenset[int],
) -> list[int]:
    """Return the first calls of segments, `MOST` of them at most.

    Args:
        graph: The model's calls.
        rules: How each of them may be split.
        crossing: Values that cross every position. [calls + 1]
        aside: Calls that are in no segment.
        joined: Positions at which no segment may begin.
    """
    count = [len(values) for values in crossing]
    total = len(graph.calls)
    flops = np.concatenate([[0.0], np.cumsum([rule.flops for rule in rules])])
    starts = [0]
    for position in range(1, total):
        near = count[max(1, position - NEARBY) : min(total, position + NEARBY + 1)]
        if position in joined or not count[position] or count[position] > min(near):
            continue
        if not _large(count, flops, position):
            continue
        if _substantial(
            graph, rules, range(starts[-1], position), aside
        ) and _substantial(graph, rules, range(position, total), aside):
            starts.append(position)
    while len(starts) > MOST:
        starts = starts[::2]
    return starts


def _large(count: Sequence[int], flops: np.ndarray, position: int) -> bool:
    """Return whether a good part of the flops is between the narrower positions on both sides.

    All is between them if there are none. A position that one value crosses needs no such part.
    """
    size = count[position]
    last = len(count) - 1
    start = next((p for p in range(position, 0, -1) if count[p] < size), 0)
    end = next((p for p in range(position, last) if count[p] < size), last)
    if size == 1:
        return True
    return bool(flops[end] - flops[start] >= LARGE * flops[-1])


def _substantial(
    graph: CallGraph, rules: Sequence[Rule], calls: range, aside: frozenset[int]
) -> bool:
    """Return whether any of the calls has parameters or a product."""
    for i in calls:
        if i in aside:
            continue
        if rules[i].flops > 0:
            return True
        if any(graph.values[v].source == PARAMETER for v in graph.calls[i].reads):
            return True
    return False


def _segment(
    graph: CallGraph, run: tuple[int, int], aside: frozenset[int], kinds: dict[Any, int]
) -> Segment:
    calls = [graph.calls[i] for i in range(*run) if i not in aside]
    signature = _signature(graph, calls)
    return Segment(
        calls[0].name if calls else f"segment {run[0]}",
        tuple(call.name for call in calls),
        tuple(dict.fromkeys(call.module for call in calls if call.module)),
        kinds.setdefault(signature, len(kinds)),
    )


def _signature(graph: CallGraph, calls: Sequence[LayerCall]) -> Any:
    """Return what equal runs have in common: functions, constants, shapes, and what reads what."""
    numbers: dict[int, int] = {}

    def place(leaf: object) -> object:
        if not isinstance(leaf, CallRef):
            return repr(leaf)
        info = graph.values[leaf.value]
        known = numbers.setdefault(leaf.value, len(numbers))
        return known, info.shape, str(info.dtype), info.source, info.gradient

    signature = []
    for call in calls:
        arguments = tuple(
            place(x) for x in pytree.tree_leaves((call.args, call.kwargs))
        )
        results = tuple(numbers.setdefault(v, len(numbers)) for v in call.results)
        shapes = tuple(graph.values[v].shape for v in call.results)
        signature.append((call.kind, arguments, results, shapes, call.gradient))
    return tuple(signature)


def _find_tied(graph: CallGraph, runs: Sequence[tuple[int, int]]) -> tuple[Tied, ...]:
    readers: dict[int, dict[int, None]] = {}
    for segment, run in enumerate(runs):
        for i in range(*run):
            for value in graph.calls[i].reads:
                if (
                    graph.values[value].source == PARAMETER
                    and graph.values[value].gradient
                ):
                    readers.setdefault(value, {})[segment] = None
    return tuple(
        Tied(
            graph.values[v].name,
            tuple(reading_segments),
            float(torch.Size(graph.values[v].shape).numel()),
        )
        for v, reading_segments in readers.items()
        if len(reading_segments) > 1
    )
