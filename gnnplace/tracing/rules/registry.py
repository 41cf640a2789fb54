"""The rule of every call.

Calls that no rule knows: whether parts of the batch can go through them one by one.

Such a call is tried on random numbers: once as a whole, and in 2 and in as many parts as the batch
has (at most 8). If every result is the parts' results side by side, to within rounding, the call is
split along the batch and along nothing else, and says so. What draws random numbers, changes its
arguments, has the batch's size among its arguments or mixes examples fails the trial and stays
whole, as does what is too large to try. A trial is no proof; it is made twice with other numbers.
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
    OwnCall,
    OwnFunction,
    fill,
    in_parts,
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
from gnnplace.tracing.rules.rule import WHOLE, Axes, Case, Rule, case_of, numbered, rows_in, whole
from gnnplace.tracing.rules.shapes import SHAPE_RULES, with_groups

EXAMPLES = "0"  # the label of the batch, as in other rules
MOST_ELEMENTS = 1 << 24  # of all tensors that a call reads or makes, to be tried
MOST_PARTS = 8
SEEDS = (0, 1)
UNKNOWN = "no rule for"  # how the reason of such a call begins


def with_batches(graph: CallGraph, rules: list[Rule]) -> list[Rule]:
    """Rules with the calls that none knows split along the batch, where that can be."""
    inputs = [(i, v) for i, v in enumerate(graph.values) if v.source == INPUT and v.shape]
    examples = inputs[0][1].shape[0] if inputs else 1
    axis = {i: 0 for i, v in inputs if v.shape[0] == examples}
    found = []
    for call, rule in zip(graph.calls, rules, strict=True):
        if rule.kind == WHOLE and rule.reason.startswith(UNKNOWN) and examples > 1:
            rule = _tried(graph, call, rule, axis, examples)
        found.append(rule)
        _follow(call, rule, axis)
    return found


def _follow(call: LayerCall, rule: Rule, axis: dict[int, int]) -> None:
    """Notes which axes of a call's results are the batch."""
    for value, axes in zip(call.reads, rule.reads, strict=True):
        entry = axes[axis[value]] if value in axis and axis[value] < len(axes) else None
        label = first_label(entry)
        if label is None:
            continue
        for result, made in zip(call.results, rule.results, strict=True):
            firsts = [first_label(one) for one in made]
            if label in firsts:
                axis[result] = firsts.index(label)


def _tried(
    graph: CallGraph, call: LayerCall, rule: Rule, axis: Mapping[int, int], examples: int
) -> Rule:
    """The rule of a call that may be split along the batch; as it was where it may not."""
    if call.changes or call.inplace or not any(value in axis for value in call.reads):
        return rule
    values = [graph.values[v] for v in (*call.reads, *call.results)]
    if sum(math.prod(v.shape) for v in values) > MOST_ELEMENTS:
        return replace(rule, reason=f"{rule.reason}; it is too large to try in parts")
    made: tuple[int, ...] | None = None
    for seed in SEEDS:
        for parts in sorted({_fewest_parts(examples), _most_parts(examples)}):
            there = _axes_in_parts(graph, call, axis, parts, seed)
            own = isinstance(call.function, OwnFunction)
            apart = not own or in_parts(_own(graph, call), tuple(map(axis.get, call.reads)), parts)
            if there is None or (made is not None and there != made) or not apart:
                return rule
            made = there
    assert made is not None
    return replace(
        rule,
        extents={EXAMPLES: math.gcd(*(_sizes(graph, call, axis, made)))},
        reads=tuple(_labels(len(graph.values[v].shape), axis.get(v)) for v in call.reads),
        results=tuple(
            _labels(len(graph.values[v].shape), at)
            for v, at in zip(call.results, made, strict=True)
        ),
        reason=f"{rule.reason}: along the batch alone, as tried",
    )


def _own(graph: CallGraph, call: LayerCall) -> OwnCall:
    """A call of an autograd function of a user's, to be tried."""
    args = fill(call.args, graph.values.__getitem__)
    return OwnCall.of(call.function, args, LayerValue)  # type: ignore[arg-type]


def _of_own(graph: CallGraph, case: Case) -> Rule:
    """The rule of such a call: by those axes of its results along which it goes, tried in parts."""
    call, made, labels = case.call, case.results[0], numbered(len(case.results[0]))
    longer = any(len(shape) > len(made) for shape in case.shapes)
    if call.inplace or longer or len({*case.results}) > 1:
        return whole(case, f"{UNKNOWN} {call.kind!r}")
    reads = [broadcast(shape, made, labels) for shape in case.shapes]

    def goes(label: str, size: int) -> bool:
        axes = tuple(x.index(label) if label in x else None for x in reads)
        return size > 1 and in_parts(_own(graph, call), axes, _fewest_parts(size))

    whole_axes = [k for k, size in enumerate(made) if not goes(str(k), size)]
    if len(whole_axes) == len(made):
        return whole(case, f"{UNKNOWN} {call.kind!r}")
    axes = numbered(len(made), *whole_axes)
    parted = [broadcast(shape, made, axes) for shape in case.shapes]
    return case.reads(*parted).rule(ELEMENTWISE, *[axes] * len(case.results))


def _fewest_parts(examples: int) -> int:
    return next(k for k in range(2, examples + 1) if examples % k == 0)


