"""Calls of functions that the file defines, replaced by the nodes of their bodies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gnnplace.errors import InputError
from gnnplace.problem.formats.onnx.messages import (
    Attribute,
    Function,
    FunctionKey,
    Graph,
    OnnxNode,
    Value,
    rename_node,
)
from gnnplace.problem.formats.protobuf import MOST


@dataclass
class ExpandedCalls:
    """The nodes of a graph without calls of functions.

    Attributes:
        nodes: The nodes in order.
        values: Sizes that functions say of the values in their bodies, by their new names.
    """

    nodes: list[OnnxNode]
    values: dict[str, Value]


def expand_calls(
    nodes: Iterable[OnnxNode], functions: Mapping[FunctionKey, Function]
) -> ExpandedCalls:
    """Replace calls of functions, also those in bodies of functions.

    Values in a body get the call's label in front of their names, so that two calls do not meet.

    Raises:
        InputError: A function calls itself, or there are more nodes than a message may have.
    """
    expansion = ExpandedCalls(nodes=[], values={})
    for node in nodes:
        for inner in _expand(node, functions, expansion.values, ()):
            expansion.nodes.append(inner)
            if len(expansion.nodes) > MOST:
                raise InputError(f"functions: more than {MOST:,} nodes in their bodies")
    return expansion


def _expand(
    node: OnnxNode,
    functions: Mapping[FunctionKey, Function],
    values: dict[str, Value],
    callers: tuple[FunctionKey, ...],
) -> Iterator[OnnxNode]:
    key = (node.domain, node.kind, node.overload)
    function = functions.get(key)
    if function is None:
        yield node
        return
    if key in callers:
        raise InputError(f"functions[{node.kind}]: calls itself")
    body = function.body
    prefix = f"{node.label} {node.kind}/"
    inner = {name for one in body.nodes for name in one.outputs if name}
    names = {name: prefix + name for name in inner}
    names |= {name: "" for name in body.inputs}
    names |= dict(zip(body.inputs, node.inputs, strict=False))
    # An output that the caller leaves out keeps a name of its own: the body may read it.
    names |= {
        inside: name
        for inside, name in zip(body.outputs, node.outputs, strict=False)
        if name
    }
    values |= {
        names[name]: value for name, value in body.values.items() if name in inner
    }
    attributes = {**function.defaults, **node.attributes}
    for index, one in enumerate(body.nodes):
        call = rename_node(_resolve(one, attributes), names)
        label = f"{node.label}.{index}"
        yield from _expand(
            replace(call, label=label), functions, values, (*callers, key)
        )


def _resolve(node: OnnxNode, attributes: Mapping[str, Attribute]) -> OnnxNode:
    """Return a node of a body whose attributes are those of the call; absent ones are left out."""
    resolved = {}
    for name, attribute in node.attributes.items():
        if attribute.reference:
            if attribute.reference in attributes:
                resolved[name] = attributes[attribute.reference]
        elif attribute.graphs:
            graphs = tuple(
                _resolve_graph(graph, attributes) for graph in attribute.graphs
            )
            resolved[name] = replace(attribute, graphs=graphs)
        else:
            resolved[name] = attribute
    return replace(node, attributes=resolved)


def _resolve_graph(graph: Graph, attributes: Mapping[str, Attribute]) -> Graph:
    return replace(
        graph, nodes=tuple(_resolve(node, attributes) for node in graph.nodes)
    )
