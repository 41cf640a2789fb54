"""Rules of ops that compute: element by element, over axes, and products.

Each rule takes an `Op` and returns the `State` of its result, or of each of its results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from gnnplace.tracing.batch_state import (
    SAME,
    SPLIT,
    SUM,
    ChangeError,
    MixesError,
    Op,
    State,
    UndecidedError,
    is_one,
    same,
    shape_of,
)

Rule = Callable[[Op], Any]

# Ops that are linear in their first operand and keep its shape.
UNARY = ("neg", "clone", "detach", "alias", "contiguous", "to", "_to_copy", "lift_fresh_copy",
         "lift_fresh", "positive", "type_as", "view_as_real", "view_as_complex", "_conj",
         "conj", "conj_physical", "resolve_conj", "resolve_neg", "real", "imag")  # fmt: skip
# Ops that work element by element without saying so.
ELEMENTS = ("__and__", "__or__", "__xor__", "__lshift__", "__rshift__", "log_sigmoid",
            "log_sigmoid_forward", "hardswish", "prelu", "where", "masked_fill", "dropout",
            "native_dropout", "alpha_dropout", "feature_dropout", "bernoulli", "rand_like",
            "randn_like", "randint_like", "zeros_like", "ones_like", "full_like", "empty_like",
            "xlogy", "rrelu", "rrelu_with_noise", "normal", "uniform", "exponential", "isclose",
            "threshold", "hardtanh", "clip", "fill", "zero", "copy", "relu6", "celu", "silu",
            "hardsigmoid", "softshrink", "hardshrink", "ldexp", "isfinite", "isinf", "nan_to_num",
            "elu", "logit", "bitwise_not", "logical_and", "logical_or", "complex",
            "polar")  # fmt: skip
REDUCTIONS = ("sum", "mean", "nansum", "amax", "amin", "var", "std", "logsumexp", "prod", "norm",
              "linalg_vector_norm", "any", "all", "argmax", "argmin", "max", "min", "median",
              "nanmedian", "mode", "count_nonzero", "var_mean", "std_mean", "aminmax",
              "nanmean", "frobenius_norm")  # fmt: skip
ADDITIVE = ("sum", "nansum", "count_nonzero")
ALONG = ("softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum", "cumprod", "cummax",
         "cummin", "logcumsumexp", "sort", "argsort", "topk", "kthvalue", "diff", "glu",
         "softmin", "unfold", "flip", "roll",
         "msort", "trapezoid", "gumbel_softmax", "stft",
         *(f"fft_{kind}fft{axes}" for kind in ("", "i", "r", "ir", "h", "ih")
           for axes in ("", "2", "n")))  # fmt: skip

ORDERS = ("sort", "argsort", "msort", "roll", "flip")
"""Ops along an axis that only put examples into another order."""


def elementwise(op: Op) -> State:
    """An op that works on each element by itself, with broadcasting.

    Raises:
        MixesError, ChangeError: see `Op.plain`.
    """
    return aligned(op, [(n, op.plain(n)) for n in op.operands])


def aligned(op: Op, states: Sequence[tuple[fx.Node, State]], scale: float = 1.0) -> State:
    """Operands broadcast to the first result's shape, with their batch on one axis.

    Raises:
        MixesError: the batch is on different axes: pairs of examples.
    """
    rank = len(op.shapes[0][0])
    found = {
        (state.dim + rank - len(shape_of(node)), state.outer)
        for node, state in states
        if state.kind == SPLIT
    }
    if not found:
        return fresh(op)
    if len(found) > 1:
        raise MixesError("it pairs examples of the batch")
    dim, outer = found.pop()
    return op.split(dim, outer, scale)


def fresh(op: Op) -> State:
    """A result of operands that are the same in all shares: split where its shape has the batch."""
    share, whole = op.shapes[0]
    if share == whole:
        return same(op.known)
    dims = [d for d, (a, b) in enumerate(zip(share, whole, strict=True)) if a != b]
    if len(share) != len(whole) or len(dims) != 1:
        raise UndecidedError("its shape depends on the batch in several ways")
    return op.split(dims[0])


def unary(op: Op) -> State:
    """An op that is linear in its one operand and keeps its shape."""
    return op.state(op.operands[0])


def added(op: Op) -> State:
    """`a + alpha b` or `a - alpha b`: all shares' means add up, and so do equal scales."""
    states = [(n, op.state(n)) for n in op.operands]
    numbers = [a for name, a in op.args.items() if name in ("self", "other")]
    plain_number = any(not isinstance(a, fx.Node) and a not in (0, None) for a in numbers)
    if any(state.kind == SUM for _, state in states):
        return _added_sums(op, states, plain_number)
    scales = {round(s.scale, 12) for _, s in states if s.kind == SPLIT}
    mixed = len(scales) > 1 or plain_number or any(s.kind == SAME for _, s in states)
    if scales and mixed:
        return elementwise(op)
    return aligned(op, [(n, _normal(op, n, s)) for n, s in states], scales.pop() if scales else 1.0)


