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
    Keywords,
    Operands,
    Rule,
    RuleDraft,
    Share,
    local_shape,
    make_unsplit_rule,
    number_axes,
)

SHAPE = "shape"
PIECES = (2, 3)
"""Sizes of an axis that stands for things side by side rather than for something to split."""
PIECE = "piece"
CUTS = ("split", "chunk")
PRODUCTS = ("linear", "convolution")


def split_reshape(case: Case) -> Rule:
    """Split `view` and its kin, from the shapes alone.

    Axes are matched in groups of equal size; of a group, the outermost axis can be split on both
    sides: contiguous parts of it are contiguous parts of the whole group. Where one axis becomes
    two or three pieces, such as queries, keys and values, and is not the batch, each is split.
    """
    if isinstance(case.call.argument(1, "dtype"), torch.dtype):
        return make_unsplit_rule(case, "a view as another type")
    shape_before = case.shapes[0]
    shape_after = case.results[0]
    read_axes, result_axes = _group_labels(shape_before, shape_after)
    rule = case.reads(read_axes).rule(SHAPE, result_axes)
    return replace(
        rule, run=_remade(torch.Tensor.reshape, rule.results[0], shape_after)
    )


def _group_labels(
    shape_before: tuple[int, ...], shape_after: tuple[int, ...]
) -> tuple[Axes, Axes]:
    """Return the labels of a tensor before and after it is reshaped."""
    labels_before: list[str | None] = [None] * len(shape_before)
    labels_after: list[str | None] = [None] * len(shape_after)
    i = 0
    j = 0
    while i < len(shape_before) and j < len(shape_after):
        # The first axes of the next group before and after, and the axes behind its last.
        first_before = _skip_ones(shape_before, i)
        first_after = _skip_ones(shape_after, j)
        i = first_before
        j = first_after
        if i == len(shape_before) or j == len(shape_after):
            break
        size_before = shape_before[i]
        size_after = shape_after[j]
        i = i + 1
        j = j + 1
        while size_before != size_after:
            if size_before < size_after:
                size_before *= shape_before[i]
                i += 1
            else:
                size_after *= shape_after[j]
                j += 1

        # One axis that becomes a few pieces is split within each piece.
        num_pieces = shape_after[first_after]
        is_one_axis = i == first_before + 1 and j > first_after + 1
        if first_before > 0 and num_pieces in PIECES and is_one_axis:
            within = first_after + 1
            labels_before[first_before] = f"{within}|{num_pieces}"
            labels_after[within] = str(within)
        else:
            labels_before[first_before] = labels_after[first_after] = str(first_after)
            if max(i, j) == 2:
                _label_rows(
                    shape_before[:i], shape_after[:j], labels_before, labels_after
                )
    return tuple(labels_before), tuple(labels_after)


def _label_rows(
    shape_before: tuple[int, ...],
    shape_after: tuple[int, ...],
    labels_before: list[str | None],
    labels_after: list[str | None],
) -> None:
    """Label rows of examples, where the first two axes become one or one becomes two."""
    apart, merged, sizes = (
        (labels_before, labels_after, shape_before)
        if len(shape_before) > len(shape_after)
        else (labels_after, labels_before, shape_after)
    )
    if len(shape_before) + len(shape_after) == 3 and sizes[1] > 1:
        if sizes[0] > 1:
            examples = f"{merged[0]}/"
        else:
            examples = ""
        apart[1] = ROWS
        merged[0] = f"{examples}{ROWS}|{sizes[0]}"


def _skip_ones(shape: tuple[int, ...], axis: int) -> int:
    """Return the first axis from `axis` on that is longer than one."""
    while axis < len(shape) and shape[axis] == 1:
        axis += 1
    return axis


def _remade(
    method: Callable[..., torch.Tensor], axes: Axes, shape: tuple[int, ...]
) -> Callable[..., torch.Tensor]:
    """Return the runner that makes a part of its own shape by `method`."""

    def run(
        call: LayerCall, args: Operands, kwargs: Keywords, share: Share
    ) -> torch.Tensor:
        return method(args[0], local_shape(axes, shape, share))

    return run


def split_permute(case: Case) -> Rule:
    """Split `transpose`, `permute`, `movedim` and `t`, which tell by sizes that count the axes."""
    rank = len(case.shapes[0])
    call = case.call
    counted = torch.empty(tuple(range(rank)), device="meta")
    args, kwargs = fill((call.args, call.kwargs), lambda _: counted)
    order = call.function(*args, **kwargs).shape
    return case.reads(number_axes(rank)).rule(
        SHAPE, tuple(str(int(axis)) for axis in order)
    )


