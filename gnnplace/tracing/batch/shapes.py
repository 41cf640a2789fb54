"""Rules of ops that move the batch itself: views, concatenations, look-ups by index, factories."""

from __future__ import annotations

from math import prod

from torch import fx

from gnnplace.tracing.batch.rules import Rule
from gnnplace.tracing.batch.state import (
    MIXED,
    POSITION,
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
    same,
)
from gnnplace.tracing.batch.table import follow_broadcast, follow_move, fresh


def follow_reshape(op: Op) -> State:
    """Follow the batch through `view` and its kin.

    The batch stays where its elements are in memory order. With P elements before the batch,
    the new axis d that grows with the batch must have P = (elements before d) * outer.

    Raises:
        MixesError: the new axes cut the batch elsewhere than between shares.
    """
    state = op.state(op.operands[0])
    if state.kind == SUM:
        return state
    if state.kind == SAME:
        return fresh(op)
    share, full = op.shapes[0]
    shape_before = get_node_shape(op.operands[0])
    dims = [d for d, (a, b) in enumerate(zip(share, full, strict=False)) if a != b]
    if len(share) != len(full) or len(dims) != 1:
        raise MixesError("it cuts the batch elsewhere than between examples")
    # Elements before the batch, and elements before the axis that grows with it.
    num_before = prod(shape_before[: state.dim]) * state.outer
    num_after = prod(share[: dims[0]])
    outer = num_before // max(num_after, 1)
    if num_after * outer != num_before or share[dims[0]] % max(outer, 1):
        raise MixesError("it cuts the batch elsewhere than between examples")
    return state.at(dims[0], outer)


def follow_expand(op: Op) -> States:
    """Follow the batch through `expand`, `repeat`, ….

    What is the same in all shares may be repeated by example.
    """
    state = op.state(op.operands[0])
    if state.kind == SAME:
        return fresh(op)
    if state.kind == SPLIT and "repeat" in op.name:
        return _repeat_batch(op, state)
    return follow_move(op)


def _repeat_batch(op: Op, state: State) -> State:
    """Return the state of copies of the batch: parts of one axis, as of a concatenation."""
    (share, full), new = (
        op.shapes[0],
        len(op.shapes[0][0]) - len(get_node_shape(op.operands[0])),
    )
    dim = state.dim + new
    repeats = op.args["repeats"]
    if isinstance(repeats, fx.Node) or new < 0:
        raise UndecidedError("it repeats by numbers of a tensor, or in one axis")
    if tuple(n * (op.count if k == dim else 1) for k, n in enumerate(share)) != full:
        raise MixesError("it repeats the batch as often as it has examples")
    return state.at(
        dim, state.outer * (1 if isinstance(repeats, int) else repeats[dim])
    )


def broadcast(op: Op) -> tuple[State, ...]:
    """Follow the batch through `broadcast_tensors`: every operand in the common shape.

    Raises:
        MixesError: the batch is on different axes: pairs of examples.
    """
    nodes = list(op.args["tensors"])
    follow_broadcast(op, {n: op.plain(n) for n in nodes})
    states = []
    for node, (share, full) in zip(nodes, op.shapes, strict=True):
        state = op.state(node)
        if state.kind == SPLIT:
            states.append(state.at(state.dim + len(share) - len(get_node_shape(node))))
        else:
            dims = [
                d for d, (a, b) in enumerate(zip(share, full, strict=True)) if a != b
            ]
            states.append(
                State(SPLIT, dims[0], from_batch=state.from_batch) if dims else state
            )
    return tuple(states)


def follow_join(op: Op) -> State:
    """Follow the batch through `cat` and `stack`.

    Equal parts of one batch put after each other along the batch axis are `outer` parts of it.
    `cat` leaves out empty tensors of one axis, as a cache of keys is at first.

    Raises:
        UndecidedError: examples beside something else along one axis.
    """
    nodes = [n for n in op.get("tensors") if get_node_shape(n) != (0,)] or list(
        op.get("tensors")
    )
    if any(op.state(n).kind == SUM for n in nodes):
        return _join_sums(op, nodes)
    states = [op.plain(n) for n in nodes]
    rank = len(get_node_shape(nodes[0]))
    stack = op.name == "stack"
    dim = op.get("dim", default=0) % (rank + stack)
    split = [s for s in states if s.kind == SPLIT]
    if not split:
        return fresh(op)
    places = {(s.dim, s.outer) for s in split}
    if len(places) > 1:
        raise MixesError("it pairs examples of the batch")
    (place, outer) = places.pop()
    if stack or place != dim:
        if len(split) < len(states) and not stack and place >= rank:
            raise UndecidedError("it joins examples with something else")
        return op.split(place + (stack and dim <= place), outer)
    if len(split) < len(states) or len({get_node_shape(n) for n in nodes}) > 1:
        raise UndecidedError("it joins examples with something else along the batch")
    return op.split(place, outer * len(nodes))


