"""The rule of every call, including calls without a rule of their own.

A call without a rule is tried on random numbers: once whole, once in 2 parts, and once in as many
parts as the batch has examples (at most 8). If every result is the concatenation of the parts'
results, up to rounding, the call is split along the batch only, and a line says so. A call is not
split if it draws random numbers, changes its arguments, has the batch's size among its arguments,
mixes examples, or is too large to try. A trial is not a proof; it is made twice, with different
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from gnnplace.torch_names import pytree
from gnnplace.tracing.calls import (
    INPUT,
    CallGraph,
    LayerCall,
    LayerValue,
    UserCall,
    UserFunction,
    agrees_in_parts,
    fill,
)
from gnnplace.tracing.rules import first_label
from gnnplace.tracing.rules.attention import ATTENTION_RULES
from gnnplace.tracing.rules.elementwise import (
    ELEMENTWISE,
    ELEMENTWISE_RULES,
    broadcast,
    elementwise_rule,
    is_elementwise,
)
from gnnplace.tracing.rules.experts import EXPERT_RULES
from gnnplace.tracing.rules.losses import LOSS_RULES
from gnnplace.tracing.rules.norms import NORM_RULES
from gnnplace.tracing.rules.products import PRODUCT_RULES, TRANSPOSED
from gnnplace.tracing.rules.rule import (
    WHOLE,
    Axes,
    Case,
    Rule,
    count_rows,
    make_case,
    make_unsplit_rule,
    number_axes,
)
from gnnplace.tracing.rules.shapes import SHAPE_RULES, with_groups

EXAMPLES = "0"  # the label of the batch, as in other rules
# A call is tried if all tensors that it reads or makes have at most as many.
MOST_ELEMENTS = 1 << 24
MOST_PARTS = 8
SEEDS = (0, 1)
UNKNOWN = "no rule for"  # The reason of a call without a rule begins with it


def with_batches(graph: CallGraph, rules: list[Rule]) -> list[Rule]:
    """Return rules with calls that no rule knows split along the batch, if they can be."""
    inputs = [
        (i, v) for i, v in enumerate(graph.values) if v.source == INPUT and v.shape
    ]
    examples = inputs[0][1].shape[0] if inputs else 1
    axis = {i: 0 for i, v in inputs if v.shape[0] == examples}
    followed = []
    for call, rule in zip(graph.calls, rules, strict=True):
        if rule.kind == WHOLE and rule.reason.startswith(UNKNOWN) and examples > 1:
            rule = _try_rule(graph, call, rule, axis, examples)
        followed.append(rule)
        _follow(call, rule, axis)
    return followed


def _follow(call: LayerCall, rule: Rule, axis: dict[int, int]) -> None:
    """Note which axes of a call's results are the batch."""
    for value, axes in zip(call.reads, rule.reads, strict=True):
        if value in axis and axis[value] < len(axes):
            entry = axes[axis[value]]
        else:
            entry = None
        label = first_label(entry)
        if label is None:
            continue
        for result, result_axes in zip(call.results, rule.results, strict=True):
            firsts = [first_label(entry) for entry in result_axes]
            if label in firsts:
                axis[result] = firsts.index(label)


def _try_rule(
    graph: CallGraph,
    call: LayerCall,
    rule: Rule,
    axis: Mapping[int, int],
    examples: int,
) -> Rule:
    """Return the rule of a call that may be split along the batch; as it was if it may not."""
    if call.changes or call.inplace or not any(value in axis for value in call.reads):
        return rule
    values = [graph.values[v] for v in (*call.reads, *call.results)]
    if sum(math.prod(v.shape) for v in values) > MOST_ELEMENTS:
        return replace(rule, reason=f"{rule.reason}; it is too large to try in parts")
    result_axes: tuple[int, ...] | None = None
    for seed in SEEDS:
        for parts in sorted({_fewest_parts(examples), _find_most_parts(examples)}):
            axes = _axes_in_parts(graph, call, axis, parts, seed)
            if axes is None or (result_axes is not None and axes != result_axes):
                return rule
            if isinstance(call.function, UserFunction) and not agrees_in_parts(
                _user_call(graph, call), tuple(map(axis.get, call.reads)), parts
            ):
                return rule
            result_axes = axes
    assert result_axes is not None
    return replace(
        rule,
        extents={EXAMPLES: math.gcd(*(_sizes(graph, call, axis, result_axes)))},
        reads=tuple(
            _labels(len(graph.values[v].shape), axis.get(v)) for v in call.reads
        ),
        results=tuple(
            _labels(len(graph.values[v].shape), batch_axis)
            for v, batch_axis in zip(call.results, result_axes, strict=True)
        ),
        reason=f"{rule.reason}: along the batch alone, as tried",
    )