def _most_parts(examples: int) -> int:
    most = [k for k in range(2, min(examples, MOST_PARTS) + 1) if examples % k == 0]
    return max(most, default=examples)


def _labels(rank: int, axis: int | None) -> Axes:
    return tuple(EXAMPLES if k == axis else None for k in range(rank))


def _sizes(
    graph: CallGraph, call: LayerCall, axis: Mapping[int, int], made: tuple[int, ...]
) -> list[int]:
    read = [graph.values[v].shape[axis[v]] for v in call.reads if v in axis]
    return read + [graph.values[v].shape[k] for v, k in zip(call.results, made, strict=True)]


def _axes_in_parts(
    graph: CallGraph, call: LayerCall, axis: Mapping[int, int], parts: int, seed: int
) -> tuple[int, ...] | None:
    """The axis of each result along which parts of the batch lie; None if they do not."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawn = {v: _drawn(graph.values[v].shape, graph.values[v].dtype) for v in call.reads}
        try:
            whole = _results(call, drawn)
            shares = [_results(call, _part(drawn, axis, parts, k)) for k in range(parts)]
        except Exception:  # whatever an unknown function raises: it cannot be tried
            return None
    found = [_joined(one, [s[i] for s in shares]) for i, one in enumerate(whole)]
    fits = len(whole) == len(call.results) and all(len(s) == len(whole) for s in shares)
    known = tuple(k for k in found if k is not None)
    return known if fits and known and len(known) == len(found) else None


def _drawn(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    return torch.randint(0, 2, shape).to(dtype)


def _part(
    drawn: Mapping[int, torch.Tensor], axis: Mapping[int, int], parts: int, k: int
) -> dict[int, torch.Tensor]:
    return {v: t.chunk(parts, axis[v])[k] if v in axis else t for v, t in drawn.items()}


def _results(call: LayerCall, tensors: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
    copies = {v: t.clone() for v, t in tensors.items()}
    made: Any = call.function(
        *fill(call.args, copies.__getitem__), **fill(call.kwargs, copies.__getitem__)
    )
    if any(not torch.equal(copies[v], tensors[v]) for v in tensors):
        raise ValueError(f"{call.kind}: changes what it reads")
    leaves = pytree.tree_leaves(made)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _joined(whole: torch.Tensor, shares: list[torch.Tensor]) -> int | None:
    """The axis along which shares side by side are the whole, if there is one."""
    for axis in range(whole.dim()):
        rest = [s.shape[:axis] + s.shape[axis + 1 :] for s in (whole, *shares)]
        size = sum(s.shape[axis] for s in shares if s.dim() == whole.dim())
        if len(set(rest)) > 1 or size != whole.shape[axis]:
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

IN_PLACE = ("add", "sub", "mul", "truediv", "floordiv", "pow", "mod", "and", "or", "xor")
"""Python's operators that change what is on their left, without their `__i`."""
ORDERS: dict[str, tuple[str, ...]] = {  # of tensors, as the rules expect them
    "linear": ("input", "weight", "bias"),
    "addmm": ("input", "mat1", "mat2"),
    **dict.fromkeys(("matmul", "mm", "bmm"), ("input", "other")),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", *TRANSPOSED), ("input", "weight", "bias")),
    "scaled_dot_product_attention": ("query", "key", "value", "attn_mask"),
    "multi_head_attention_forward": ("query", "key", "value"),
    "embedding": ("input", "weight"),
    "batch_norm": ("input",),
    "layer_norm": ("input",),
    **dict.fromkeys(("cross_entropy", "nll_loss"), ("input", "target", "weight")),
}


def rules_of(graph: CallGraph) -> tuple[Rule, ...]:
    """A rule for each call of a graph."""
    rules, rows = [], dict[int, int]()
    for call in graph.calls:
        case = case_of(graph, call, rows)
        own = isinstance(call.function, OwnFunction)
        rules.append(rule := _of_own(graph, case) if own else rule_of(case))
        found = zip(call.results, map(rows_in, rule.results), strict=True)
        rows.update((value, examples) for value, examples in found if examples is not None)
    return with_groups(graph, with_batches(graph, rules))


def rule_of(case: Case) -> Rule:
    """How a call can be split; whole where that is not known."""
    if not case.shapes:
        return whole(case, "")
    name = case.call.kind
    if case.results[0] and changes_in_place(case.call) and not case.call.inplace:
        return whole(case, "it changes a buffer in place")
    found = RULES.get(name)
    if found is None:
        if not is_elementwise(name) or case.call.changes:
            return whole(case, f"{UNKNOWN} {name!r}")
        found = elementwise_rule
    if not _ordered(case, ORDERS.get(name, ())):
        return whole(case, f"{name} with keywords in another order")
    return found(case)


def changes_in_place(call: LayerCall) -> bool:
    """Whether a call changes what it reads first, or its `out`; where it is no value, a buffer."""
    name = getattr(call.function, "__name__", "")
    plain = name.endswith("_") and not name.endswith("__")
    operator = name[:3] == "__i" and name[3:-2] in IN_PLACE
    return plain or operator or call.kwargs.get("out") is not None


def _ordered(case: Case, names: tuple[str, ...]) -> bool:
    """Whether the first tensors that a call reads are those that a rule expects, in its order."""
    slots = [case.slot(position, name) for position, name in enumerate(names)]
    given = [slot for slot in slots if slot is not None]
    return given == list(range(len(given)))
