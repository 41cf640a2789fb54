"""Means over counted targets, written out as a sum over a count.

`cross_entropy(reduction="mean")` divides by the weights of those targets that are not ignored. How
many there are depends on the targets alone, so that a share can divide by the count of the whole
batch, if only the count is a value of its own:

    mean = sum / count,  count = sum over targets t != ignored of weight[t]  (1 without weights)

Label smoothing divides by the same count.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from gnnplace.tracing.batch_state import Op, shape_of

ATEN = torch.ops.aten
COUNTED = ("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d")
MEAN, TOTAL = 1, 2
_META = ("nn_module_stack", "stack_trace", "torch_fn", "source_fn_stack")


def insert(graph: fx.Graph, before: fx.Node, target: Any, *args: Any) -> fx.Node:
    """Put an op before a node, as if that node's line had called it."""
    with graph.inserting_before(before):
        node = graph.call_function(target, args)
    node.meta.update({key: before.meta[key] for key in _META if key in before.meta})
    values = fx.map_arg(args, lambda n: n.meta["val"])
    tensors = [v for v in torch.utils._pytree.tree_leaves(values) if isinstance(v, torch.Tensor)]
    with tensors[0].fake_mode, torch.no_grad():  # type: ignore[attr-defined]
        node.meta["val"] = target(*values)
    return node


def write_out_counts(module: fx.GraphModule) -> int:
    """Rewrite every mean over counted targets in a forward graph; returns how many there were."""
    found = [node for node in module.graph.nodes if _is_counted(node)]
    for node in found:
        _write_out(module.graph, node)
    module.recompile()
    return len(found)


def _is_counted(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    op = Op(node, node, {}, 1)
    if op.name not in COUNTED or op.args["reduction"] != MEAN:
        return False
    target = op.args["target"]
    return not target.meta["val"].is_floating_point()


def _write_out(graph: fx.Graph, node: fx.Node) -> None:
    given = Op(node, node, {}, 1).args
    target, weight = given["target"], given["weight"]
    kept = insert(graph, node, ATEN.ne.Scalar, target, given["ignore_index"])
    counted = kept
    if isinstance(weight, fx.Node):
        index = insert(graph, node, ATEN.mul.Tensor, target, kept)  # of ignored targets: 0
        rows = insert(graph, node, ATEN.index_select.default, weight, 0, _flat(graph, node, index))
        counted = insert(graph, node, ATEN.mul.Tensor, rows, _flat(graph, node, kept))
    count = insert(graph, node, ATEN.sum.default, counted)
    total = insert(graph, node, node.target, *(given | {"reduction": TOTAL}).values())
    node.replace_all_uses_with(insert(graph, node, ATEN.div.Tensor, total, count))
    graph.erase_node(node)


def _flat(graph: fx.Graph, before: fx.Node, node: fx.Node) -> fx.Node:
    if len(shape_of(node)) == 1:
        return node
    return insert(graph, before, ATEN.reshape.default, node, [-1])