def _user_call(graph: CallGraph, call: LayerCall) -> UserCall:
    """Return a call of a user's autograd function, to be tried."""
    args = fill(call.args, graph.values.__getitem__)
    return UserCall.of(call.function, args, LayerValue)  # type: ignore[arg-type]


def _user_rule(graph: CallGraph, case: Case) -> Rule:
    """Return the rule of a user's autograd function, by the axes of its results that may be cut."""
    call = case.call
    result = case.results[0]
    labels = number_axes(len(result))
    longer = any(len(shape) > len(result) for shape in case.shapes)
    if call.inplace or longer or len({*case.results}) > 1:
        return make_unsplit_rule(case, f"{UNKNOWN} {call.kind!r}")
    reads = [broadcast(shape, result, labels) for shape in case.shapes]

    def can_be_cut(label: str, size: int) -> bool:
        axes = tuple(x.index(label) if label in x else None for x in reads)
        return size > 1 and agrees_in_parts(
            _user_call(graph, call), axes, _fewest_parts(size)
        )

    whole_axes = [k for k, size in enumerate(result) if not can_be_cut(str(k), size)]
    if len(whole_axes) == len(result):
        return make_unsplit_rule(case, f"{UNKNOWN} {call.kind!r}")
    axes = number_axes(len(result), *whole_axes)
    read_axes = [broadcast(shape, result, axes) for shape in case.shapes]
    return case.reads(*read_axes).rule(ELEMENTWISE, *[axes] * len(case.results))


def _fewest_parts(examples: int) -> int:
    """Return the smallest number of equal parts of a batch, from 2 on."""
    return next(k for k in range(2, examples + 1) if examples % k == 0)


def _find_most_parts(examples: int) -> int:
    """Return the largest number of equal parts of a batch, at most `MOST_PARTS`."""
    counts = [k for k in range(2, min(examples, MOST_PARTS) + 1) if examples % k == 0]
    return max(counts, default=examples)


def _labels(rank: int, axis: int | None) -> Axes:
    """Return axes of which one is the batch."""
    return tuple(EXAMPLES if k == axis else None for k in range(rank))


def _sizes(
    graph: CallGraph,
    call: LayerCall,
    axis: Mapping[int, int],
    result_axes: tuple[int, ...],
) -> list[int]:
    """Return the sizes of the batch in all tensors that a call reads and makes."""
    read = [graph.values[v].shape[axis[v]] for v in call.reads if v in axis]
    return read + [
        graph.values[v].shape[k] for v, k in zip(call.results, result_axes, strict=True)
    ]


