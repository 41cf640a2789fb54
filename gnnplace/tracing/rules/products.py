"""Rules of the calls that do the work: linear layers, products, convolutions, tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from gnnplace.tracing.calls import CallRef, LayerCall
from gnnplace.tracing.rules.elementwise import broadcast
from gnnplace.tracing.rules.norms import make_example_rule
from gnnplace.tracing.rules.rule import (
    Axes,
    Case,
    Keywords,
    Operands,
    Rule,
    RuleDraft,
    Share,
    make_unsplit_rule,
    number_axes,
)

IN = "in"
OUT = "out"
VOCABULARY = "vocabulary"
FEATURES = "features"


def linear(case: Case) -> Rule:
    """Split `linear(x, weight, bias)`; 2 FLOP for each weight and row."""
    lead = number_axes(len(case.results[0]) - 1)
    draft = case.reads((*lead, IN), (OUT, IN))
    draft.read(case.slot(2, "bias"), (OUT,))
    flops = 2.0 * math.prod(case.results[0]) * case.shapes[0][-1]
    return draft.rule(
        "linear", (*lead, OUT), flops=flops, run=_make_bias_runner(case, 2, "bias")
    )


def addmm(case: Case) -> Rule:
    """Split `addmm(bias, x, weight)` and `baddbmm`, which has a batch."""
    result = ("0", "rows", OUT) if case.call.kind == "baddbmm" else ("0", OUT)
    draft = RuleDraft(case)
    draft.read(0, broadcast(case.shapes[0], case.results[0], result))
    draft.read(1, (*result[:-1], IN))
    draft.read(2, (*result[:-2], IN, OUT))
    flops = 2.0 * math.prod(case.results[0]) * case.shapes[1][-1]
    return draft.rule(
        "linear", result, flops=flops, run=_make_bias_runner(case, 0, "input")
    )


def _make_bias_runner(
    case: Case, position: int, name: str
) -> Callable[..., Any] | None:
    """Return the runner that adds the bias once if the features that are summed over are split."""
    if case.slot(position, name) is None:
        return None

    def run(
        call: LayerCall, args: Operands, kwargs: Keywords, share: Share
    ) -> torch.Tensor:
        if share.parts(IN) > 1:
            first = float(share.index(IN) == 0)
            if len(args) > position:
                args = (*args[:position], args[position] * first, *args[position + 1 :])
            else:
                kwargs = {**kwargs, name: kwargs[name] * first}
        return call.function(*args, **kwargs)

    return run


def matmul(case: Case) -> Rule:
    """Split `matmul`, `bmm`, `mv`, `dot`: leading axes are broadcast, the inner one is summed over.

    `cdist` has the same axes with the second tensor transposed; its inner axis is not cut, because
    a distance is no sum of distances.
    """
    first, second = case.shapes[:2]
    result = case.results[0]
    # A vector has no rows (on the left) or no columns (on the right).
    rows = ("rows",) if len(first) > 1 else ()
    columns = (OUT,) if len(second) > 1 else ()
    num_leading = len(result) - len(rows) - len(columns)
    leading = number_axes(num_leading)
    left_leading = broadcast(first[:-2], result[:num_leading], leading)
    right_leading = broadcast(second[:-2], result[:num_leading], leading)
    if "cdist" in case.call.kind:
        left_axes = (*left_leading, *rows, None)
        right_axes = (*right_leading, *columns, None)
    else:
        left_axes = (*left_leading, *rows, IN)
        right_axes = (*right_leading, IN, *columns)
    draft = case.reads(left_axes, right_axes)
    flops = 2.0 * math.prod(result) * first[-1]
    return draft.rule("product", (*leading, *rows, *columns), flops=flops)


def outer(case: Case) -> Rule:
    """Split the product of every element of one vector with every one of another."""
    return case.reads(("rows",), (OUT,)).rule("product", ("rows", OUT))


def convolution(case: Case) -> Rule:
    """Split `conv1d`, `conv2d`, `conv3d` along the batch, and channels if there is one group."""
    return _convolution(case, (OUT, IN), case.results[0])


def transposed_convolution(case: Case) -> Rule:
    """Split `conv_transpose1d`, `2d`, `3d` as `convolution`."""
    return _convolution(case, (IN, OUT), case.shapes[0])


def _convolution(case: Case, weight: tuple[str, str], windows: tuple[int, ...]) -> Rule:
    """Split a convolution along the batch and, if it has one group, along channels.

    Args:
        case: The call.
        weight: Labels of the weight's first two axes, its channels.
        windows: Sizes of the tensor with one element for each window. A window takes 2 FLOP for
            each weight of one index of the weight's first axis.
    """
    num_spatial = len(case.results[0]) - 2
    if len(case.shapes[0]) != num_spatial + 2:
        return make_unsplit_rule(case, "a convolution without a batch")
    in_label: str | None = IN
    out_label: str | None = OUT
    weight_channels: tuple[str | None, ...] = weight
    # A shard of the channels would have to hold entire groups, so grouped channels are not split.
    if case.call.argument(6, "groups", 1) != 1:
        in_label = None
        out_label = None
        weight_channels = (None, None)
    spatial = (None,) * num_spatial
    draft = case.reads(("0", in_label, *spatial), (*weight_channels, *spatial))
    draft.read(case.slot(2, "bias"), (out_label,))
    flops = 2.0 * math.prod(windows) * math.prod(case.shapes[1][1:])
    return draft.rule(
        "convolution",
        ("0", out_label, *spatial),
        flops=flops,
        run=_make_bias_runner(case, 2, "bias"),
    )


def pool(case: Case) -> Rule:
    """Split pooling and resizing along batch, if there is one, and channels."""
    rank = len(case.results[0])
    kind = case.call.kind
    over = next((int(axes) for axes in "123" if f"{axes}d" in kind), rank - 2)
    axes = tuple(str(i) if i < rank - over else None for i in range(rank))
    return case.reads(axes).rule("pool", *[axes] * len(case.results))


def embedding(case: Case) -> Rule:
    """Split a look-up; a device without a token's row gives zeros: a sum over the vocabulary."""
    call = case.call
    if call.argument(3, "max_norm") is not None or call.argument(6, "sparse"):
        return make_unsplit_rule(case, "a table that is renormed, or sparse gradients")
    if call.argument(5, "scale_grad_by_freq"):
        return make_unsplit_rule(
            case, "gradients that are divided by how often a row is read"
        )
    lead = number_axes(len(case.results[0]) - 1)
    return case.reads(lead, (VOCABULARY, FEATURES)).rule(
        "embedding", (*lead, FEATURES), run=_lookup
    )


