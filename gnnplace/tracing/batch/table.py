"""States by the table of rules that layers are split by (`tracing.rules`).

A rule says which axes of an op's tensors are cut together: those of one label. Shares of the batch
go through the op as parts of a label do if, in every tensor that has the label, it is where the
batch is: then the results that have it are split there, and those that lack it are sums over the
shares. Rules are asked about the op in the graph of the whole batch. If parts exchange something or
compute by something else than the op, nothing follows for shares (`Rule.is_plain`).

Dropout is off and batch norm is frozen, the two stated exceptions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from torch import fx

from gnnplace.tracing.batch.numbers import switch_off
from gnnplace.tracing.batch.state import (
    POSITION,
    SAME,
    SPLIT,
    SUM,
    MixesError,
    Op,
    State,
    States,
    UndecidedError,
    flat_nodes,
    get_node_shape,
    is_one,
    only_state,
    same,
)
from gnnplace.tracing.calls import CallRef, LayerCall
from gnnplace.tracing.guards import is_static
from gnnplace.tracing.rules import RULES as TABLE
from gnnplace.tracing.rules import (
    WHOLE,
    Axes,
    Case,
    Rule,
    base_label,
    count_groups,
    elementwise_rule,
    find_rule,
    list_labels,
    make_example_rule,
)

PAIRS = "it pairs examples of the batch with each other"


def follow_nonlinear(op: Op) -> States:
    """Follow the batch through an op that is not linear.

    Its operands must be the same in all shares, or split.
    """
    states = {n: op.plain(n) for n in op.operands}
    return find_result_states(op, states, rule=SIZED.get(op.name, find_rule))


def follow_move(op: Op) -> States:
    """Follow the batch through an op that only moves the elements of its first operand.

    A sum stays one.
    """
    node, *operands = op.operands
    state = op.state(node)
    if state.kind == SUM:
        return each(op, state)
    states = {node: replace(state, kind=SPLIT) if state.kind == POSITION else state}
    result = find_result_states(
        op, states | {n: op.plain(n) for n in operands}, state.scale
    )
    if state.kind == POSITION:
        return replace(only_state(result), kind=POSITION)
    return result


def follow_slice(op: Op) -> States:
    """Follow the batch through an op that takes a slice of examples, or of each example.

    Raises:
        UndecidedError: every share takes the first rows of a table, as many as it has examples.
    """
    node, (share, full) = op.operands[0], op.shapes[0]
    state = op.state(node)
    if state.kind == SAME and share != full:
        raise UndecidedError("it takes as many rows of a table as there are examples")
    if (share, full) == (
        get_node_shape(node),
        get_node_shape(op.find_twin(node)),
    ) and len(op.shapes) == 1:
        return each(op, state)
    return follow_move(op)


def product(op: Op) -> State:
    """Follow the batch through a product of tensors, to which a bias may be added.

    Linear in each of them.
    """
    bias = op.args.get(BIASES.get(op.name, ""))
    if bias is None:
        bias_states = {}
    else:
        bias_states = {bias: op.plain(bias)}
    factors = [n for n in flat_nodes(op.node) if n is not bias]
    sums = [n for n in factors if op.state(n).kind == SUM]
    scale = math.prod(op.state(n).scale for n in factors)
    if not sums:
        states = {
            n: op.state(n) if op.state(n).kind == SPLIT else op.plain(n)
            for n in factors
        }
        state = only_state(find_result_states(op, states | bias_states, scale))
    elif len(sums) > 1 or any(op.state(n).kind == SPLIT for n in factors):
        op.give(
            sums[0], "it multiplies a sum over the examples with something of the batch"
        )
    else:
        state = State(SUM, scale=scale, from_batch=op.from_batch)
    if bias is not None and (state.kind == SUM or not is_one(state.scale)):
        raise UndecidedError("it adds a bias to a scaled sum over the examples")
    return state


def follow_broadcast(
    op: Op, states: Mapping[fx.Node, State], scale: float = 1.0
) -> States:
    """Follow the batch through an op whose operands are broadcast to the first result."""
    rank = len(op.shapes[0][1])
    loses_axes = (
        any(len(get_node_shape(n)) > rank for n in states)
        or len({len(s) for s, _ in op.shapes}) > 1
    )
    if loses_axes:
        raise UndecidedError("its results have fewer axes than it reads")
    return find_result_states(op, states, scale, rule=elementwise_rule)


def find_result_states(
    op: Op,
    states: Mapping[fx.Node, State],
    scale: float = 1.0,
    *,
    rule: Callable[[Case], Rule] = find_rule,
) -> States:
    """Return the state of each result, by the label of the axis that the batch is on.

    Args:
        op: the op.
        states: states of its operands, each the same in all shares or split.
        scale: the scale of the results.
        rule: gives the op's rule.

    Raises:
        MixesError, UndecidedError: examples do not go through it as the parts of a label do.
    """
    if all(state.kind == SAME for state in states.values()):
        return each(op, fresh(op))
    nodes, case = _case(op)
    op_rule = rule(case)
    if op_rule.kind == WHOLE:
        raise UndecidedError(op_rule.reason)
    slots = [
        (states[node], axes) for node, axes in zip(nodes, op_rule.reads, strict=True)
    ]
    # The label of the batch's axis must be the same in all split operands.
    places = {(_label(axes[s.dim]), s.outer) for s, axes in slots if s.kind == SPLIT}
    label, outer = next(iter(places))
    why = WHY.get(op.name, "it works along the batch")
    if label is None and len(places) == 1:
        raise (UndecidedError if op.name in UNSURE else MixesError)(why)
    unsplit_axes = [axes for state, axes in slots if state.kind != SPLIT]
    if len(places) > 1 or any(label in map(_label, axes) for axes in unsplit_axes):
        raise MixesError(PAIRS)
    if not op_rule.is_plain(label or ""):
        raise UndecidedError(why)
    split = State(SPLIT, 0, outer, scale, op.from_batch)
    results = [_state(op, axes, split, label) for axes in op_rule.results]
    if isinstance(op.node.meta.get("val"), list | tuple):
        return tuple(results)
    return results[0]


def _state(op: Op, axes: Axes, state: State, label: str | None) -> State:
    """Return the state of a result: split along the axis of the label, else a sum."""
    labels = list(map(_label, axes))
    if label in labels:
        return state.at(labels.index(label))
    return State(SUM, scale=state.scale, from_batch=op.from_batch)


def _label(entry: str | None) -> str | None:
    """Return the first label of an axis, unless it cuts groups of it."""
    first = next(iter(list_labels(entry)), None)
    if first is None or count_groups(first) > 1:
        return None
    return base_label(first)


def _case(op: Op) -> tuple[list[fx.Node], Case]:
    """Return what the share's op reads, and the call of the whole batch's op, in torch's order."""
    nodes: list[fx.Node] = []
    fx.map_arg(
        _arguments(op, op.node), lambda n: None if is_static(n) else nodes.append(n)
    )
    shapes: list[tuple[int, ...]] = []
    number = count()

    def reference(node: fx.Node) -> Any:
        if is_static(node):
            return node.meta.get("val")
        shapes.append(get_node_shape(node))
        return CallRef(next(number))

    args, kwargs = fx.map_arg(_arguments(op, op.twin), reference)
    function = op.node.target.overloadpacket  # type: ignore[union-attr]
    result_shapes = tuple(full for _, full in op.shapes)
    call = LayerCall(
        name=op.node.name,
        function=function,
        args=tuple(args),
        kwargs=dict(kwargs),
        reads=(),
        results=(),
        module="",
        inplace=True,
    )
    return nodes, Case(call, tuple(shapes), result_shapes)