def split_expand(case: Case) -> Rule:
    """Split `expand`: axes of size one are repeated, on each device as many as it has."""
    shape_before = case.shapes[0]
    shape_after = case.results[0]
    axes = number_axes(len(shape_after))
    new = len(shape_after) - len(shape_before)
    draft = RuleDraft(case)
    pairs = zip(shape_before, axes[new:], shape_after[new:], strict=True)
    draft.read(0, tuple(label if size == want else None for size, label, want in pairs))
    draft.read(1 if len(case.shapes) > 1 else None, axes)  # `expand_as`
    rule = draft.rule(SHAPE, axes)
    return replace(rule, run=_remade(torch.Tensor.expand, rule.results[0], shape_after))


def split_repeat(case: Case) -> Rule:
    """Split `repeat` and `repeat_interleave` along axes that are not repeated."""
    shape_before = case.shapes[0]
    shape_after = case.results[0]
    new = len(shape_after) - len(shape_before)
    if len(case.shapes) > 1 or new < 0:
        return make_unsplit_rule(
            case, "it repeats by numbers of a tensor, or in one axis"
        )
    longer = (
        k
        for k, size in enumerate(shape_after)
        if k < new or size != shape_before[k - new]
    )
    axes = number_axes(len(shape_after), *longer)
    return case.reads(axes[new:]).rule(SHAPE, axes)


def split_unmoved(case: Case) -> Rule:
    """Split calls that leave every axis where it is: `contiguous`, `to`, `detach`."""
    draft = RuleDraft(case)
    axes = number_axes(len(case.shapes[0]))
    draft.read(0, axes)
    return draft.rule(SHAPE, axes)


def split_getitem(case: Case) -> Rule:
    """Split `x[...]` with numbers, slices, None and `...` along axes that are taken entirely."""
    axes = _find_indexed_axes(case)
    if axes is None:
        return make_unsplit_rule(case, "an index that is a tensor")
    return case.reads(axes[0]).rule(SHAPE, axes[1])


def split_setitem(case: Case) -> Rule:
    """Split `x[...] = y` as `x[...]`; y has its last axes, or one element along them."""
    axes = _find_indexed_axes(case)
    if axes is None or len(case.shapes) > 2:
        return make_unsplit_rule(case, "an index that is a tensor")
    read_axes, result_axes = axes
    draft = RuleDraft(case)
    if len(case.shapes) == 2:
        value_shape = case.shapes[1]
        base = case.shapes[0]
        if len(value_shape) > len(result_axes):
            return make_unsplit_rule(case, "it assigns more axes than there are")
        sizes = {
            label: size for label, size in zip(read_axes, base, strict=True) if label
        }
        last_axes = result_axes[len(result_axes) - len(value_shape) :]
        pairs = zip(last_axes, value_shape, strict=True)
        draft.read(
            1, tuple(x if x is not None and sizes[x] == n else None for x, n in pairs)
        )
    draft.read(0, read_axes)
    return draft.rule(SHAPE, read_axes)


def as_complex(case: Case) -> Rule:
    """Split `view_as_complex` and `view_as_real` but along the axis of the two parts."""
    axes = number_axes(min(len(case.shapes[0]), len(case.results[0])))
    draft = RuleDraft(case)
    num_parts_axes = len(case.shapes[0]) - len(axes), len(case.results[0]) - len(axes)
    draft.read(0, (*axes, *[None] * num_parts_axes[0]))
    return draft.rule(SHAPE, (*axes, *[None] * num_parts_axes[1]))


def split_new_like(case: Case) -> Rule:
    """Split `new_empty` and its kin along axes as long as those of the tensor they are like."""
    shape_before = case.shapes[0]
    shape_after = case.results[0]
    pairs = zip(shape_before, shape_after, strict=False)
    axes = [str(k) if a == b else None for k, (a, b) in enumerate(pairs)]
    rule = case.reads((*axes, *[None] * (len(shape_before) - len(axes)))).rule(
        SHAPE, (*axes, *[None] * (len(shape_after) - len(axes)))
    )

    def run(
        call: LayerCall, args: Operands, kwargs: Keywords, share: Share
    ) -> torch.Tensor:
        shape = local_shape(rule.results[0], shape_after, share)
        options = {k: v for k, v in kwargs.items() if k not in ("size", "fill_value")}
        if call.kind != "new_full":
            return call.function(args[0], shape, **options)
        if len(args) > 2:
            value = args[2]
        else:
            value = kwargs.get("fill_value")
        return call.function(args[0], shape, value, **options)

    return replace(rule, run=run)