def _normal(op: Op, node: fx.Node, state: State) -> State:
    return state if state.kind == SPLIT else op.plain(node)


def _added_sums(op: Op, states: list[tuple[fx.Node, State]], number: bool) -> State:
    mean = 1.0 / op.count
    scales = {state.scale for _, state in states if state.kind == SUM}
    alike = len(scales) == 1 and not number and all(s.kind == SUM for _, s in states)
    if alike:
        return State(SUM, scale=scales.pop(), known=op.known)
    for node, state in states:
        if state.kind == SPLIT:
            _give_any(op, states, "it adds a sum over the examples to every example")
        if state.kind == SUM and not is_one(state.scale * op.count):
            raise ChangeError(node, state.scale * op.count)
    return State(SUM, scale=mean, known=op.known)


def _give_any(op: Op, states: Iterable[tuple[fx.Node, State]], why: str) -> None:
    for node, state in states:
        if state.kind == SUM and state.known:
            op.give(node, why)
    raise MixesError(why)


def multiplied(op: Op) -> State:
    """`a * b`: linear in one operand if the other is the same in all shares."""
    states = [(n, op.state(n)) for n in op.operands]
    numbers = [_ratio(op, name) for name in ("self", "other")]
    ratio = numbers[0] * numbers[1]
    sums = [(n, s) for n, s in states if s.kind == SUM]
    if len(sums) == 1 and all(s.kind == SAME for n, s in states if n is not sums[0][0]):
        if len(states) == 1 and op.args["self"] is op.args.get("other"):
            op.give(sums[0][0], "it squares a sum over the examples")
        return State(SUM, scale=sums[0][1].scale * ratio, known=op.known)
    if sums:
        _give_any(op, states, "it multiplies a sum over the examples with something of the batch")
    found = [(n, s if s.kind == SPLIT else op.plain(n)) for n, s in states]
    scale = ratio
    for name in ("self", "other"):
        scale *= op.state(op.args.get(name)).scale
    return _times(op, found, scale)


def _times(op: Op, states: Sequence[tuple[fx.Node, State]], scale: float) -> State:
    state = aligned(op, states, scale)
    if state.kind == SAME and not is_one(scale):
        return State(SUM, scale=scale / op.count, known=op.known)
    return state


def divided(op: Op) -> State:
    """`a / b`: linear in a; b must be the same in all shares, or belong to the example."""
    if op.get("rounding_mode") is not None:
        return elementwise(op)
    over, under = op.args["self"], op.args["other"]
    ratio = _ratio(op, "self") / _ratio(op, "other")
    below = op.state(under) if _is_split(op, under) else op.plain(under)
    above = op.state(over)
    if above.kind == SUM:
        if below.kind == SPLIT:
            op.give(over, "it divides a sum over the examples by something of each example")
        return State(SUM, scale=above.scale / below.scale * ratio, known=op.known)
    states = [(n, op.state(n) if _is_split(op, n) else op.plain(n)) for n in op.operands]
    return _times(op, states, above.scale / below.scale * ratio)