def _lookup(
    call: LayerCall, args: Operands, kwargs: Keywords, share: Share
) -> torch.Tensor:
    """Look up the rows that a device has of a table that is cut along its vocabulary."""
    if share.parts(VOCABULARY) == 1:
        return call.function(*args, **kwargs)
    ids = args[0]
    table = args[1]
    padding = call.argument(2, "padding_idx")
    whole_size = table.shape[0] * share.parts(VOCABULARY)
    start = table.shape[0] * share.index(VOCABULARY)
    local_ids = ids - start
    is_local = (local_ids >= 0) & (local_ids < table.shape[0])
    rows = functional.embedding(local_ids.where(is_local, 0), table)
    if padding is not None:  # no gradient goes to its row
        rows = rows.where((ids != padding % whole_size).unsqueeze(-1), rows.detach())
    return rows * is_local.unsqueeze(-1).to(rows.dtype)


def einsum(case: Case) -> Rule:
    """Split `einsum` along its letters, but those of a diagonal."""
    equation = str(case.call.args[0]).replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    terms = inputs.split(",")
    if (
        not isinstance(case.call.args[0], str)
        or "." in equation
        or len(terms) != len(case.shapes)
    ):
        return make_unsplit_rule(case, f"einsum {equation!r}")
    if not arrow:
        output = "".join(sorted(c for c in {*inputs} - {","} if inputs.count(c) == 1))
    twice = {c for term in terms for c in term if term.count(c) > 1}
    sizes = dict[str, int]()
    for term, shape in zip(terms, case.shapes, strict=True):
        sizes |= {c: n for c, n in zip(term, shape, strict=True) if n > sizes.get(c, 0)}
    draft = RuleDraft(case)
    for slot, (term, shape) in enumerate(zip(terms, case.shapes, strict=True)):
        letters = tuple(None if c in twice else c for c in term)
        draft.read(slot, broadcast(shape, tuple(sizes[c] for c in term), letters))
    result = tuple(None if c in twice else c for c in output)
    return draft.rule("product", result, flops=2.0 * math.prod(sizes.values()))


