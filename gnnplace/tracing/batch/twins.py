"""The graph of a share beside that of the whole batch, op by op.

Helpers of `axis`: they find corresponding nodes, inputs and attributes, what an in-place op
changes, and the ops that draw random numbers.

A share of one example needs no `expand` to one and is already contiguous, so that tracing omits
such ops only in its graph. `make_alike` inserts them again; they change nothing there.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from gnnplace.torch_names import OpOverload
from gnnplace.tracing.batch.cut import changes
from gnnplace.tracing.batch.state import (
    SAME,
    SPLIT,
    SUM,
    UNKNOWN,
    Op,
    State,
    States,
    flat_nodes,
    get_node_shape,
    is_one,
    op_name,
    same,
    statics,
)

IDLE = ("expand", "contiguous", "alias", "clone")
"""Ops that may do nothing to a share."""
SIZES = (
    "size",
    "shape",
    "sizes",
    "repeats",
    "end",
    "length",
    "split_size",
    "split_sizes",
    "N",
)
"""Arguments by whose numbers results have another shape, and nothing else of them changes."""
SCALED = ("mul", "multiply", "div", "divide", "true_divide", "arange")
"""Ops whose rules read the numbers of the whole batch's op themselves."""


def state_by_shape(
    share: tuple[int, ...], whole: tuple[int, ...], op: Op, failed: State
) -> State:
    """Return the state of a result by its shape alone: split along the axis that grows."""
    dims = [d for d, (a, b) in enumerate(zip(share, whole, strict=False)) if a != b]
    if len(share) != len(whole) or len(dims) > 1:
        return failed
    if not dims:
        # What follows from the batch is given instead.
        return failed if op.from_batch else same()
    fits = whole[dims[0]] == op.count * share[dims[0]]
    if fits:
        return State(SPLIT, dims[0], from_batch=op.from_batch)
    return failed


def is_graph(module: fx.GraphModule, node: fx.Node) -> bool:
    """Return whether a node stands for a graph that another op calls."""
    return node.op == "get_attr" and isinstance(
        getattr(module, str(node.target), None), fx.GraphModule
    )


def get_called_graph(module: fx.GraphModule, node: fx.Node) -> fx.GraphModule | None:
    """Return the graph that an op calls; None if it calls none or several."""
    graphs = [n for n in flat_nodes(node) if is_graph(module, n)]
    if len(graphs) == 1:
        return getattr(module, str(graphs[0].target))
    return None


def replace_operand(node: fx.Node, operand: fx.Node, new: fx.Node) -> None:
    """Let a node read `new`; an op that would change it in place makes a value instead."""
    schema = getattr(node.target, "_schema", None)
    if (
        schema is not None
        and schema.is_mutable
        and node.args
        and node.args[0] is operand
    ):
        packet = getattr(torch.ops.aten, op_name(node.target))
        node.target = getattr(packet, node.target._overloadname)  # type: ignore[union-attr]
        later = [user for user in operand.users if user is not node and node < user]
        for user in later:
            user.replace_input_with(operand, node)
    node.replace_input_with(operand, new)


def are_identical(node: fx.Node, twin: fx.Node) -> bool:
    """Return whether two nodes do the same."""
    if node.op != twin.op:
        return False
    return node.op != "call_function" or node.target == twin.target


def input_state(node: fx.Node, twin: fx.Node, count: int) -> State:
    """Return the state of an input: split along the axis that grows with the batch."""
    share = get_node_shape(node)
    full = get_node_shape(twin)
    if share == full:
        return same(from_batch=True)
    dims = [d for d, (a, b) in enumerate(zip(share, full, strict=False)) if a != b]
    if (
        len(share) != len(full)
        or len(dims) != 1
        or full[dims[0]] != count * share[dims[0]]
    ):
        return State(
            UNKNOWN, culprit=node, why="this input has the batch on several axes"
        )
    return State(SPLIT, dims[0], from_batch=True)


def get_unsplit_shape(
    state: State, share: tuple[int, ...], count: int
) -> tuple[int, ...]:
    """Return the shape of the whole batch's value as the state has it."""
    if state.kind in (SAME, SUM):
        return share
    if not 0 <= state.dim < len(share):
        return ()
    return tuple(n * count if d == state.dim else n for d, n in enumerate(share))


def is_plain(op: Op) -> bool:
    """Return whether an op reads nothing of the batch and does not know its size."""
    if any(op.state(n).kind != SAME for n in op.operands):
        return False
    share_numbers = list(statics(list(op.args.values())))
    whole_numbers = list(statics(list(op.whole_args.values())))
    return share_numbers == whole_numbers and all(
        share == full for share, full in op.shapes
    )


def depends_on_size(op: Op) -> bool:
    """Return whether a number that an op reads, and that is no size, differs in a share."""
    if op.name in SCALED and op.get("rounding_mode") is None:
        return False
    pairs = (
        (a, op.whole_args[name]) for name, a in op.args.items() if name not in SIZES
    )
    return any(list(statics([share])) != list(statics([full])) for share, full in pairs)


def unknown(state: State) -> State:
    """Return the same state of a value that does not follow from the batch alone."""
    return replace(state, from_batch=False)


def merge_state(base: States, state: States, node: fx.Node) -> States:
    """Return the state of a tensor after a part of it was changed in place."""
    if not isinstance(base, State) or not isinstance(state, State) or base.is_failure:
        return base
    from_batch = base.from_batch and state.from_batch
    if state.is_failure:
        return State(
            state.kind, from_batch=from_batch, culprit=state.culprit, why=state.why
        )
    if base.kind == state.kind == SPLIT and is_one(base.scale) and is_one(state.scale):
        return State(SPLIT, base.dim, base.outer, from_batch=from_batch)
    if base.kind == SPLIT and state.kind == SAME:
        return State(SPLIT, base.dim, base.outer, base.scale, from_batch)
    if base.kind == state.kind == SAME:
        return same(from_batch)
    return State(
        UNKNOWN,
        from_batch=from_batch,
        culprit=node,
        why="it changes a part of a tensor in place",
    )


def trains_norm(op: Op) -> bool:
    """Return whether an op is a batch norm that takes statistics of its input."""
    return (
        "batch_norm" in op.name
        and op.get("training", "train", "use_input_stats") is True
    )


def draws(op: Op) -> bool:
    """Return whether an op draws random numbers."""
    target = op.node.target
    if not isinstance(target, OpOverload):
        return False
    if op.name == "dropout" or "dropout" in op.args or "dropout_p" in op.args:
        share = op.get("p", "dropout", "dropout_p", default=0.0)
        return bool(share) and op.get("train", default=True) is not False
    return torch.Tag.nondeterministic_seeded in target.tags


def list_changed_attributes(graph: fx.Graph) -> set[str]:
    """Return the buffers that the step changes."""
    names = set()
    for node in graph.find_nodes(op="get_attr"):
        for user in node.users:
            norm = "batch_norm" in op_name(user.target)
            if changes(user, node) or (norm and node in user.args[3:5]):
                names.add(str(node.target))
    return names


def attribute(module: fx.GraphModule, path: str) -> torch.Tensor:
    """Return a parameter, buffer or constant by its path."""
    owner, _, name = path.rpartition(".")
    tensor: torch.Tensor = getattr(module.get_submodule(owner), name)
    return tensor


def is_fake(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has no numbers."""
    return hasattr(tensor, "fake_mode")


def make_alike(share: fx.GraphModule, whole: fx.GraphModule) -> None:
    """Put ops that do nothing into the graph of a share; it stays if that is not enough.

    Args:
        share: Graph of a share, which is changed.
        whole: Graph of the whole batch.
    """
    pairs, idle = _align_nodes(list(share.graph.nodes), list(whole.graph.nodes))
    if not idle or any(node.args[0] not in pairs for node in idle):
        return
    for node in idle:
        source = pairs[node.args[0]]  # type: ignore[index]
        with share.graph.inserting_before(_place(node, pairs)):
            new = share.graph.call_function(node.target, _arguments(node, source))  # type: ignore[arg-type]
        new.meta.update(node.meta, val=source.meta["val"])
        pairs[node] = new
        for user in node.users:
            if user in pairs:
                pairs[user].replace_input_with(source, new)
    share.recompile()


def _align_nodes(
    share_nodes: list[fx.Node], twins: list[fx.Node]
) -> tuple[dict[fx.Node, fx.Node], list[fx.Node]]:
    """Return the share's node of each of the whole batch's, and those that it lacks.

    Both are empty if that is not enough.
    """
    pairs: dict[fx.Node, fx.Node] = {}
    idle: list[fx.Node] = []
    for twin in twins:
        if len(pairs) < len(share_nodes):
            candidate = share_nodes[len(pairs)]
        else:
            candidate = None
        if candidate is not None and are_identical(candidate, twin):
            pairs[twin] = candidate
        elif isinstance(twin.target, OpOverload) and op_name(twin.target) in IDLE:
            idle.append(twin)
        else:
            return {}, []
    if len(pairs) == len(share_nodes):
        return (pairs, idle)
    return ({}, [])


def _place(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    """Return the share's node that comes next."""
    following = node.next
    while following not in pairs:
        following = following.next
    return pairs[following]


def _arguments(node: fx.Node, source: fx.Node) -> tuple[object, ...]:
    """Return the arguments of an idle op in the share's graph."""
    if op_name(node.target) == "expand":
        return (source, list(get_node_shape(source)))
    return (source, *node.args[1:])
