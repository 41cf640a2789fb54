"""Rules of calls that work on every element, or along some axes: additions, softmax, sums, topk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from gnnplace.tracing.calls import LayerCall
from gnnplace.tracing.rules.rule import (
    Axes,
    Case,
    Keywords,
    Operands,
    Rule,
    RuleDraft,
    Share,
    get_local_part,
    make_unsplit_rule,
    number_axes,
)

ELEMENTWISE = "elementwise"
REDUCTION = "reduction"
PLAIN = {  # Python's operators, by the name of the operation
    "iadd": "add",
    "radd": "add",
    "isub": "sub",
    "rsub": "sub",
    "imul": "mul",
    "rmul": "mul",
    "truediv": "div",
    "rtruediv": "div",
    "itruediv": "div",
    "rdiv": "div",
    "idiv": "div",
    "rpow": "pow",
    "ipow": "pow",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "invert": "bitwise_not",
    "floordiv": "floor_divide",
    "mod": "remainder",
}


def is_elementwise(name: str) -> bool:
    """Return whether torch itself calls the operation of that name pointwise."""
    packet = getattr(torch.ops.aten, PLAIN.get(name, name), None)
    if packet is None or not hasattr(packet, "overloads"):
        return False
    return any(
        torch.Tag.pointwise in getattr(packet, o).tags for o in packet.overloads()
    )


def elementwise_rule(case: Case) -> Rule:
    """Split tensors of one shape, or broadcast to it; `max` of one tensor is a reduction."""
    if len(case.shapes[0]) > len(case.results[0]):
        return extreme(case)
    draft = RuleDraft(case)
    labels = number_axes(len(case.results[0]))
    for slot in range(len(case.shapes)):
        draft.read(slot, broadcast(case.shapes[slot], case.results[0], labels))
    return draft.rule(ELEMENTWISE, *[labels] * len(case.results))


def broadcast(shape: tuple[int, ...], result: tuple[int, ...], labels: Axes) -> Axes:
    """Return the labels of a tensor that is broadcast to a result with labels."""
    new = len(result) - len(shape)
    pairs = zip(shape, result[new:], labels[new:], strict=True)
    return tuple(label if size == want else None for size, want, label in pairs)


def dropout(case: Case) -> Rule:
    """Split dropout along every axis.

    Each device draws the mask of the whole tensor and takes its part: the numbers are those of one
    device, as long as all devices draw the same ones.
    """
    axes = number_axes(len(case.results[0]))
    rule = case.reads(axes).rule(ELEMENTWISE, axes)
    return replace(rule, run=_dropout(rule.results[0], case))


def _dropout(axes: Axes, case: Case) -> Callable[..., torch.Tensor]:
    """Return the runner of dropout; `axes` are the labels of the result."""

    def run(
        call: LayerCall, args: Operands, kwargs: Keywords, share: Share
    ) -> torch.Tensor:
        training = call.argument(2, "training", True)
        p = call.argument(1, "p", 0.5)
        if not training or p == 0.0 or args[0].shape == case.results[0]:
            return call.function(*args, **kwargs)
        ones = torch.ones(case.results[0], dtype=args[0].dtype, device=args[0].device)
        mask = torch.nn.functional.dropout(ones, p)
        return args[0] * get_local_part(mask, axes, share)

    return run


def along(position: int, default: object, name: str = "dim") -> Callable[[Case], Rule]:
    """Return the rule of calls that mix elements along some axes; new axes are last.

    Args:
        position: The position of the argument that has the axes.
        default: Where it is not given; None: all axes are mixed.
        name: The name of the argument.
    """

    def rule(case: Case) -> Rule:
        rank = len(case.shapes[0])
        argument = case.call.argument(position, name, default)
        if isinstance(argument, list | tuple):
            dims = argument
        else:
            dims = [argument]
        if not all(isinstance(axis, int) for axis in dims) or not rank:
            return make_unsplit_rule(case, "it mixes all axes")
        axes = number_axes(rank, *dims)
        draft = RuleDraft(case)
        for slot, shape in enumerate(case.shapes):
            draft.read(slot if len(shape) == rank else None, axes)
        return draft.rule(
            ELEMENTWISE,
            *[(*axes, *[None] * (len(shape) - rank)) for shape in case.results],
        )

    return rule


def mixing(*axes: int) -> Callable[[Case], Rule]:
    """Return the rule of calls that always mix the same axes, such as the last two."""
    return along(99, axes, "")


def windows(case: Case) -> Rule:
    """Split `Tensor.unfold` along its axis; `unfold` and `fold` of images along examples alone."""
    rank = len(case.shapes[0])
    result = case.results[0]
    if len(result) > rank and case.call.kind == "unfold":
        return along(1, None, "dimension")(case)
    if max(rank, len(result)) != 4:
        return make_unsplit_rule(case, "windows of one image")
    examples: Axes = ("0", None, None, None)
    return case.reads(examples[:rank]).rule("pool", examples[: len(result)])


def split_gather(case: Case) -> Rule:
    """Split `gather` and `scatter` along axes that are not indexed and are equal in all tensors.

    The result of `gather` may be cut along the indexed axis with its index, the tensor may not.
    """
    rank = len(case.shapes[0])
    axis = case.call.argument(1 + ("take" in case.call.kind), "dim")
    shapes = {shape for shape in (*case.shapes, *case.results) if len(shape) == rank}
    if not isinstance(axis, int) or len(case.results) != 1 or not rank:
        return make_unsplit_rule(case, "an index that is not along one axis")
    unequal_axes = {k for k in range(rank) if len({shape[k] for shape in shapes}) > 1}
    axes = number_axes(rank, axis, *unequal_axes)
    draft = RuleDraft(case)
    if case.call.kind == "gather":
        index_axes = number_axes(rank, *unequal_axes - {axis % rank})
    else:
        index_axes = axes
    for slot, shape in enumerate(case.shapes):
        draft.read(slot if len(shape) == rank else None, index_axes if slot else axes)
    return draft.rule(ELEMENTWISE, index_axes)


def split_index_select(case: Case) -> Rule:
    """Split `index_select` along its other axes, and along the index."""
    rank = len(case.shapes[0])
    axis = case.call.argument(1, "dim")
    if not isinstance(axis, int) or not rank or len(case.shapes[1]) != 1:
        return make_unsplit_rule(case, "an index that is not along one axis")
    axes = number_axes(rank)
    return case.reads(number_axes(rank, axis), (axes[axis],)).rule(ELEMENTWISE, axes)


def similarity(case: Case) -> Rule:
    """Split `cosine_similarity` and `pairwise_distance` but along the axis that they reduce."""
    cosine = case.call.kind == "cosine_similarity"
    rank = max(map(len, case.shapes))
    if cosine:
        over = int(case.call.argument(2, "dim", 1)) % rank
    else:
        over = rank - 1
    if case.call.argument(4, "keepdim", False):
        return make_unsplit_rule(case, "an axis that is kept")
    axes = number_axes(rank, over)
    draft = RuleDraft(case)
    padded = [(1,) * (rank - len(shape)) + shape for shape in case.shapes]
    full = tuple(map(max, zip(*padded, strict=True)))
    for slot, shape in enumerate(case.shapes):
        draft.read(slot, broadcast(shape, full, axes))
    return draft.rule(REDUCTION, list_remaining_axes(axes, [over], keep=False))


def split_reduction(case: Case) -> Rule:
    """Split `sum` and `mean`: a part of a sum is a sum; a mean of fewer is scaled."""
    rank = len(case.shapes[0])
    reduced, keeps_axes = find_reduced_axes(case, rank)
    axes = number_axes(rank)
    left_labels = list_remaining_axes(axes, reduced, keeps_axes)
    draft = case.reads(axes)
    over = [str(axis) for axis in reduced]
    return draft.rule(
        REDUCTION, left_labels, run=_mean(over) if case.call.kind == "mean" else None
    )


def extreme(case: Case) -> Rule:
    """Split `amax`, `argmax`, `std`, `norm`, … along axes that they do not reduce."""
    rank = len(case.shapes[0])
    reduced, keeps_axes = find_reduced_axes(case, rank)
    axes = number_axes(rank, *reduced)
    return case.reads(axes).rule(
        REDUCTION, *[list_remaining_axes(axes, reduced, keeps_axes)] * len(case.results)
    )


def find_reduced_axes(case: Case, rank: int) -> tuple[list[int], bool]:
    """Return the axes that a reduction takes away, and whether it keeps them as ones."""
    dim = case.call.argument(1, "dim", case.call.kwargs.get("axis"))
    keep = bool(case.call.argument(2, "keepdim", False))
    if dim is None or dim == () or dim == []:
        return list(range(rank)), keep
    if isinstance(dim, tuple | list):
        dims = dim
    else:
        dims = (dim,)
    return [int(axis) % rank for axis in dims], keep


def list_remaining_axes(axes: Axes, reduced: list[int], keep: bool) -> Axes:
    """Return the labels of a reduction's result."""
    if keep:
        return tuple(None if i in reduced else label for i, label in enumerate(axes))
    return tuple(label for i, label in enumerate(axes) if i not in reduced)