def _axes_in_parts(
    graph: CallGraph, call: LayerCall, axis: Mapping[int, int], parts: int, seed: int
) -> tuple[int, ...] | None:
    """Return the axis of each result along which parts of the batch lie; None if they do not."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawn = {
            v: _draw_tensor(graph.values[v].shape, graph.values[v].dtype)
            for v in call.reads
        }
        try:
            full = _results(call, drawn)
            shares = [
                _results(call, _part(drawn, axis, parts, k)) for k in range(parts)
            ]
        except Exception:  # whatever an unknown function raises: it cannot be tried
            return None
    fits = len(full) == len(call.results) and all(
        len(share) == len(full) for share in shares
    )
    if not fits or not full:
        return None
    axes = [
        _find_joined_axis(result, [s[i] for s in shares])
        for i, result in enumerate(full)
    ]
    joined_axes = tuple(axis for axis in axes if axis is not None)
    if len(joined_axes) == len(axes):
        return joined_axes
    return None


def _draw_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return random numbers of a shape and type; whole numbers are 0 and 1."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    return torch.randint(0, 2, shape).to(dtype)


def _part(
    drawn: Mapping[int, torch.Tensor], axis: Mapping[int, int], parts: int, k: int
) -> dict[int, torch.Tensor]:
    """Return the tensors of one part of the batch."""
    return {v: t.chunk(parts, axis[v])[k] if v in axis else t for v, t in drawn.items()}


def _results(
    call: LayerCall, tensors: Mapping[int, torch.Tensor]
) -> list[torch.Tensor]:
    """Return the tensors that a call makes.

    Raises:
        ValueError: it changes what it reads.
    """
    copies = {v: t.clone() for v, t in tensors.items()}
    output: Any = call.function(
        *fill(call.args, copies.__getitem__), **fill(call.kwargs, copies.__getitem__)
    )
    if any(not torch.equal(copies[v], tensors[v]) for v in tensors):
        raise ValueError(f"{call.kind}: changes what it reads")
    leaves = pytree.tree_leaves(output)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _find_joined_axis(whole: torch.Tensor, shares: list[torch.Tensor]) -> int | None:
    """Return the axis along which shares side by side are the whole, if there is one."""
    for axis in range(whole.dim()):
        other_sizes = [s.shape[:axis] + s.shape[axis + 1 :] for s in (whole, *shares)]
        size = sum(s.shape[axis] for s in shares if s.dim() == whole.dim())
        if len(set(other_sizes)) > 1 or size != whole.shape[axis]:
            continue
        joined = torch.cat(shares, axis)
        close = torch.isclose(joined, whole, rtol=1e-3, atol=1e-5, equal_nan=True)
        if joined.dtype == whole.dtype and bool(close.all()):
            return axis
    return None


RULES: dict[str, Callable[[Case], Rule]] = {
    **SHAPE_RULES,
    **ELEMENTWISE_RULES,
    **PRODUCT_RULES,
    **ATTENTION_RULES,
    **NORM_RULES,
    **LOSS_RULES,
    **EXPERT_RULES,
}

IN_PLACE = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "pow",
    "mod",
    "and",
    "or",
    "xor",
)
"""Python's operators that change what is on their left, without their `__i`."""
ORDERS: dict[str, tuple[str, ...]] = {  # of tensors, as the rules expect them
    "linear": ("input", "weight", "bias"),
    "addmm": ("input", "mat1", "mat2"),
    **dict.fromkeys(("matmul", "mm", "bmm"), ("input", "other")),
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d", *TRANSPOSED), ("input", "weight", "bias")
    ),
    "scaled_dot_product_attention": ("query", "key", "value", "attn_mask"),
    "multi_head_attention_forward": ("query", "key", "value"),
    "embedding": ("input", "weight"),
    "batch_norm": ("input",),
    "layer_norm": ("input",),
    **dict.fromkeys(("cross_entropy", "nll_loss"), ("input", "target", "weight")),
}


def find_rules(graph: CallGraph) -> tuple[Rule, ...]:
    """Return a rule for each call of a graph."""
    rules = []
    rows = dict[int, int]()
    for call in graph.calls:
        case = make_case(graph, call, rows)
        is_users = isinstance(call.function, UserFunction)
        if is_users:
            rule = _user_rule(graph, case)
        else:
            rule = find_rule(case)
        rules.append(rule)
        for value, axes in zip(call.results, rule.results, strict=True):
            examples = count_rows(axes)
            if examples is not None:
                rows[value] = examples
    return with_groups(graph, with_batches(graph, rules))


def find_rule(case: Case) -> Rule:
    """Return how a call can be split; not at all if that is not known."""
    if not case.shapes:
        return make_unsplit_rule(case, "")
    name = case.call.kind
    if case.results[0] and changes_in_place(case.call) and not case.call.inplace:
        return make_unsplit_rule(case, "it changes a buffer in place")
    make_rule = RULES.get(name)
    if make_rule is None:
        if not is_elementwise(name) or case.call.changes:
            return make_unsplit_rule(case, f"{UNKNOWN} {name!r}")
        make_rule = elementwise_rule
    if not _is_in_order(case, ORDERS.get(name, ())):
        return make_unsplit_rule(case, f"{name} with keywords in another order")
    return make_rule(case)


def changes_in_place(call: LayerCall) -> bool:
    """Return whether a call changes its first operand (if no value, a buffer) or its `out`."""
    name = getattr(call.function, "__name__", "")
    plain = name.endswith("_") and not name.endswith("__")
    operator = name[:3] == "__i" and name[3:-2] in IN_PLACE
    return plain or operator or call.kwargs.get("out") is not None


def _is_in_order(case: Case, names: tuple[str, ...]) -> bool:
    """Return whether the first tensors that a call reads are a rule's first, in its order."""
    slots = [case.slot(position, name) for position, name in enumerate(names)]
    tensor_slots = [slot for slot in slots if slot is not None]
    return tensor_slots == list(range(len(tensor_slots)))
