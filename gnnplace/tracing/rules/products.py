"""Rules of the calls that do the work: linear layers, products, convolutions, tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from gnnplace.tracing.rules.calls import CallRef, LayerCall
from gnnplace.tracing.rules.rule import Axes, Case, Rule, RuleDraft, Share, numbered, whole

IN, OUT, VOCABULARY, FEATURES = "in", "out", "vocabulary", "features"


def linear(case: Case) -> Rule:
    """`linear(x, weight, bias)`: 2 FLOP for each weight and row."""
    lead = numbered(len(case.results[0]) - 1)
    draft = case.reads((*lead, IN), (OUT, IN))
    draft.read(case.slot(2, "bias"), (OUT,))
    flops = 2.0 * math.prod(case.results[0]) * case.shapes[0][-1]
    return draft.rule("linear", (*lead, OUT), flops=flops, run=_biased(2, "bias"))


def addmm(case: Case) -> Rule:
    """`addmm(bias, x, weight)`."""
    if any(case.call.kwargs.get(key, 1) != 1 for key in ("alpha", "beta")):
        return whole(case, "addmm with factors")
    draft = RuleDraft(case)
    bias = case.shapes[0]
    draft.read(0, tuple(("0", OUT)[-len(bias) :]) if len(bias) else ())
    draft.read(1, ("0", IN))
    draft.read(2, (IN, OUT))
    flops = 2.0 * math.prod(case.results[0]) * case.shapes[1][-1]
    return draft.rule("linear", ("0", OUT), flops=flops, run=_biased(0, "input"))


def _biased(position: int, name: str) -> Callable[..., Any]:
    """Adds the bias once where the features that are summed over are split."""

    def run(call: LayerCall, args: Any, kwargs: Any, share: Share) -> torch.Tensor:
        if share.parts(IN) > 1 and isinstance(call.argument(position, name), CallRef):
            first = float(share.index(IN) == 0)
            if len(args) > position:
                args = (*args[:position], args[position] * first, *args[position + 1 :])
            else:
                kwargs = {**kwargs, name: kwargs[name] * first}
        return call.function(*args, **kwargs)

    return run


def matmul(case: Case) -> Rule:
    """`matmul`, `bmm`, `mm`: leading axes are broadcast, the inner one is summed over."""
    a, b = case.shapes[0], case.shapes[1]
    if len(a) < 2 or len(b) < 2:
        return whole(case, "a product with a vector")
    rank = len(case.results[0])
    lead = numbered(rank - 2)
    draft = case.reads(
        (*_lead(a, case.results[0], lead), "rows", IN), (*_lead(b, case.results[0], lead), IN, OUT)
    )
    flops = 2.0 * math.prod(case.results[0]) * a[-1]
    return draft.rule("product", (*lead, "rows", OUT), flops=flops)


def _lead(shape: tuple[int, ...], result: tuple[int, ...], lead: Axes) -> Axes:
    count = len(shape) - 2
    skip = len(lead) - count
    pairs = zip(shape[:count], result[skip : skip + count], lead[skip:], strict=True)
    return tuple(label if size == want else None for size, want, label in pairs)


def convolution(case: Case) -> Rule:
    """`conv1d`, `conv2d`, `conv3d`: along the batch, and channels where there is one group."""
    return _convolution(case, (OUT, IN), case.results[0])


def transposed_convolution(case: Case) -> Rule:
    """`conv_transpose1d`, `2d`, `3d`: along the batch, and channels where there is one group."""
    return _convolution(case, (IN, OUT), case.shapes[0])


def _convolution(case: Case, weight: tuple[str, str], windows: tuple[int, ...]) -> Rule:
    """A convolution by its weight's first axes; 2 FLOP for each weight of a filter and window."""
    spatial = len(case.results[0]) - 2
    if len(case.shapes[0]) != spatial + 2:
        return whole(case, "a convolution without a batch")
    grouped, rest = case.call.argument(6, "groups", 1) != 1, (None,) * spatial
    draft = case.reads(
        ("0", None if grouped else IN, *rest), (*((None, None) if grouped else weight), *rest)
    )
    draft.read(case.slot(2, "bias"), (None if grouped else OUT,))
    flops = 2.0 * math.prod(windows) * math.prod(case.shapes[1][1:])
    made = ("0", None if grouped else OUT, *rest)
    return draft.rule("convolution", made, flops=flops, run=_biased(2, "bias"))