def _mean(over: list[str]) -> Callable[..., torch.Tensor]:
    """Return the runner of a mean: a part's mean over the number of parts that are added up."""

    def run(
        call: LayerCall, args: Operands, kwargs: Keywords, share: Share
    ) -> torch.Tensor:
        result = call.function(*args, **kwargs)
        for label in over:
            if share.parts(label) > 1:
                result = result / share.parts(label)
        return result

    return run


ELEMENTWISE_RULES: dict[str, Callable[[Case], Rule]] = {
    "dropout": dropout,
    **dict.fromkeys(
        (
            "softmax",
            "log_softmax",
            "_softmax",
            "_log_softmax",
            "cumsum",
            "cumprod",
            "cummax",
            "cummin",
            "logcumsumexp",
        ),
        along(1, None),
    ),
    **dict.fromkeys(("topk", "diff"), along(2, -1)),
    **dict.fromkeys(("sort", "argsort", "glu"), along(1, -1)),
    "flip": along(1, None, "dims"),
    "roll": along(2, None, "dims"),
    **dict.fromkeys(("unfold", "fold"), windows),
    **{
        f"fft_{way}fft{axes}": along(2, default)
        for way in ("", "i", "r", "ir", "h", "ih")
        for axes, default in (("", -1), ("2", (-2, -1)), ("n", None))
    },
    "msort": mixing(0),
    "stft": mixing(-1),
    **dict.fromkeys(("tril", "triu"), mixing(-2, -1)),
    "one_hot": mixing(),
    **dict.fromkeys(
        ("gather", "scatter", "scatter_add", "scatter_reduce", "take_along_dim"),
        split_gather,
    ),
    "index_select": split_index_select,
    **dict.fromkeys(("cosine_similarity", "pairwise_distance"), similarity),
    "normalize": along(2, 1),
    "sum": split_reduction,
    "mean": split_reduction,
    **dict.fromkeys(("amax", "amin", "argmax", "argmin", "std", "var"), extreme),
}
