"""Makes the graph of a share like that of the whole batch, where tracing left out idle ops.

A share of one example needs no `expand` to one and is contiguous as it is, so that such ops are in
the whole batch's graph alone. They are put back into the share's, where they change nothing.
"""

from __future__ import annotations

import torch
from torch import fx

from gnnplace.tracing.batch_state import op_name, shape_of
from gnnplace.tracing.batch_twins import alike

IDLE = ("expand", "contiguous", "alias", "clone")
"""Ops that may do nothing to a share."""


def make_alike(share: fx.GraphModule, whole: fx.GraphModule) -> None:
    """Put ops that do nothing into the graph of a share; it stays if that is not enough.

    Args:
        share: Graph of a share, which is changed.
        whole: Graph of the whole batch.
    """
    pairs, idle = _aligned(list(share.graph.nodes), list(whole.graph.nodes))
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


def _aligned(
    mine: list[fx.Node], twins: list[fx.Node]
) -> tuple[dict[fx.Node, fx.Node], list[fx.Node]]:
    """The share's node of each of the whole batch's, and those that it lacks; none if in vain."""
    pairs: dict[fx.Node, fx.Node] = {}
    idle: list[fx.Node] = []
    for twin in twins:
        here = mine[len(pairs)] if len(pairs) < len(mine) else None
        if here is not None and alike(here, twin):
            pairs[twin] = here
        elif isinstance(twin.target, torch._ops.OpOverload) and op_name(twin.target) in IDLE:
            idle.append(twin)
        else:
            return {}, []
    return (pairs, idle) if len(pairs) == len(mine) else ({}, [])


def _place(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    """The share's node that comes next."""
    following = node.next
    while following not in pairs:
        following = following.next
    return pairs[following]


def _arguments(node: fx.Node, source: fx.Node) -> tuple[object, ...]:
    if op_name(node.target) == "expand":
        return (source, list(shape_of(source)))
    return (source, *node.args[1:])