def _find_indexed_axes(case: Case) -> tuple[Axes, Axes] | None:
    """Return labels of a tensor and of what an index takes of it; None if an index is a tensor."""
    index = case.call.args[1]
    if isinstance(index, tuple):
        items = list(index)
    else:
        items = [index]
    if any(isinstance(item, CallRef | list | torch.Tensor | bool) for item in items):
        return None
    rank = len(case.shapes[0])
    num_taken = sum(item is not None and item is not Ellipsis for item in items)
    if Ellipsis in items:
        position = items.index(Ellipsis)
        items[position : position + 1] = [slice(None)] * (rank - num_taken)
    else:
        items += [slice(None)] * (rank - num_taken)
    return _entire_axes(items, case.shapes[0])


def _entire_axes(items: list[Any], shape: tuple[int, ...]) -> tuple[Axes, Axes]:
    """Return labels of the axes that every item of an index takes entirely, before and after."""
    read_axes: list[str | None] = []
    result_axes: list[str | None] = []
    for item in items:
        if item is None:
            result_axes.append(None)
            continue
        axis = len(read_axes)
        is_entire = isinstance(item, slice) and item.indices(shape[axis]) == (
            0,
            shape[axis],
            1,
        )
        read_axes.append(str(axis) if is_entire else None)
        if isinstance(item, slice):
            result_axes.append(read_axes[-1])
    return tuple(read_axes), tuple(result_axes)


def pieces(case: Case) -> Rule:
    """Split `split`, `unbind`, `narrow`, `slice`, … but along the axis that they cut."""
    if case.call.kind in ("unbind", "narrow", "select", "slice"):
        position = 1
    else:
        position = 2
    rank = len(case.shapes[0])
    axis = int(case.call.argument(position, "dim", 0)) % rank
    axes = number_axes(rank, axis)
    drops_axis = case.call.kind in ("unbind", "select")
    if drops_axis:
        result_axes = tuple(label for i, label in enumerate(axes) if i != axis)
    else:
        result_axes = axes
    return case.reads(axes).rule(SHAPE, *[result_axes] * len(case.results))


def split_cat(case: Case) -> Rule:
    """Split `cat` and `stack` but along the axis along which they join."""
    stack = case.call.kind == "stack"
    rank = len(case.results[0])
    axis = int(case.call.argument(1, "dim", 0)) % rank
    result_axes = number_axes(rank, axis)
    if any(len(shape) != rank - stack for shape in case.shapes):
        return make_unsplit_rule(case, "tensors of several ranks")
    if stack:
        read_axes = tuple(label for i, label in enumerate(result_axes) if i != axis)
    else:
        read_axes = result_axes
    draft = RuleDraft(case)
    for slot in range(len(case.shapes)):
        draft.read(slot, read_axes)
    return draft.rule(SHAPE, result_axes)


def split_pad(case: Case) -> Rule:
    """Split `pad` along axes that do not grow."""
    shape_before = case.shapes[0]
    shape_after = case.results[0]
    amounts = case.call.argument(1, "pad")
    grown = [
        len(shape_before) - 1 - k // 2 for k, amount in enumerate(amounts) if amount
    ]
    axes = number_axes(len(shape_before), *grown)
    if math.prod(shape_after):
        return case.reads(axes).rule(SHAPE, axes)
    return make_unsplit_rule(case)


RESHAPED = (
    "view",
    "reshape",
    "flatten",
    "unflatten",
    "squeeze",
    "unsqueeze",
    "view_as",
    "ravel",
)
UNMOVED = (
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
    **dict.fromkeys(RESHAPED, split_reshape),
    **dict.fromkeys(UNMOVED, split_unmoved),
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
        split_permute,
    ),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), split_expand),
    **dict.fromkeys(("repeat", "repeat_interleave"), split_repeat),
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
    **dict.fromkeys(("cat", "concat", "concatenate", "stack"), split_cat),
    "getitem": split_getitem,
    "setitem": split_setitem,
    **dict.fromkeys(("view_as_complex", "view_as_real"), as_complex),
    **dict.fromkeys(("new_empty", "new_zeros", "new_ones", "new_full"), split_new_like),
    **dict.fromkeys(("pad", "constant_pad_nd"), split_pad),
}


