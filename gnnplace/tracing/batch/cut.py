"""Graphs of a cut batch: axes of the batch, parts of a graph, and counts that are written out.

`cross_entropy(reduction="mean")` divides by the weights of those targets that are not ignored. How
many there are depends on the targets alone, so that a share can divide by the count of the whole
batch, if only the count is a value of its own. `write_out_counts` makes it one::

    mean = sum / count,  count = sum over targets t != ignored of weight[t]  (1 without weights)

Label smoothing divides by the same count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from gnnplace.errors import InputError
from gnnplace.torch_names import pytree
from gnnplace.tracing.batch.state import Op, get_node_shape

ATEN = torch.ops.aten
COUNTED = ("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d")
MEAN = 1
TOTAL = 2
_META = ("nn_module_stack", "stack_trace", "torch_fn", "source_fn_stack")


def batch_axes(
    share: Sequence[torch.Tensor], whole: Sequence[torch.Tensor]
) -> list[int | None]:
    """Return the axis in which each input of the whole batch is larger than that of a share.

    Raises:
        InputError: an input that is larger in several axes.
    """
    axes: list[int | None] = []
    for i, (part, full) in enumerate(zip(share, whole, strict=True)):
        dims = [
            d
            for d, (a, b) in enumerate(zip(part.shape, full.shape, strict=True))
            if a != b
        ]
        if len(dims) > 1:
            raise InputError(
                f"input {i}: shape {tuple(full.shape)} of the whole batch, {tuple(part.shape)} of "
                "a share; an input may have the batch on one axis"
            )
        axes.append(dims[0] if dims else None)
    return axes


def subgraph(module: fx.GraphModule, wanted: Sequence[fx.Node]) -> fx.GraphModule:
    """Return the part of a forward graph that makes some of its values, from the same inputs.

    Args:
        module: A graph with a placeholder for every input.
        wanted: Nodes of its graph.
    """
    needed = _ancestors(module.graph, wanted)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder" or node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in wanted))
    return fx.GraphModule(module, graph)


def _ancestors(graph: fx.Graph, wanted: Sequence[fx.Node]) -> set[fx.Node]:
    """Return all nodes that lead to some, with those that change them in place."""
    ancestors: set[fx.Node] = set()
    pending = list(wanted)
    while pending:
        node = pending.pop()
        if node in ancestors:
            continue
        ancestors.add(node)
        pending.extend(node.all_input_nodes)
        pending.extend(user for user in node.users if changes(user, node))
    return ancestors


def changes(user: fx.Node, node: fx.Node) -> bool:
    """Return whether a user changes a node in place, itself or through a view."""
    schema = getattr(user.target, "_schema", None)
    if schema is None or not user.args or user.args[0] is not node:
        return False
    if schema.is_mutable:
        return True
    is_view = any(r.alias_info is not None for r in schema.returns)
    return is_view and any(changes(view_user, user) for view_user in user.users)


def insert(
    graph: fx.Graph, before: fx.Node, target: Any, *args: fx.node.Argument
) -> fx.Node:
    """Put an op before a node, as if that node's line had called it."""
    with graph.inserting_before(before):
        node = graph.call_function(target, args)
    node.meta.update({key: before.meta[key] for key in _META if key in before.meta})
    values = fx.map_arg(args, lambda n: n.meta["val"])
    tensors = [v for v in pytree.tree_leaves(values) if isinstance(v, torch.Tensor)]
    with tensors[0].fake_mode, torch.no_grad():  # type: ignore[attr-defined]
        node.meta["val"] = target(*values)
    return node


def write_out_counts(module: fx.GraphModule) -> int:
    """Rewrite every mean over counted targets in a forward graph; return their number."""
    means = [node for node in module.graph.nodes if _is_counted(node)]
    for node in means:
        _write_out(module.graph, node)
    module.recompile()
    return len(means)


def _is_counted(node: fx.Node) -> bool:
    """Return whether a node is a mean over targets that may be ignored."""
    if node.op != "call_function":
        return False
    op = Op(node, node, {}, 1)
    if op.name not in COUNTED or op.args["reduction"] != MEAN:
        return False
    target = op.args["target"]
    return not target.meta["val"].is_floating_point()


def _write_out(graph: fx.Graph, node: fx.Node) -> None:
    """Rewrite a mean as a sum over the count or the weights of targets."""
    arguments = Op(node, node, {}, 1).args
    target = arguments["target"]
    weight = arguments["weight"]
    is_counted = insert(graph, node, ATEN.ne.Scalar, target, arguments["ignore_index"])
    weights = is_counted
    if isinstance(weight, fx.Node):
        # Ignored targets become 0.
        index = insert(graph, node, ATEN.mul.Tensor, target, is_counted)
        rows = insert(
            graph, node, ATEN.index_select.default, weight, 0, _flat(graph, node, index)
        )
        weights = insert(
            graph, node, ATEN.mul.Tensor, rows, _flat(graph, node, is_counted)
        )
    count = insert(graph, node, ATEN.sum.default, weights)
    total = insert(
        graph, node, node.target, *(arguments | {"reduction": TOTAL}).values()
    )
    node.replace_all_uses_with(insert(graph, node, ATEN.div.Tensor, total, count))
    graph.erase_node(node)


def _flat(graph: fx.Graph, before: fx.Node, node: fx.Node) -> fx.Node:
    """Return a node's tensor with one axis."""
    if len(get_node_shape(node)) == 1:
        return node
    return insert(graph, before, ATEN.reshape.default, node, [-1])