def pool(case: Case) -> Rule:
    """Pooling and resizing: along batch and channels."""
    axes = tuple(str(i) if i < 2 else None for i in range(len(case.results[0])))
    if len(case.results) != 1:
        return whole(case, "pooling with indices")
    return case.reads(axes).rule("pool", axes)


def embedding(case: Case) -> Rule:
    """Rows of a table; a device without a token's row gives zeros: a sum over the vocabulary."""
    if case.call.argument(3, "max_norm") is not None or case.call.argument(6, "sparse"):
        return whole(case, "a table that is renormed, or sparse gradients")
    lead = numbered(len(case.results[0]) - 1)
    return case.reads(lead, (VOCABULARY, FEATURES)).rule(
        "embedding", (*lead, FEATURES), run=_lookup
    )


def _lookup(call: LayerCall, args: Any, kwargs: Any, share: Share) -> torch.Tensor:
    if share.parts(VOCABULARY) == 1:
        return call.function(*args, **kwargs)
    ids, table = args[0], args[1]
    padding = call.argument(2, "padding_idx")
    whole_size = table.shape[0] * share.parts(VOCABULARY)
    start = table.shape[0] * share.index(VOCABULARY)
    mine = ids - start
    here = (mine >= 0) & (mine < table.shape[0])
    rows = functional.embedding(mine.where(here, 0), table)
    if padding is not None:  # no gradient goes to its row
        rows = rows.where((ids != padding % whole_size).unsqueeze(-1), rows.detach())
    return rows * here.unsqueeze(-1).to(rows.dtype)


def einsum(case: Case) -> Rule:
    """Its letters are the labels."""
    equation = str(case.call.args[0]).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    repeated = any(len(set(term)) < len(term) for term in (*terms, right))
    if not arrow or "." in equation or repeated or len(terms) != len(case.shapes):
        return whole(case, f"einsum {equation!r}")
    draft = RuleDraft(case)
    sizes: dict[str, int] = {}
    for slot, term in enumerate(terms):
        draft.read(slot, tuple(term))
        sizes.update(zip(term, case.shapes[slot], strict=True))
    made = draft.rule("product", tuple(right), flops=2.0 * math.prod(sizes.values()))
    gone = [letter for letter in made.extents if all(letter not in term for term in terms)]
    return whole(case, f"einsum {equation!r}") if gone else made


def recurrent(case: Case) -> Rule:
    """`lstm`, `gru` and plain recurrent layers: along the batch; positions wait for each other."""
    call = case.call
    states = call.args[1]
    if (isinstance(states, CallRef) and call.kind == "lstm") or not isinstance(call.args[3], bool):
        return whole(case, "packed sequences")
    layers, dropout, training, _, first = call.args[4:9]
    if dropout and training and layers > 1:
        return whole(case, "its dropout draws other numbers on each part")
    axes: Axes = ("0", None, None) if first else (None, "0", None)
    if len(case.shapes[0]) != 3:
        return whole(case, "a recurrent layer without a batch")
    state: Axes = (None, "0", None)
    draft = case.reads(axes)
    count = 2 if call.kind == "lstm" else 1
    for slot in range(1, 1 + count):
        draft.read(slot, state)
    rows = math.prod(case.shapes[0][:2])
    weights = sum(math.prod(shape) for shape in case.shapes[1 + count :] if len(shape) == 2)
    return draft.rule("recurrent", axes, *[state] * count, flops=2.0 * rows * weights)


TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
PRODUCT_RULES: dict[str, Callable[[Case], Rule]] = {
    "linear": linear,
    "addmm": addmm,
    **dict.fromkeys(("matmul", "bmm", "mm", "rmatmul"), matmul),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), convolution),
    **dict.fromkeys(TRANSPOSED, transposed_convolution),
    **dict.fromkeys(
        ("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
         "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
         "boolean_dispatch", "adaptive_max_pool2d", "interpolate"), pool,
    ),
    "embedding": embedding,
    "einsum": einsum,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), recurrent),
}  # fmt: skip