def with_groups(graph: CallGraph, rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Return rules with layers that feed a cut into equal pieces split within the pieces."""
    grouped_rules = list(rules)
    producer = {v: i for i, call in enumerate(graph.calls) for v in call.results}
    readers: dict[int, int] = {}
    for call in graph.calls:
        for value in call.reads:
            readers[value] = readers.get(value, 0) + 1
    for i, call in enumerate(graph.calls):
        cut = _cut_axis(graph, call) or _find_folded_axis(grouped_rules[i])
        if cut is None:
            continue
        axis, pieces = cut
        chain = _chain(graph, grouped_rules, producer, readers, i, axis)
        if chain is not None:
            if call.kind in CUTS:
                grouped_rules[i] = _cut_rule(graph, call, grouped_rules[i], axis)
            for index, label in chain:
                grouped_rules[index] = _cut_in_groups(
                    graph.calls[index], grouped_rules[index], label, pieces, graph
                )
    return tuple(grouped_rules)


def _find_folded_axis(rule: Rule) -> tuple[int, int] | None:
    """Return the axis that a call reshapes into pieces and their features, and their number."""
    if rule.kind != SHAPE:
        return None
    for axis, label in enumerate(rule.reads[0]):
        if label is not None and "|" in label and "/" not in label:
            return axis, int(label.split("|")[1])
    return None


def _cut_axis(graph: CallGraph, call: LayerCall) -> tuple[int, int] | None:
    """Return the axis that a call cuts into equal pieces, and their number."""
    if call.kind not in CUTS or len(call.results) < 2:
        return None
    shape = graph.values[call.reads[0]].shape
    axis = int(call.argument(2, "dim", 0)) % len(shape)
    sizes = {graph.values[value].shape[axis] for value in call.results}
    equal = len(sizes) == 1 and len(call.results) * sizes.pop() == shape[axis]
    if equal:
        return (axis, len(call.results))
    return None


def _chain(
    graph: CallGraph,
    rules: Sequence[Rule],
    producer: dict[int, int],
    readers: dict[int, int],
    cut: int,
    axis: int,
) -> list[tuple[int, str]] | None:
    """Return calls from the cut back to the product that makes the axis, each with its label."""
    value = graph.calls[cut].reads[0]
    chain = []
    while graph.values[value].source == CALL and readers[value] == 1:
        index = producer[value]
        rule = rules[index]
        if len(rule.results) == 1:
            label = rule.results[0][axis]
        else:
            label = None
        if label is None or "|" in label or label == ROWS:
            return None
        chain.append((index, label))
        if rule.kind in PRODUCTS:
            if _made_by_parameters(graph, graph.calls[index], rule, label):
                return chain
            return None
        if rule.kind != SHAPE or label not in rule.reads[0]:
            return None
        value = graph.calls[index].reads[0]
        axis = rule.reads[0].index(label)
    return None


def _made_by_parameters(
    graph: CallGraph, call: LayerCall, rule: Rule, label: str
) -> bool:
    """Return whether parameters alone bring the axis."""
    pairs = zip(call.reads, rule.reads, strict=True)
    return all(
        graph.values[value].source == PARAMETER
        for value, axes in pairs
        if label in axes
    )


def _cut_rule(graph: CallGraph, call: LayerCall, rule: Rule, axis: int) -> Rule:
    """Return the rule of the cut: its pieces are parts of the pieces that one device would have."""
    size = graph.values[call.results[0]].shape[axis]
    pieces = len(call.results)
    read = _with(rule.reads[0], axis, f"{PIECE}|{pieces}")
    results = tuple(_with(axes, axis, PIECE) for axes in rule.results)

    def run(call: LayerCall, args: Operands, kwargs: Keywords, share: Share) -> Any:
        return args[0].chunk(pieces, axis)

    return replace(
        rule,
        extents={**rule.extents, PIECE: size},
        reads=(read, *rule.reads[1:]),
        results=results,
        run=run,
    )


def _with(axes: Axes, axis: int, label: str) -> Axes:
    """Return axes with another label at one of them."""
    return (*axes[:axis], label, *axes[axis + 1 :])


def _cut_in_groups(
    call: LayerCall, rule: Rule, label: str, pieces: int, graph: CallGraph
) -> Rule:
    """Return the same rule with one label cutting each of its axis's groups."""

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