def _arguments(op: Op, node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return an op's arguments as the function of torch has them that it is named after."""
    args, kwargs = switch_off(node)
    if op.name == "embedding":  # the indices are first, and rows may be renormed
        if len(args) > 3:
            options = {"scale_grad_by_freq": args[3]}
        else:
            options = {}
        return (args[1], args[0], *args[2:3]), kwargs | options
    return tuple(args), kwargs


def fresh(op: Op) -> State:
    """Return the state of a result whose operands are the same in all shares.

    It is split if its shape has the batch.

    Raises:
        UndecidedError: several axes differ.
    """
    share, full = op.shapes[0]
    if share == full:
        return same(op.from_batch)
    dims = [d for d, (a, b) in enumerate(zip(share, full, strict=True)) if a != b]
    if len(share) != len(full) or len(dims) != 1:
        raise UndecidedError("its shape depends on the batch in several ways")
    return op.split(dims[0])


def each(op: Op, state: State) -> States:
    """Return the same state for every result."""
    value = op.node.meta.get("val")
    if isinstance(value, list | tuple):
        return tuple(state for _ in value)
    return state


UNSURE = (
    "sort",
    "argsort",
    "msort",
    "roll",
    "flip",
    "embedding",
    "gather",
    "take_along_dim",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "index_select",
    "conv1d",
    "conv2d",
    "conv3d",
)
"""Ops that only put examples into another order, or look them up."""
PICKS = (
    "slice",
    "narrow",
    "select",
    "unbind",
    "split",
    "split_with_sizes",
    "chunk",
    "unsafe_split",
    "unsafe_chunk",
    "tensor_split",
)
BIASES = {"linear": "bias", "addmm": "self", "baddbmm": "self"}
WHYS = {
    "it lets examples attend to each other": ("scaled_dot_product_attention",),
    "it takes statistics of the batch": (
        "layer_norm",
        "native_layer_norm",
        "rms_norm",
        "_fused_rms_norm",
    ),
    "it runs along the batch": (
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
        "lstm_cell",
        "gru_cell",
        "rnn_tanh_cell",
        "rnn_relu_cell",
    ),
    "it picks examples of the batch": PICKS,
    "it pads the batch": ("pad", "constant_pad_nd"),
}
"""What ops do to examples whose axis has no label."""
WHY = {name: why for why, names in WHYS.items() for name in names}
SIZED = {
    "affine_grid_generator": make_example_rule(3),
    "native_group_norm": make_example_rule(2),
}
"""Rules of ops that read the size of the batch itself: no part can have a call of the whole."""
RULES: dict[str, Callable[[Op], States]] = {
    **dict.fromkeys((*TABLE, *SIZED), follow_nonlinear),
    **dict.fromkeys(
        (
            "permute",
            "transpose",
            "t",
            "swapaxes",
            "swapdims",
            "movedim",
            "moveaxis",
            "numpy_T",
            "mT",
            "adjoint",
            "unsqueeze",
            "squeeze",
        ),
        follow_move,
    ),
    **dict.fromkeys(PICKS, follow_slice),
    **dict.fromkeys(
        (
            "mm",
            "addmm",
            "bmm",
            "baddbmm",
            "mv",
            "dot",
            "vdot",
            "outer",
            "ger",
            "linear",
            "matmul",
            "einsum",
        ),
        product,
    ),
}
"""All that the table has; `axis` puts the rules of sums and of the batch itself before it."""
