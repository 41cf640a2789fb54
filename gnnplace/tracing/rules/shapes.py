"""Rules of calls that move or cut axes and compute nothing.

Queries, keys and values that one layer makes side by side: a layer whose features are cut into
equal pieces afterwards (``split``, ``chunk``, or a ``view`` that gives the pieces an axis of their
own) could be split along its features only by parts that lie in one piece. Here it is split within
each piece instead: each device makes the same heads of queries, of keys and of values. The label of
such an axis says how many pieces there are: ``out|3``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from gnnplace.tracing.calls import CALL, PARAMETER, CallGraph, CallRef, LayerCall, fill
from gnnplace.tracing.rules import base_label
from gnnplace.tracing.rules.rule import (
    ROWS,
    Axes,
    Case,
    Rule,
    RuleDraft,
    Share,
    local_shape,
    numbered,
    whole,
)

SHAPE = "shape"
PIECES = (2, 3)
"""Sizes of an axis that stands for things side by side rather than for something to split."""
PIECE = "piece"
CUTS = ("split", "chunk")
PRODUCTS = ("linear", "convolution")


def reshaped(case: Case) -> Rule:
    """`view` and its kin, from the shapes alone.

    Axes are matched in groups of equal size; of a group, the outermost axis can be split on both
    sides: contiguous parts of it are contiguous parts of the whole group. Where one axis becomes
    two or three pieces, such as queries, keys and values, and is not the batch, each is split.
    """
    if case.call.argument(1, "dtype") is not None and isinstance(
        case.call.argument(1, "dtype"), torch.dtype
    ):
        return whole(case, "a view as another type")
    before, after = case.shapes[0], case.results[0]
    inner, outer = _grouped(before, after)
    made = case.reads(inner).rule(SHAPE, outer)
    return replace(made, run=_remade(torch.Tensor.reshape, made.results[0], after))


def _grouped(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[Axes, Axes]:
    inner: list[str | None] = [None] * len(before)
    outer: list[str | None] = [None] * len(after)
    i = j = 0
    while i < len(before) and j < len(after):
        first = (_skip_ones(before, i), _skip_ones(after, j))
        i, j = first
        if i == len(before) or j == len(after):
            break
        left, right = before[i], after[j]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                left, i = left * before[i], i + 1
            else:
                right, j = right * after[j], j + 1
        pieces = after[first[1]]
        if first[0] > 0 and pieces in PIECES and i == first[0] + 1 and j > first[1] + 1:
            within = first[1] + 1
            inner[first[0]], outer[within] = f"{within}|{pieces}", str(within)
        else:
            inner[first[0]] = outer[first[1]] = str(first[1])
            if max(i, j) == 2:
                _label_rows(before[:i], after[:j], inner, outer)
    return tuple(inner), tuple(outer)


def _label_rows(
    before: tuple[int, ...],
    after: tuple[int, ...],
    inner: list[str | None],
    outer: list[str | None],
) -> None:
    """Rows of examples, where the first two axes become one or one becomes two."""
    many, one, sizes = (inner, outer, before) if len(before) > len(after) else (outer, inner, after)
    if len(before) + len(after) == 3 and sizes[1] > 1:
        several = f"{one[0]}/" if sizes[0] > 1 else ""
        many[1], one[0] = ROWS, f"{several}{ROWS}|{sizes[0]}"


def _skip_ones(shape: tuple[int, ...], axis: int) -> int:
    while axis < len(shape) and shape[axis] == 1:
        axis += 1
    return axis


def _remade(
    method: Callable[..., torch.Tensor], axes: Axes, shape: tuple[int, ...]
) -> Callable[..., torch.Tensor]:
    def run(call: LayerCall, args: Any, kwargs: Any, share: Share) -> torch.Tensor:
        return method(args[0], local_shape(axes, shape, share))

    return run


def permuted(case: Case) -> Rule:
    """`transpose`, `permute`, `movedim` and `t`, by what they make of sizes that count the axes."""
    rank, call = len(case.shapes[0]), case.call
    counted = torch.empty(tuple(range(rank)), device="meta")
    args, kwargs = fill((call.args, call.kwargs), lambda _: counted)
    order = call.function(*args, **kwargs).shape
    return case.reads(numbered(rank)).rule(SHAPE, tuple(str(int(axis)) for axis in order))


def expanded(case: Case) -> Rule:
    """`expand`: axes of size one are repeated, on each device as many as it has."""
    before, after = case.shapes[0], case.results[0]
    axes = numbered(len(after))
    new = len(after) - len(before)
    draft = RuleDraft(case)
    pairs = zip(before, axes[new:], after[new:], strict=True)
    draft.read(0, tuple(label if size == want else None for size, label, want in pairs))
    draft.read(1 if len(case.shapes) > 1 else None, axes)  # `expand_as`
    made = draft.rule(SHAPE, axes)
    return replace(made, run=_remade(torch.Tensor.expand, made.results[0], after))


def repeated(case: Case) -> Rule:
    """`repeat` and `repeat_interleave`: along axes that are not repeated."""
    before, after = case.shapes[0], case.results[0]
    new = len(after) - len(before)
    if len(case.shapes) > 1 or new < 0:
        return whole(case, "it repeats by numbers of a tensor, or in one axis")
    longer = (k for k, size in enumerate(after) if k < new or size != before[k - new])
    axes = numbered(len(after), *longer)
    return case.reads(axes[new:]).rule(SHAPE, axes)


def kept(case: Case) -> Rule:
    """Calls that leave every axis where it is: `contiguous`, `to`, `detach`."""
    draft = RuleDraft(case)
    axes = numbered(len(case.shapes[0]))
    draft.read(0, axes)
    return draft.rule(SHAPE, axes)


def indexed(case: Case) -> Rule:
    """`x[...]` with numbers, slices, None and `...`; whole axes alone can be split."""
    found = _indexed_axes(case)
    if found is None:
        return whole(case, "an index that is a tensor")
    return case.reads(found[0]).rule(SHAPE, found[1])


def assigned(case: Case) -> Rule:
    """`x[...] = y`: as `x[...]`, of whose axes y has the last, or one element along them."""
    found = _indexed_axes(case)
    if found is None or len(case.shapes) > 2:
        return whole(case, "an index that is a tensor")
    before, after = found
    draft = RuleDraft(case)
    if len(case.shapes) == 2:
        given, base = case.shapes[1], case.shapes[0]
        if len(given) > len(after):
            return whole(case, "it assigns more axes than there are")
        sizes = {label: size for label, size in zip(before, base, strict=True) if label}
        own = zip(after[len(after) - len(given) :], given, strict=True)
        draft.read(1, tuple(x if x is not None and sizes[x] == size else None for x, size in own))
    draft.read(0, before)
    return draft.rule(SHAPE, before)


def as_complex(case: Case) -> Rule:
    """`view_as_complex` and `view_as_real`: the axis of the two parts stays whole."""
    axes = numbered(min(len(case.shapes[0]), len(case.results[0])))
    draft = RuleDraft(case)
    more = len(case.shapes[0]) - len(axes), len(case.results[0]) - len(axes)
    draft.read(0, (*axes, *[None] * more[0]))
    return draft.rule(SHAPE, (*axes, *[None] * more[1]))


def made_like(case: Case) -> Rule:
    """`new_empty` and its kin: axes that are as long as those of the tensor they are like."""
    before, after = case.shapes[0], case.results[0]
    pairs = zip(before, after, strict=False)
    axes = [str(k) if a == b else None for k, (a, b) in enumerate(pairs)]
    made = case.reads((*axes, *[None] * (len(before) - len(axes)))).rule(
        SHAPE, (*axes, *[None] * (len(after) - len(axes)))
    )

    def run(call: LayerCall, args: Any, kwargs: Any, share: Share) -> torch.Tensor:
        shape = local_shape(made.results[0], after, share)
        value = [args[2] if len(args) > 2 else kwargs.get("fill_value")] * (call.kind == "new_full")
        rest = {k: v for k, v in kwargs.items() if k not in ("size", "fill_value")}
        return call.function(args[0], shape, *value, **rest)

    return replace(made, run=run)


def _indexed_axes(case: Case) -> tuple[Axes, Axes] | None:
    """Labels of a tensor and of what an index takes of it; None: a tensor is among the indices."""
    index = case.call.args[1]
    items = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(item, CallRef | list | torch.Tensor | bool) for item in items):
        return None
    rank = len(case.shapes[0])
    taken = sum(item is not None and item is not Ellipsis for item in items)
    if Ellipsis in items:
        at = items.index(Ellipsis)
        items[at : at + 1] = [slice(None)] * (rank - taken)
    else:
        items += [slice(None)] * (rank - taken)
    return _kept_axes(items, case.shapes[0])


def _kept_axes(items: list[Any], shape: tuple[int, ...]) -> tuple[Axes, Axes]:
    before: list[str | None] = []
    after: list[str | None] = []
    for item in items:
        if item is None:
            after.append(None)
            continue
        axis = len(before)
        full = isinstance(item, slice) and item.indices(shape[axis]) == (0, shape[axis], 1)
        before.append(str(axis) if full else None)
        if isinstance(item, slice):
            after.append(before[-1])
    return tuple(before), tuple(after)


def pieces(case: Case) -> Rule:
    """`split`, `unbind`, `narrow`, `slice`, …: the axis that is cut stays whole."""
    position = 1 if case.call.kind in ("unbind", "narrow", "select", "slice") else 2
    rank = len(case.shapes[0])
    axis = int(case.call.argument(position, "dim", 0)) % rank
    axes = numbered(rank, axis)
    gone = case.call.kind in ("unbind", "select")
    made = tuple(label for i, label in enumerate(axes) if i != axis) if gone else axes
    return case.reads(axes).rule(SHAPE, *[made] * len(case.results))


def joined(case: Case) -> Rule:
    """`cat` and `stack`: the axis along which they join stays whole."""
    stack = case.call.kind == "stack"
    rank = len(case.results[0])
    axis = int(case.call.argument(1, "dim", 0)) % rank
    made = numbered(rank, axis)
    if any(len(shape) != rank - stack for shape in case.shapes):
        return whole(case, "tensors of several ranks")
    read = tuple(label for i, label in enumerate(made) if i != axis) if stack else made
    draft = RuleDraft(case)
    for slot in range(len(case.shapes)):
        draft.read(slot, read)
    return draft.rule(SHAPE, made)


def padded(case: Case) -> Rule:
    """`pad`: axes that grow stay whole."""
    before, after = case.shapes[0], case.results[0]
    amounts = case.call.argument(1, "pad")
    grown = [len(before) - 1 - k // 2 for k, amount in enumerate(amounts) if amount]
    axes = numbered(len(before), *grown)
    return case.reads(axes).rule(SHAPE, axes) if math.prod(after) else whole(case)


RESHAPED = ("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "ravel")
KEPT = (
    "contiguous",
    "to",
    "float",
    "half",
    "bfloat16",
    "double",
    "detach",
    "clone",
    "type",
    "type_as",
    "long",
    "int",
    "bool",
    "alias",
    "data",
    "requires_grad",
    "cpu",
    "cuda",
    "zeros_like",
    "ones_like",
    "empty_like",
    "full_like",
)
SHAPE_RULES: dict[str, Callable[[Case], Rule]] = {
    **dict.fromkeys(RESHAPED, reshaped),
    **dict.fromkeys(KEPT, kept),
    **dict.fromkeys(
        (
            "transpose",
            "permute",
            "t",
            "T",
            "mT",
            "adjoint",
            "swapaxes",
            "swapdims",
            "movedim",
            "moveaxis",
            "numpy_T",
        ),
        permuted,
    ),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), expanded),
    **dict.fromkeys(("repeat", "repeat_interleave"), repeated),
    **dict.fromkeys(
        (
            "split",
            "split_with_sizes",
            "unsafe_split",
            "unsafe_chunk",
            "tensor_split",
            "chunk",
            "unbind",
            "narrow",
            "select",
            "slice",
        ),
        pieces,
    ),
    **dict.fromkeys(("cat", "concat", "concatenate", "stack"), joined),
    "getitem": indexed,
    "setitem": assigned,
    **dict.fromkeys(("view_as_complex", "view_as_real"), as_complex),
    **dict.fromkeys(("new_empty", "new_zeros", "new_ones", "new_full"), made_like),
    **dict.fromkeys(("pad", "constant_pad_nd"), padded),
}


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
                found[index] = _in_groups(graph.calls[index], found[index], label, pieces, graph)
    return tuple(found)


def _folded_axis(rule: Rule) -> tuple[int, int] | None:
    """The axis that a call reshapes into pieces and their features, and the number of pieces."""
    if rule.kind != SHAPE:
        return None
    labels = enumerate(rule.reads[0])
    folded = (
        (k, x.split("|")[1]) for k, x in labels if x is not None and "|" in x and "/" not in x
    )
    return next(((k, int(pieces)) for k, pieces in folded), None)


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
        if label is None or "|" in label or label == ROWS:
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


def _in_groups(call: LayerCall, rule: Rule, label: str, pieces: int, graph: CallGraph) -> Rule:
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
