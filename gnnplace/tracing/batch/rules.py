"""Rules of ops that compute sums and scales: arithmetic, reductions and losses.

Each rule takes an `Op` and returns the `State` of its result, or of each of its results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import fx

from gnnplace.torch_names import OpOverload
from gnnplace.tracing.batch.state import (
    SAME,
    SPLIT,
    SUM,
    ChangeError,
    MixesError,
    Op,
    State,
    States,
    UndecidedError,
    get_node_shape,
    is_one,
    only_state,
    same,
)
from gnnplace.tracing.batch.table import each, follow_broadcast

Rule = Callable[[Op], States]
NONE, MEAN, TOTAL = 0, 1, 2
"""Reductions of losses, as ATen numbers them."""

UNARY = (
    "neg",
    "clone",
    "detach",
    "alias",
    "contiguous",
    "to",
    "_to_copy",
    "lift_fresh_copy",
    "lift_fresh",
    "positive",
    "type_as",
    "view_as_real",
    "view_as_complex",
    "_conj",
    "conj",
    "conj_physical",
    "resolve_conj",
    "resolve_neg",
    "real",
    "imag",
)
"""Ops that are linear in their first operand and keep its shape."""
ELEMENTS = (
    "__and__",
    "__or__",
    "__xor__",
    "__lshift__",
    "__rshift__",
    "log_sigmoid",
    "log_sigmoid_forward",
    "hardswish",
    "prelu",
    "where",
    "masked_fill",
    "dropout",
    "native_dropout",
    "alpha_dropout",
    "feature_dropout",
    "bernoulli",
    "rand_like",
    "randn_like",
    "randint_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "xlogy",
    "rrelu",
    "rrelu_with_noise",
    "normal",
    "uniform",
    "exponential",
    "isclose",
    "threshold",
    "hardtanh",
    "clip",
    "fill",
    "zero",
    "copy",
    "relu6",
    "celu",
    "silu",
    "hardsigmoid",
    "softshrink",
    "hardshrink",
    "ldexp",
    "isfinite",
    "isinf",
    "nan_to_num",
    "elu",
    "logit",
    "bitwise_not",
    "logical_and",
    "logical_or",
    "complex",
    "polar",
)
"""Ops that work element by element without saying so."""
REDUCTIONS = (
    "sum",
    "mean",
    "nansum",
    "amax",
    "amin",
    "var",
    "std",
    "logsumexp",
    "prod",
    "norm",
    "linalg_vector_norm",
    "any",
    "all",
    "argmax",
    "argmin",
    "max",
    "min",
    "median",
    "nanmedian",
    "mode",
    "count_nonzero",
    "var_mean",
    "std_mean",
    "aminmax",
    "nanmean",
    "frobenius_norm",
    "kthvalue",
)
DIVISIONS = ("div", "divide", "true_divide")
ADDITIVE = ("sum", "nansum", "count_nonzero")


def elementwise(op: Op) -> States:
    """Follow the batch through an op that works on each element by itself, with broadcasting.

    Raises:
        MixesError, ChangeError: see `Op.plain`.
    """
    return follow_broadcast(op, {n: op.plain(n) for n in op.operands})


def unary(op: Op) -> State:
    """Follow the batch through an op that is linear in its one operand and keeps its shape."""
    return op.state(op.operands[0])


def follow_sum(op: Op) -> State:
    """Follow the batch through `a + alpha b` or `a - alpha b`.

    All shares' means add up, and so do equal scales.
    """
    states = [(n, op.state(n)) for n in op.operands]
    numbers = [a for name, a in op.args.items() if name in ("self", "other")]
    plain_number = any(
        not isinstance(a, fx.Node) and a not in (0, None) for a in numbers
    )
    if any(state.kind == SUM for _, state in states):
        return _add_sums(op, states, plain_number)
    scales = {round(s.scale, 12) for _, s in states if s.kind == SPLIT}
    mixed = len(scales) > 1 or plain_number or any(s.kind == SAME for _, s in states)
    if scales and mixed:
        return only_state(elementwise(op))
    # An operand that is not split must be plain.
    operands = {n: s if s.kind == SPLIT else op.plain(n) for n, s in states}
    return only_state(follow_broadcast(op, operands, scales.pop() if scales else 1.0))


def _add_sums(op: Op, states: list[tuple[fx.Node, State]], number: bool) -> State:
    """Return the state of a sum to which something is added: operands become means first."""
    mean = 1.0 / op.count
    scales = {state.scale for _, state in states if state.kind == SUM}
    are_alike = (
        len(scales) == 1 and not number and all(s.kind == SUM for _, s in states)
    )
    if are_alike:
        return State(SUM, scale=scales.pop(), from_batch=op.from_batch)
    for node, state in states:
        if state.kind == SPLIT:
            _give_any(op, states, "it adds a sum over the examples to every example")
        if state.kind == SUM and not is_one(state.scale * op.count):
            raise ChangeError(node, state.scale * op.count)
    return State(SUM, scale=mean, from_batch=op.from_batch)


def _give_any(op: Op, states: Iterable[tuple[fx.Node, State]], why: str) -> None:
    """Give an operand that is a sum, if one follows from the batch.

    Raises:
        ChangeError: there is one.
        MixesError: there is none.
    """
    for node, state in states:
        if state.kind == SUM and state.from_batch:
            op.give(node, why)
    raise MixesError(why)


def follow_product(op: Op) -> State:
    """Follow the batch through `a * b`.

    Linear in one operand if the other is the same in all shares.
    """
    states = [(n, op.state(n)) for n in op.operands]
    numbers = [_ratio(op, name) for name in ("self", "other")]
    ratio = numbers[0] * numbers[1]
    sums = [(n, s) for n, s in states if s.kind == SUM]
    if len(sums) == 1 and all(s.kind == SAME for n, s in states if n is not sums[0][0]):
        if len(states) == 1 and op.args["self"] is op.args.get("other"):
            op.give(sums[0][0], "it squares a sum over the examples")
        return State(SUM, scale=sums[0][1].scale * ratio, from_batch=op.from_batch)
    if sums:
        _give_any(
            op,
            states,
            "it multiplies a sum over the examples with something of the batch",
        )
    factors = [(n, s if s.kind == SPLIT else op.plain(n)) for n, s in states]
    scale = ratio
    for name in ("self", "other"):
        scale *= op.state(op.args.get(name)).scale
    return _times(op, dict(factors), scale)


def _times(op: Op, states: Mapping[fx.Node, State], scale: float) -> State:
    """Return the state of operands that are multiplied, with the scale of the product."""
    state = only_state(follow_broadcast(op, states, scale))
    if state.kind == SAME and not is_one(scale):
        return State(SUM, scale=scale / op.count, from_batch=op.from_batch)
    return state


def follow_quotient(op: Op) -> State:
    """Follow the batch through `a / b`.

    Linear in a; b must be the same in all shares, or belong to the example.
    """
    if op.get("rounding_mode") is not None:
        return only_state(elementwise(op))
    dividend = op.args["self"]
    divisor = op.args["other"]
    ratio = _ratio(op, "self") / _ratio(op, "other")
    if _is_split(op, divisor):
        divisor_state = op.state(divisor)
    else:
        divisor_state = op.plain(divisor)
    dividend_state = op.state(dividend)
    if dividend_state.kind == SUM:
        if divisor_state.kind == SPLIT:
            op.give(
                dividend,
                "it divides a sum over the examples by something of each example",
            )
        return State(
            SUM,
            scale=dividend_state.scale / divisor_state.scale * ratio,
            from_batch=op.from_batch,
        )
    states = {n: op.state(n) if _is_split(op, n) else op.plain(n) for n in op.operands}
    return _times(op, states, dividend_state.scale / divisor_state.scale * ratio)


def _is_split(op: Op, value: object) -> bool:
    """Return whether an operand is split."""
    return op.state(value).kind == SPLIT


def _ratio(op: Op, name: str) -> float:
    """Return a number of the whole batch over that of a share: a count of examples gives M.

    Raises:
        UndecidedError: one of them is zero.
    """
    share = op.args.get(name)
    full = op.whole_args.get(name)
    if isinstance(share, fx.Node) or share is None or share == full:
        return 1.0
    if not share or not full:
        raise UndecidedError("a number in it depends on the size of the batch")
    return float(full) / float(share)


def follow_reduction(op: Op) -> States:
    """Follow the batch through a reduction over some axes or over all.

    Raises:
        MixesError: over the batch, and neither a sum nor a mean.
    """
    node = op.operands[0]
    state = op.state(node)
    rank = len(get_node_shape(node))
    if op.name in ("max", "min") and len(op.operands) == 2:
        return elementwise(op)
    dims = axes(op.get("dim", "dims"), rank)
    if state.kind == SUM and op.name in ("sum", "mean"):
        return state
    if op.name not in ("sum", "mean"):
        state = op.plain(node)
    if state.kind == SAME:
        return each(op, same(op.from_batch))
    if state.dim in dims:
        if op.name in ADDITIVE:
            return State(SUM, scale=state.scale, from_batch=op.from_batch)
        if op.name == "mean":
            return State(SUM, scale=state.scale / op.count, from_batch=op.from_batch)
        raise MixesError("over the batch it is neither a sum nor a mean")
    keeps_axes = bool(op.get("keepdim", default=False))
    return each(op, state.at(state.dim if keeps_axes else axis_after(state.dim, dims)))


def axes(dims: list[int] | tuple[int, ...] | int | None, rank: int) -> set[int]:
    """Return the axes that a reduction goes over, counted from the front; all if it names none."""
    if dims is None or dims == []:
        return set(range(rank))
    return {
        dim % max(rank, 1)
        for dim in (dims if isinstance(dims, list | tuple) else [dims])
    }


def axis_after(dim: int, reduced_dims: set[int]) -> int:
    """Return the index of an axis after axes were reduced."""
    return dim - sum(reduced_dim < dim for reduced_dim in reduced_dims)


def loss(op: Op) -> State:
    """Follow the batch through a loss of ATen that is reduced over all elements.

    None, mean or sum.

    Raises:
        MixesError: its operands have the batch on different axes.
    """
    states = [(n, op.plain(n)) for n in op.operands]
    if op.get("reduction", default=MEAN) == NONE:
        return only_state(follow_broadcast(op, dict(states)))
    if all(state.kind == SAME for _, state in states):
        return same(op.from_batch)
    front = {(s.dim, s.outer) for _, s in states if s.kind == SPLIT}
    back = {
        (s.dim - len(get_node_shape(n)), s.outer) for n, s in states if s.kind == SPLIT
    }
    if len(front) > 1 and len(back) > 1:  # neither row by row nor with broadcasting
        raise MixesError("it pairs examples of the batch")
    total = op.args["reduction"] == TOTAL
    return State(SUM, scale=1.0 if total else 1.0 / op.count, from_batch=op.from_batch)


def cross_entropy(op: Op) -> States:
    """Follow the batch through cross entropy and negative log-likelihood.

    [N, C, ...] against classes or their shares. The mean over classes divides by the weights of
    those targets that are not ignored. It is rewritten beforehand as a sum over that count
    (`batch.cut`).

    Raises:
        MixesError: the batch is the axis of the classes.
    """
    x = op.args["self"]
    target = op.args["target"]
    states = [(n, op.plain(n)) for n in op.operands if n is not op.get("weight")]
    if (
        isinstance(op.get("weight"), fx.Node)
        and op.plain(op.args["weight"]).kind != SAME
    ):
        raise MixesError("its class weights depend on the batch")
    classes = 1 if len(get_node_shape(x)) > 1 else 0
    if any(s.kind == SPLIT and n is x and s.dim == classes for n, s in states):
        raise MixesError("the batch is its axis of classes, as in a contrastive loss")
    if all(state.kind == SAME for _, state in states):
        return each(op, same(op.from_batch))
    shares = get_node_shape(x) == get_node_shape(
        target
    )  # of classes, instead of a class
    places = {
        (s.dim - (not shares and n is x and s.dim > classes), s.outer)
        for n, s in states
        if s.kind == SPLIT
    }
    if len(places) > 1 and op.args["reduction"] == NONE:
        raise MixesError("it pairs examples of the batch")
    if op.args["reduction"] == NONE:
        return each(op, op.split(*places.pop()))
    if op.args["reduction"] == MEAN and not shares:
        raise UndecidedError("it is a mean over targets that may be ignored")
    total = op.args["reduction"] == TOTAL
    return each(op, State(SUM, scale=1.0 if total else 1.0 / op.count))


LOSSES = (
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "kl_div",
    "soft_margin_loss",
    "hinge_embedding_loss",
    "cosine_embedding_loss",
    "margin_ranking_loss",
    "triplet_margin_loss",
    "poisson_nll_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "gaussian_nll_loss",
    "ctc_loss",
)
ENTROPIES = (
    "cross_entropy_loss",
    "nll_loss",
    "nll_loss_nd",
    "nll_loss2d",
    "nll_loss_forward",
    "nll_loss2d_forward",
)

RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTS, elementwise),
    **dict.fromkeys(UNARY, unary),
    **dict.fromkeys(("add", "sub", "rsub", "subtract"), follow_sum),
    **dict.fromkeys(("mul", "multiply"), follow_product),
    **dict.fromkeys(DIVISIONS, follow_quotient),
    **dict.fromkeys(REDUCTIONS, follow_reduction),
    **dict.fromkeys(LOSSES, loss),
    **dict.fromkeys(ENTROPIES, cross_entropy),
}


def is_elementwise(target: object) -> bool:
    """Return whether torch tags an op as one that works element by element."""
    return isinstance(target, OpOverload) and torch.Tag.pointwise in target.tags