def recurrent(case: Case) -> Rule:
    """Split `lstm`, `gru` and plain recurrent layers along the batch, not along positions."""
    call = case.call
    states = call.args[1]
    if (isinstance(states, CallRef) and call.kind == "lstm") or not isinstance(
        call.args[3], bool
    ):
        return make_unsplit_rule(case, "packed sequences")
    layers, dropout, training, _, first = call.args[4:9]
    if dropout and training and layers > 1:
        return make_unsplit_rule(case, "its dropout draws other numbers on each part")
    axes: Axes = ("0", None, None) if first else (None, "0", None)
    if len(case.shapes[0]) != 3:
        return make_unsplit_rule(case, "a recurrent layer without a batch")
    state: Axes = (None, "0", None)
    draft = case.reads(axes)
    count = 2 if call.kind == "lstm" else 1
    for slot in range(1, 1 + count):
        draft.read(slot, state)
    rows = math.prod(case.shapes[0][:2])
    weights = sum(
        math.prod(shape) for shape in case.shapes[1 + count :] if len(shape) == 2
    )
    return draft.rule("recurrent", axes, *[state] * count, flops=2.0 * rows * weights)


def cell(case: Case) -> Rule:
    """Split one step of a recurrent layer along the batch of its input and its states."""
    states = 1 + (case.call.kind == "lstm_cell")
    return make_example_rule(2, 1 + states, "recurrent")(case)


def instance_norm(case: Case) -> Rule:
    """Split along the batch, if it changes no running statistics."""
    # Torch's op has its arguments in another order.
    is_functional = case.call.function is functional.instance_norm
    changes = case.call.argument(5, "use_input_stats", True)
    if changes and case.slot(1 if is_functional else 3, "running_mean") is not None:
        return make_unsplit_rule(case, "running statistics of its examples")
    return make_example_rule(3)(case)


TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
PRODUCT_RULES: dict[str, Callable[[Case], Rule]] = {
    "linear": linear,
    **dict.fromkeys(("addmm", "baddbmm"), addmm),
    **dict.fromkeys(
        ("matmul", "bmm", "mm", "mv", "dot", "vdot", "cdist", "_cdist_forward"), matmul
    ),
    **dict.fromkeys(("outer", "ger"), outer),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), convolution),
    **dict.fromkeys(TRANSPOSED, transposed_convolution),
    **dict.fromkeys(
        (
            "max_pool1d",
            "max_pool2d",
            "max_pool3d",
            "avg_pool1d",
            "avg_pool2d",
            "avg_pool3d",
            "adaptive_avg_pool1d",
            "adaptive_avg_pool2d",
            "adaptive_avg_pool3d",
            "adaptive_max_pool1d",
            "adaptive_max_pool2d",
            "adaptive_max_pool3d",
            "interpolate",
            "max_pool2d_with_indices",
            "_adaptive_avg_pool2d",
            "lp_pool2d",
            "upsample_nearest1d",
            "upsample_nearest2d",
            "upsample_nearest3d",
            "upsample_linear1d",
            "upsample_bilinear2d",
            "upsample_bicubic2d",
            "upsample_trilinear3d",
            "_upsample_nearest_exact2d",
        ),
        pool,
    ),
    **dict.fromkeys(
        ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "im2col"),
        make_example_rule(4, kind="pool"),
    ),
    "instance_norm": instance_norm,
    "col2im": make_example_rule(3, kind="pool"),
    **dict.fromkeys(
        ("grid_sampler", "grid_sampler_2d"), make_example_rule(4, 2, "pool")
    ),
    "bilinear": make_example_rule(2, 2, "product"),
    "embedding": embedding,
    "einsum": einsum,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), recurrent),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), cell),
}