def _join_sums(op: Op, nodes: list[fx.Node]) -> State:
    """Return the state of losses in one tensor: all of one scale, or as means."""
    states = [op.state(n) for n in nodes]
    scales = {state.scale if state.kind == SUM else None for state in states}
    if len(scales) == 1:
        return State(SUM, scale=states[0].scale, from_batch=op.from_batch)
    for node, state in zip(nodes, states, strict=True):
        if state.kind != SUM:
            if op.plain(node).kind == SPLIT:
                raise MixesError("it joins a sum over the examples with every example")
        elif not is_one(state.scale * op.count):
            raise ChangeError(node, state.scale * op.count)
    return State(SUM, scale=1.0 / op.count, from_batch=op.from_batch)


def follow_index(op: Op) -> State:
    """Follow the batch through `x[i, j, ...]` with tensors.

    A table by the batch, or each example by its position.

    Raises:
        MixesError: examples are looked up by something else than their position.
    """
    node = op.args["self"]
    indices = list(op.args["indices"])
    state = op.plain(node)
    indexed_axes = [d for d, index in enumerate(indices) if index is not None]
    rank = max(len(get_node_shape(indices[d])) for d in indexed_axes)
    if indexed_axes != list(range(indexed_axes[0], indexed_axes[-1] + 1)):
        raise UndecidedError("it indexes axes that are apart")
    places = {
        _place_batch_axis(op, indices[d], rank, d, state) for d in indexed_axes
    } - {None}
    if not places:
        return _follow_index(op, state, indexed_axes, rank)
    if len(places) > 1:
        raise MixesError("it pairs examples of the batch")
    place, outer = next(iter(places))  # type: ignore[misc]
    return op.split(indexed_axes[0] + place, outer)


def _place_batch_axis(
    op: Op, index: fx.Node, rank: int, dim: int, state: State
) -> tuple[int, int] | None:
    """Return the batch axis of an index after broadcasting, and what comes before it there."""
    index_state = op.state(index)
    is_batch_axis = state.kind == SPLIT and state.dim == dim
    if is_batch_axis and not (index_state.kind == POSITION and state.outer == 1):
        raise UndecidedError("it looks examples up in the batch")
    if index_state.kind == POSITION and not is_batch_axis:
        op.plain(index)
    if index_state.kind not in (SPLIT, POSITION):
        op.plain(index)
        return None
    if (
        state.kind == SPLIT
        and not is_batch_axis
        and index_state.kind == SPLIT
        and not _reads_position(op, state)
    ):
        raise MixesError("it pairs examples of the batch")
    return index_state.dim + rank - len(get_node_shape(index)), index_state.outer


def _reads_position(op: Op, state: State) -> bool:
    """Return whether the batch axis of what is looked up is indexed by positions."""
    indices = op.args["indices"]
    if state.dim < len(indices):
        index = indices[state.dim]
    else:
        index = None
    return index is not None and op.state(index).kind == POSITION


def _follow_index(op: Op, state: State, indexed_axes: list[int], rank: int) -> State:
    """Return the state of a look-up whose indices are the same in all shares."""
    if state.kind == SAME:
        return fresh(op)
    is_before = state.dim < indexed_axes[0]
    return state.at(state.dim if is_before else state.dim - len(indexed_axes) + rank)


def follow_factory(op: Op) -> State:
    """Follow the batch through a factory.

    The same numbers in all shares, in a shape that may have the batch.
    """
    return fresh(op)


def positions(op: Op) -> State:
    """Follow the batch through `arange`: if its end is the batch it counts the examples."""
    share, full = op.shapes[0]
    start = op.get("start", default=0)
    step = op.get("step", default=1)
    if share == full:
        return same(from_batch=True)
    if start != 0 or step != 1 or full[0] != share[0] * op.count:
        return State(
            MIXED, from_batch=True, culprit=op.node, why="it counts the examples"
        )
    return State(POSITION, from_batch=True)


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "view",
            "reshape",
            "_unsafe_view",
            "flatten",
            "unflatten",
            "_reshape_alias",
            "ravel",
            "view_as",
            "reshape_as",
        ),
        follow_reshape,
    ),
    **dict.fromkeys(
        ("expand", "expand_as", "repeat", "repeat_interleave", "broadcast_to"),
        follow_expand,
    ),
    "broadcast_tensors": broadcast,
    **dict.fromkeys(("cat", "concat", "concatenate", "stack"), follow_join),
    "index": follow_index,
    **dict.fromkeys(
        (
            "zeros",
            "ones",
            "full",
            "empty",
            "new_zeros",
            "new_ones",
            "new_full",
            "new_empty",
            "scalar_tensor",
            "rand",
            "randn",
            "randint",
            "tensor",
        ),
        follow_factory,
    ),
    "arange": positions,
}