def _is_split(op: Op, value: Any) -> bool:
    return op.state(value).kind == SPLIT


def _ratio(op: Op, name: str) -> float:
    """A number of the whole batch over that of a share: a count of examples gives M."""
    mine, whole = op.args.get(name), op.whole_args.get(name)
    if isinstance(mine, fx.Node) or mine is None or mine == whole:
        return 1.0
    if not mine or not whole:
        raise UndecidedError("a number in it depends on the size of the batch")
    return float(whole) / float(mine)


def reduced(op: Op) -> Any:
    """A reduction over some axes or over all.

    Raises:
        MixesError: over the batch, and neither a sum nor a mean.
    """
    node = op.operands[0]
    state, rank = op.state(node), len(shape_of(node))
    if op.name in ("max", "min") and len(op.operands) == 2:
        return elementwise(op)
    dims = axes(op.get("dim", "dims"), rank)
    if state.kind == SUM and op.name in ("sum", "mean"):
        return state
    if op.name not in ("sum", "mean"):
        state = op.plain(node)
    if state.kind == SAME:
        return each(op, same(op.known))
    if state.dim in dims:
        if op.name in ADDITIVE:
            return State(SUM, scale=state.scale, known=op.known)
        if op.name == "mean":
            return State(SUM, scale=state.scale / op.count, known=op.known)
        raise MixesError("over the batch it is neither a sum nor a mean")
    kept = bool(op.get("keepdim", default=False))
    return each(op, state.at(state.dim if kept else moved(state.dim, dims)))


def axes(given: Any, rank: int) -> set[int]:
    """Axes that a reduction goes over, counted from the front; all if none are given."""
    if given is None or given == []:
        return set(range(rank))
    return {d % max(rank, 1) for d in (given if isinstance(given, list | tuple) else [given])}


def moved(dim: int, gone: set[int]) -> int:
    """An axis after others have gone."""
    return dim - sum(other < dim for other in gone)


def each(op: Op, state: State) -> Any:
    """The same state for every result."""
    value = op.node.meta.get("val")
    return tuple(state for _ in value) if isinstance(value, list | tuple) else state


def along(op: Op) -> Any:
    """An op along one axis that keeps the others apart."""
    node = op.operands[0]
    state = op.plain(node)
    if state.kind == SAME:
        return each(op, same(op.known))
    rank = len(shape_of(node))
    dims = axes(op.get("dim", "dims", "dimension", default=-1), rank)
    if state.dim in dims:
        kind = UndecidedError if op.name in ORDERS else MixesError
        raise kind("it works along the batch")
    return each(op, state)


def product(op: Op) -> State:
    """A product of tensors, as its subscripts say.

    Raises:
        MixesError: it pairs examples with each other, as a matrix of similarities does.
    """
    terms, result, operands = subscripts(op)
    bias = [n for n in op.operands if n not in operands]
    states = [op.state(n) for n in operands]
    if any(s.kind == SUM for s in states):
        return _product_of_sum(op, operands, states, bias)
    letters, scale = set(), 1.0
    for node, term, state in zip(operands, terms, states, strict=True):
        if state.kind == SPLIT:
            letters.add((term[state.dim], state.outer))
            scale *= state.scale
        else:
            op.plain(node)
    if not letters:
        return fresh(op) if not bias else elementwise(op)
    if len(letters) > 1:
        raise MixesError("it pairs examples of the batch with each other")
    letter, outer = letters.pop()
    if letter in result:
        return _with_bias(op, op.split(result.index(letter), outer, scale), bias)
    return _with_bias(op, State(SUM, scale=scale, known=op.known), bias)


def _product_of_sum(
    op: Op, operands: Sequence[fx.Node], states: Sequence[State], bias: list[fx.Node]
) -> State:
    for node, state in zip(operands, states, strict=True):
        others = [s for n, s in zip(operands, states, strict=True) if n is not node]
        if state.kind == SUM and not (others and all(s.kind == SAME for s in others)):
            op.give(node, "it multiplies a sum over the examples with something of the batch")
    state = next(s for s in states if s.kind == SUM)
    return _with_bias(op, State(SUM, scale=state.scale, known=op.known), bias)


