"""Rules of ops that only move elements: views, slices, concatenations, look-ups."""

from __future__ import annotations

from math import prod
from typing import Any

from torch import fx

from gnnplace.tracing.batch_rules import Rule, aligned, axes, each, fresh, moved
from gnnplace.tracing.batch_state import (
    MIXED,
    POSITION,
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


def carried(op: Op) -> State | None:
    """The state of the one operand where its axes do not matter: the same, or a sum.

    A sum over examples keeps its meaning under every op of this file.
    """
    state = op.state(op.operands[0]) if op.operands else same(known=True)
    return state if state.kind == SUM else None


def reshaped(op: Op) -> State:
    """`view` and its kin: the batch stays where its elements are in memory order.

    With P elements before the batch, the new axis d that grows with the batch must have P =
    (elements before d) * outer.

    Raises:
        MixesError: the new axes cut the batch elsewhere than between shares.
    """
    if (found := carried(op)) is not None:
        return found
    state = op.state(op.operands[0])
    if state.kind == SAME:
        return fresh(op)
    (share, whole), before = op.shapes[0], shape_of(op.operands[0])
    dims = [d for d, (a, b) in enumerate(zip(share, whole, strict=False)) if a != b]
    if len(share) != len(whole) or len(dims) != 1:
        raise MixesError("it cuts the batch elsewhere than between examples")
    ahead, new = prod(before[: state.dim]) * state.outer, prod(share[: dims[0]])
    outer = ahead // max(new, 1)
    if new * outer != ahead or share[dims[0]] % max(outer, 1):
        raise MixesError("it cuts the batch elsewhere than between examples")
    return state.at(dims[0], outer)


def transposed(op: Op) -> State:
    """Axes in another order."""
    if (found := carried(op)) is not None:
        return found
    state, rank = op.state(op.operands[0]), len(shape_of(op.operands[0]))
    if state.kind == SAME:
        return state
    return state.at(_order(op, rank).index(state.dim))


def _order(op: Op, rank: int) -> list[int]:
    order = list(range(rank))
    if op.name == "permute":
        return [d % rank for d in op.args["dims"]]
    if op.name in ("movedim", "moveaxis"):
        return _moved_order(op, rank)
    if op.name in ("t", "numpy_T", "mT", "adjoint"):
        first, second = (0, 1) if op.name == "t" and rank == 2 else (rank - 2, rank - 1)
    else:
        first = op.get("dim0", "axis0") % rank
        second = op.get("dim1", "axis1") % rank
    if rank > 1:
        order[first], order[second] = second, first
    return order


def _moved_order(op: Op, rank: int) -> list[int]:
    sources, targets = op.args["source"], op.args["destination"]
    sources = [d % rank for d in (sources if isinstance(sources, list | tuple) else [sources])]
    targets = [d % rank for d in (targets if isinstance(targets, list | tuple) else [targets])]
    order = [-1] * rank
    for source, target in zip(sources, targets, strict=True):
        order[target] = source
    rest = iter(d for d in range(rank) if d not in sources)
    return [next(rest) if d < 0 else d for d in order]


def unsqueezed(op: Op) -> State:
    """A new axis."""
    if (found := carried(op)) is not None:
        return found
    state = op.state(op.operands[0])
    dim = op.args["dim"] % (len(shape_of(op.operands[0])) + 1)
    return state if state.kind == SAME else state.at(state.dim + (dim <= state.dim))


def squeezed(op: Op) -> State:
    """Axes of length one go."""
    if (found := carried(op)) is not None:
        return found
    state, shape = op.state(op.operands[0]), shape_of(op.operands[0])
    if state.kind == SAME:
        return state
    gone = {d for d in axes(op.get("dim"), len(shape)) if shape[d] == 1}
    if state.dim in gone:  # a share of one example loses the axis, the batch does not
        raise UndecidedError("it drops the batch axis where a share is one example")
    return state.at(moved(state.dim, gone))


def expanded(op: Op) -> State:
    """`expand` and `repeat`: what all shares have alike may be repeated for every example."""
    if (found := carried(op)) is not None:
        return found
    node = op.operands[0]
    state = op.state(node)
    if state.kind == SAME:
        return fresh(op)
    share, whole = op.shapes[0]
    shift = len(share) - len(shape_of(node))
    grown = [d for d, (a, b) in enumerate(zip(share, whole, strict=True)) if a != b]
    if grown != [state.dim + shift]:
        raise MixesError("it pairs examples of the batch")
    if op.name == "repeat" and op.args["repeats"][grown[0]] != 1:
        raise UndecidedError("it repeats the batch")
    return state.at(state.dim + shift)


def broadcast(op: Op) -> tuple[State, ...]:
    """`broadcast_tensors`: every operand in the common shape.

    Raises:
        MixesError: the batch is on different axes: pairs of examples.
    """
    nodes = list(op.args["tensors"])
    aligned(op, [(n, op.plain(n)) for n in nodes])
    found = []
    for node, (share, whole) in zip(nodes, op.shapes, strict=True):
        state = op.state(node)
        if state.kind == SPLIT:
            found.append(state.at(state.dim + len(share) - len(shape_of(node))))
        else:
            dims = [d for d, (a, b) in enumerate(zip(share, whole, strict=True)) if a != b]
            found.append(State(SPLIT, dims[0], known=state.known) if dims else state)
    return tuple(found)


def sliced(op: Op) -> Any:
    """`slice`, `select`, `split` and `unbind`: along the batch they pick examples."""
    if (found := carried(op)) is not None:
        return each(op, found)
    node = op.operands[0]
    state, rank = op.state(node), len(shape_of(node))
    if state.kind == SAME:
        return each(op, fresh(op))
    dim = op.get("dim", default=0) % rank
    if dim != state.dim:
        gone = {dim} if op.name in ("select", "unbind", "select_copy") else set()
        return each(op, state.at(moved(state.dim, gone)))
    if op.name in ("slice", "narrow") and op.shapes[0][0] == shape_of(node):
        return state
    raise MixesError("it picks examples of the batch")


def joined(op: Op) -> State:
    """`cat` and `stack`.

    Equal parts of one batch put after each other along the batch axis are `outer` parts of it.

    Raises:
        UndecidedError: examples beside something else along one axis.
    """
    nodes = list(op.get("tensors"))
    if any(op.state(n).kind == SUM for n in nodes):
        return _joined_sums(op, nodes)
    states = [op.plain(n) for n in nodes]
    rank = len(shape_of(nodes[0]))
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
    if len(split) < len(states) or len({shape_of(n) for n in nodes}) > 1:
        raise UndecidedError("it joins examples with something else along the batch")
    return op.split(place, outer * len(nodes))


def _joined_sums(op: Op, nodes: list[fx.Node]) -> State:
    """Losses in one tensor: all of one scale, or as means."""
    states = [op.state(n) for n in nodes]
    scales = {state.scale if state.kind == SUM else None for state in states}
    if len(scales) == 1:
        return State(SUM, scale=states[0].scale, known=op.known)
    for node, state in zip(nodes, states, strict=True):
        if state.kind != SUM:
            if op.plain(node).kind == SPLIT:
                raise MixesError("it joins a sum over the examples with every example")
        elif not is_one(state.scale * op.count):
            raise ChangeError(node, state.scale * op.count)
    return State(SUM, scale=1.0 / op.count, known=op.known)


def embedded(op: Op) -> State:
    """`embedding`: a row of a table that all shares have for every index."""
    weight = op.plain(op.args["weight"])
    if weight.kind != SAME:
        raise UndecidedError("it looks examples up in the batch")
    state = op.plain(op.args["indices"])
    return state if state.kind == SAME else op.split(state.dim, state.outer)


def gathered(op: Op) -> State:
    """`gather` and `take_along_dim`: within each example unless along the batch."""
    node, index = op.args["self"], op.get("index", "indices")
    state, other = op.plain(node), op.plain(index)
    if state.kind == SAME and other.kind == SAME:
        return fresh(op)
    dim = op.get("dim", default=0) % len(shape_of(node))
    if state.kind == SPLIT and state.dim == dim:
        raise UndecidedError("it looks examples up in the batch")
    if {state.kind, other.kind} == {SAME, SPLIT} and state.kind == SPLIT:
        raise UndecidedError("it looks all examples up by one index")
    if state.kind == SAME and other.dim != dim:
        raise UndecidedError("it looks a table up by rows of the batch")
    return aligned(op, [(node, state), (index, other)] if state.kind == SPLIT else [(index, other)])


def scattered(op: Op) -> State:
    """`scatter` and its kin: within each example, where all it reads are rows of the same ones."""
    nodes = [op.args["self"], op.args["index"]]
    nodes += [n for n in (op.get("src", default=None),) if isinstance(n, fx.Node)]
    states = [(n, op.plain(n)) for n in nodes]
    if all(state.kind == SAME for _, state in states):
        return fresh(op)
    dim = op.args["dim"] % len(shape_of(nodes[0]))
    rows = {(s.dim, s.outer, shape_of(n)[s.dim]) for n, s in states if s.kind == SPLIT}
    if len(rows) > 1 or any(s.kind != SPLIT for _, s in states) or next(iter(rows))[0] == dim:
        raise UndecidedError("it puts rows of the batch into places that others chose")
    return aligned(op, states)


def selected(op: Op) -> State:
    """`index_select`: a table looked up by the batch, or rows of each example."""
    node, index = op.args["self"], op.args["index"]
    state, other = op.plain(node), op.plain(index)
    dim = op.args["dim"] % len(shape_of(node))
    if state.kind == SPLIT and (state.dim == dim or other.kind == SPLIT):
        raise UndecidedError("it looks examples up in the batch")
    if other.kind == SPLIT:
        return op.split(dim, other.outer)
    return state


def indexed(op: Op) -> State:
    """`x[i, j, ...]` with tensors: a table by the batch, or each example by its position.

    Raises:
        MixesError: examples are looked up by something else than their position.
    """
    node, indices = op.args["self"], list(op.args["indices"])
    state = op.plain(node)
    there = [d for d, index in enumerate(indices) if index is not None]
    rank = max(len(shape_of(indices[d])) for d in there)
    if there != list(range(there[0], there[-1] + 1)):
        raise UndecidedError("it indexes axes that are apart")
    found = {_placed(op, indices[d], rank, d, state) for d in there} - {None}
    if not found:
        return _unindexed(op, state, there, rank)
    if len(found) > 1:
        raise MixesError("it pairs examples of the batch")
    place, outer = next(iter(found))  # type: ignore[misc]
    return op.split(there[0] + place, outer)


def _placed(op: Op, index: fx.Node, rank: int, dim: int, state: State) -> tuple[int, int] | None:
    """Batch axis of an index after broadcasting, and what comes before it there."""
    own = op.state(index)
    along = state.kind == SPLIT and state.dim == dim
    if along and not (own.kind == POSITION and state.outer == 1):
        raise UndecidedError("it looks examples up in the batch")
    if own.kind == POSITION and not along:
        op.plain(index)
    if own.kind not in (SPLIT, POSITION):
        op.plain(index)
        return None
    if state.kind == SPLIT and not along and own.kind == SPLIT and not _reads_position(op, state):
        raise MixesError("it pairs examples of the batch")
    return own.dim + rank - len(shape_of(index)), own.outer


def _reads_position(op: Op, state: State) -> bool:
    """Whether the batch axis of what is looked up is indexed by the examples' positions."""
    indices = op.args["indices"]
    index = indices[state.dim] if state.dim < len(indices) else None
    return index is not None and op.state(index).kind == POSITION


def _unindexed(op: Op, state: State, there: list[int], rank: int) -> State:
    if state.kind == SAME:
        return fresh(op)
    before = state.dim < there[0]
    return state.at(state.dim if before else state.dim - len(there) + rank)


def filled(op: Op) -> State:
    """A factory: numbers that are the same in all shares, in a shape that may have the batch."""
    return fresh(op)


def positions(op: Op) -> State:
    """`arange`: where its end is the batch it counts the examples."""
    share, whole = op.shapes[0]
    start, step = op.get("start", default=0), op.get("step", default=1)
    if share == whole:
        return same(known=True)
    if start != 0 or step != 1 or whole[0] != share[0] * op.count:
        return State(MIXED, known=True, culprit=op.node, why="it counts the examples")
    return State(POSITION, known=True)


def padded(op: Op) -> State:
    """`pad`: along other axes than the batch."""
    node = op.operands[0]
    state, pad = op.plain(node), list(op.args["pad"])
    if state.kind == SAME:
        return fresh(op)
    behind = 2 * (len(shape_of(node)) - 1 - state.dim)
    if any(pad[behind : behind + 2]):
        raise MixesError("it pads the batch")
    return state


def triangular(op: Op) -> State:
    """`tril` and `triu`: of matrices in the last two axes."""
    node = op.operands[0]
    state = op.plain(node)
    if state.kind == SPLIT and state.dim >= len(shape_of(node)) - 2:
        raise MixesError("it works along the batch")
    return state


def one_hot(op: Op) -> State:
    """A new last axis."""
    return op.plain(op.operands[0])


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("view", "reshape", "_unsafe_view", "flatten", "unflatten", "_reshape_alias", "ravel",
         "view_as", "reshape_as"),
        reshaped,
    ),
    **dict.fromkeys(
        ("permute", "transpose", "t", "swapaxes", "swapdims", "movedim", "moveaxis", "numpy_T",
         "mT", "adjoint"),
        transposed,
    ),
    "unsqueeze": unsqueezed,
    "squeeze": squeezed,
    "broadcast_tensors": broadcast,
    **dict.fromkeys(("expand", "expand_as", "repeat", "broadcast_to"), expanded),
    **dict.fromkeys(
        ("slice", "narrow", "select", "unbind", "split", "split_with_sizes", "chunk",
         "unsafe_split", "unsafe_chunk", "tensor_split"),
        sliced,
    ),
    **dict.fromkeys(("cat", "concat", "concatenate", "stack"), joined),
    "embedding": embedded,
    **dict.fromkeys(("gather", "take_along_dim"), gathered),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), scattered),
    "index_select": selected,
    "index": indexed,
    **dict.fromkeys(
        ("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty",
         "scalar_tensor", "rand", "randn", "randint", "tensor"),
        filled,
    ),
    "arange": positions,
    **dict.fromkeys(("pad", "constant_pad_nd"), padded),
    **dict.fromkeys(("tril", "triu"), triangular),
    "one_hot": one_hot,
}  # fmt: skip
