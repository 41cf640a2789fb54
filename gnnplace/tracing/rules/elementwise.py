"""Rules of calls that work on every element, or along some axes: additions, softmax, sums, topk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from gnnplace.tracing.calls import LayerCall
from gnnplace.tracing.rules.rule import (
    Axes,
    Case,
    Rule,
    RuleDraft,
    Share,
    numbered,
    own_part,
    whole,
)

ELEMENTWISE, REDUCTION = "elementwise", "reduction"
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
    """Whether torch itself calls the operation of that name pointwise."""
    packet = getattr(torch.ops.aten, PLAIN.get(name, name), None)
    if packet is None or not hasattr(packet, "overloads"):
        return False
    return any(torch.Tag.pointwise in getattr(packet, o).tags for o in packet.overloads())


def elementwise_rule(case: Case) -> Rule:
    """Tensors of one shape, or broadcast to it from the right; `max` of one is a reduction."""
    if len(case.shapes[0]) > len(case.results[0]):
        return extreme(case)
    draft = RuleDraft(case)
    made = numbered(len(case.results[0]))
    for slot in range(len(case.shapes)):
        draft.read(slot, broadcast(case.shapes[slot], case.results[0], made))
    return draft.rule(ELEMENTWISE, *[made] * len(case.results))


def broadcast(shape: tuple[int, ...], result: tuple[int, ...], made: Axes) -> Axes:
    """Labels of a tensor that is broadcast to a result with labels."""
    new = len(result) - len(shape)
    pairs = zip(shape, result[new:], made[new:], strict=True)
    return tuple(label if size == want else None for size, want, label in pairs)


def dropout(case: Case) -> Rule:
    """Each device draws the mask of the whole tensor and takes its part: the numbers are those of
    one device, as long as all devices draw the same ones.
    """
    axes = numbered(len(case.results[0]))
    made = case.reads(axes).rule(ELEMENTWISE, axes)
    return replace(made, run=_dropout(made.results[0], case))


def _dropout(axes: Axes, case: Case) -> Callable[..., torch.Tensor]:
    def run(call: LayerCall, args: Any, kwargs: Any, share: Share) -> torch.Tensor:
        training, p = call.argument(2, "training", True), call.argument(1, "p", 0.5)
        if not training or p == 0.0 or args[0].shape == case.results[0]:
            return call.function(*args, **kwargs)
        ones = torch.ones(case.results[0], dtype=args[0].dtype, device=args[0].device)
        mask = torch.nn.functional.dropout(ones, p)
        return args[0] * own_part(mask, axes, share)

    return run


def along(position: int, default: Any, name: str = "dim") -> Callable[[Case], Rule]:
    """Calls that mix elements along some axes, such as softmax; new axes are the last.

    Args:
        position: The position of the argument that has the axes.
        default: Where it is not given; None: all axes are mixed.
        name: Its name.
    """

    def rule(case: Case) -> Rule:
        given, rank = case.call.argument(position, name, default), len(case.shapes[0])
        dims = given if isinstance(given, list | tuple) else [given]
        if not all(isinstance(axis, int) for axis in dims) or not rank:
            return whole(case, "it mixes all axes")
        axes, draft = numbered(rank, *dims), RuleDraft(case)
        for slot, shape in enumerate(case.shapes):
            draft.read(slot if len(shape) == rank else None, axes)
        return draft.rule(
            ELEMENTWISE, *[(*axes, *[None] * (len(shape) - rank)) for shape in case.results]
        )

    return rule


def mixing(*axes: int) -> Callable[[Case], Rule]:
    """Calls that always mix the same axes, such as the last two."""
    return along(99, axes, "")


def windows(case: Case) -> Rule:
    """`Tensor.unfold` along its axis; `unfold` and `fold` of images along examples alone."""
    rank, made = len(case.shapes[0]), case.results[0]
    if len(made) > rank and case.call.kind == "unfold":
        return along(1, None, "dimension")(case)
    if max(rank, len(made)) != 4:
        return whole(case, "windows of one image")
    examples: Axes = ("0", None, None, None)
    return case.reads(examples[:rank]).rule("pool", examples[: len(made)])


def indexed(case: Case) -> Rule:
    """`gather` and `scatter`: the axis that is indexed stays whole, and so do unequal others.

    What is gathered may be cut along that axis with its index; the tensor itself stays whole.
    """
    rank, axis = len(case.shapes[0]), case.call.argument(1 + ("take" in case.call.kind), "dim")
    same = {shape for shape in (*case.shapes, *case.results) if len(shape) == rank}
    if not isinstance(axis, int) or len(case.results) != 1 or not rank:
        return whole(case, "an index that is not along one axis")
    odd = {k for k in range(rank) if len({shape[k] for shape in same}) > 1}
    axes, draft = numbered(rank, axis, *odd), RuleDraft(case)
    taken = numbered(rank, *odd - {axis % rank}) if case.call.kind == "gather" else axes
    for slot, shape in enumerate(case.shapes):
        draft.read(slot if len(shape) == rank else None, taken if slot else axes)
    return draft.rule(ELEMENTWISE, taken)


def selected(case: Case) -> Rule:
    """`index_select`: along its other axes, and along the index."""
    rank, axis = len(case.shapes[0]), case.call.argument(1, "dim")
    if not isinstance(axis, int) or not rank or len(case.shapes[1]) != 1:
        return whole(case, "an index that is not along one axis")
    axes = numbered(rank)
    return case.reads(numbered(rank, axis), (axes[axis],)).rule(ELEMENTWISE, axes)


def similarity(case: Case) -> Rule:
    """`cosine_similarity` and `pairwise_distance`: one axis of two broadcast tensors goes."""
    cosine = case.call.kind == "cosine_similarity"
    rank = max(map(len, case.shapes))
    over = int(case.call.argument(2, "dim", 1)) % rank if cosine else rank - 1
    if case.call.argument(4, "keepdim", False):
        return whole(case, "an axis that is kept")
    axes, draft = numbered(rank, over), RuleDraft(case)
    full = tuple(map(max, zip(*((1,) * (rank - len(s)) + s for s in case.shapes), strict=True)))
    for slot, shape in enumerate(case.shapes):
        draft.read(slot, broadcast(shape, full, axes))
    return draft.rule(REDUCTION, left_axes(axes, [over], keep=False))


def reduced(case: Case) -> Rule:
    """`sum` and `mean`: a part of a sum is a sum; of a mean, a mean of fewer, which is scaled."""
    rank = len(case.shapes[0])
    gone, keep = reduced_axes(case, rank)
    axes = numbered(rank)
    made = left_axes(axes, gone, keep)
    draft = case.reads(axes)
    over = [str(axis) for axis in gone]
    return draft.rule(REDUCTION, made, run=_mean(over) if case.call.kind == "mean" else None)


def extreme(case: Case) -> Rule:
    """`amax`, `argmax`, `std`, `norm`, …: the axes that go stay whole."""
    rank = len(case.shapes[0])
    gone, keep = reduced_axes(case, rank)
    axes = numbered(rank, *gone)
    return case.reads(axes).rule(REDUCTION, *[left_axes(axes, gone, keep)] * len(case.results))


def reduced_axes(case: Case, rank: int) -> tuple[list[int], bool]:
    """The axes that a reduction takes away, and whether it keeps them as ones."""
    given = case.call.argument(1, "dim", case.call.kwargs.get("axis"))
    keep = bool(case.call.argument(2, "keepdim", False))
    if given is None or given == () or given == []:
        return list(range(rank)), keep
    dims = given if isinstance(given, tuple | list) else (given,)
    return [int(axis) % rank for axis in dims], keep


def left_axes(axes: Axes, gone: list[int], keep: bool) -> Axes:
    """Labels of what a reduction leaves."""
    if keep:
        return tuple(None if i in gone else label for i, label in enumerate(axes))
    return tuple(label for i, label in enumerate(axes) if i not in gone)


def _mean(over: list[str]) -> Callable[..., torch.Tensor]:
    def run(call: LayerCall, args: Any, kwargs: Any, share: Share) -> torch.Tensor:
        result = call.function(*args, **kwargs)
        for label in over:
            result = result / share.parts(label) if share.parts(label) > 1 else result
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
        ("gather", "scatter", "scatter_add", "scatter_reduce", "take_along_dim"), indexed
    ),
    "index_select": selected,
    **dict.fromkeys(("cosine_similarity", "pairwise_distance"), similarity),
    "normalize": along(2, 1),
    "sum": reduced,
    "mean": reduced,
    **dict.fromkeys(("amax", "amin", "argmax", "argmin", "std", "var"), extreme),
}