def _with_bias(op: Op, state: State, bias: list[fx.Node]) -> State:
    if not bias:
        return state
    if state.kind == SUM or not is_one(state.scale):
        raise UndecidedError("it adds a bias to a scaled sum over the examples")
    found = [(n, op.plain(n)) for n in bias]
    rank = len(op.shapes[0][0])
    for node, other in found:
        where = other.dim + rank - len(shape_of(node))
        if other.kind == SPLIT and (where, other.outer) != (state.dim, state.outer):
            raise MixesError("it pairs examples of the batch with each other")
    return state


LETTERS = "abcdefghijklmnopqrstuvwxyz"
LEAD = LETTERS[:8]


def subscripts(op: Op) -> tuple[list[str], str, list[fx.Node]]:
    """Subscripts of every factor, those of the result, and the factors."""
    given = op.args
    fixed: dict[str, tuple[list[str], str, tuple[str, ...]]] = {
        "mm": (["ij", "jk"], "ik", ("self", "mat2")),
        "addmm": (["ij", "jk"], "ik", ("mat1", "mat2")),
        "bmm": (["bij", "bjk"], "bik", ("self", "mat2")),
        "baddbmm": (["bij", "bjk"], "bik", ("batch1", "batch2")),
        "mv": (["ij", "j"], "i", ("self", "vec")),
        "dot": (["i", "i"], "", ("self", "tensor")),
        "vdot": (["i", "i"], "", ("self", "other")),
        "outer": (["i", "j"], "ij", ("self", "vec2")),
        "ger": (["i", "j"], "ij", ("self", "vec2")),
    }
    if op.name in fixed:
        terms, result, names = fixed[op.name]
        return terms, result, [given[name] for name in names]
    if op.name == "linear":
        rank = len(shape_of(given["input"]))
        lead = LETTERS[: rank - 1]
        return [lead + "y", "zy"], lead + "z", [given["input"], given["weight"]]
    if op.name == "einsum":
        return _einsum(op)
    if op.name in ("matmul", "_cdist_forward", "cdist"):
        return _matmul(op)
    raise UndecidedError("a product without a rule")


def _matmul(op: Op) -> tuple[list[str], str, list[fx.Node]]:
    first, second = list(op.args.values())[:2]
    n, d = len(shape_of(first)), len(shape_of(second))
    a, b = LEAD[len(LEAD) - max(n - 2, 0) :], LEAD[len(LEAD) - max(d - 2, 0) :]
    lead = a if len(a) >= len(b) else b
    left = a + "xy" if n > 1 else "y"
    if op.name == "matmul":
        right = b + "yz" if d > 1 else "y"
    else:
        right = b + "zy"
    result = lead + ("x" if n > 1 else "") + ("z" if d > 1 else "")
    return [left, right], result, [first, second]


def _einsum(op: Op) -> tuple[list[str], str, list[fx.Node]]:
    equation = str(op.args["equation"]).replace(" ", "")
    operands = list(op.args["tensors"])
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if "." in equation or len(terms) != len(operands):
        raise UndecidedError("an einsum with dots has no rule")
    if not arrow:
        letters = left.replace(",", "")
        result = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    return terms, result, operands


PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "dot", "vdot", "outer", "ger", "linear",
            "matmul", "einsum", "cdist", "_cdist_forward")  # fmt: skip

RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTS, elementwise),
    **dict.fromkeys(UNARY, unary),
    **dict.fromkeys(("add", "sub", "rsub", "subtract"), added),
    **dict.fromkeys(("mul", "multiply"), multiplied),
    **dict.fromkeys(("div", "divide", "true_divide"), divided),
    **dict.fromkeys(REDUCTIONS, reduced),
    **dict.fromkeys(ALONG, along),
    **dict.fromkeys(PRODUCTS, product),
}


def is_elementwise(target: Any) -> bool:
    """Whether torch tags an op as one that works element by element."""
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags
