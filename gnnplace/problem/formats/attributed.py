"""Graphs of others as problems: networkx, its node-link JSON, and GraphML.

A node is an op. Its ``time`` is seconds on every kind of device, or ``time.KIND`` on one. Without a
time it has ``flops`` and ``bytes`` (read and written), and takes what a kind's roofline says, which
is marked ``estimated``:

    seconds = max(launch, flops / peak float32 rate, bytes / memory bandwidth)

``state`` is bytes that stay, ``phase``, ``colocate`` and ``module`` as in problem files. An edge
has ``bytes``; edges of a node with one ``tensor`` carry the same tensor, others one each. A node
with ``output`` sends one tensor of so many bytes along all edges without bytes. Other attributes
are ignored. Complexity: O(nodes + edges). Deviation: a roofline knows no kernel: what is
measured is often twice as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from gnnplace.errors import FormatError, InputError
from gnnplace.files import read_json, within
from gnnplace.graph import ComputationGraph
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.cluster.gpus import FLOAT32, Gpu, get_figures
from gnnplace.problem.cluster.presets import load_cluster
from gnnplace.problem.problem import FORWARD, PHASES, Problem, build_problem

if TYPE_CHECKING:
    import networkx as nx

DEFAULT_CLUSTER = "pcie-v100-4"
GRAPHML = "http://graphml.graphdrawing.org/xmlns"
GRAPHML_TYPES: Mapping[str, Callable[[str], object]] = {
    "boolean": lambda text: text.strip().lower() in ("true", "1"),
    "int": int,
    "long": int,
    "float": float,
    "double": float,
}
TIME = "time"


@dataclass(frozen=True)
class GivenOp:
    """An op as a file of others says it.

    Attributes:
        name: A name that no other op has.
        where: its key's path, for errors.
        keys: ``time``, ``time.KIND``, ``flops``, ``bytes``, ``state``, ``phase``, ``colocate``,
            ``module``, and others that mean nothing.
    """

    name: str
    where: str
    keys: Mapping[str, Any]

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number, not negative.

        Raises:
            InputError: it is none, or is missing and has no default.
        """
        return number(self.keys, key, self.where, default)

    def seconds(self, kind: str) -> tuple[float, bool]:
        """Return the seconds on a kind of device, and whether they are estimated.

        Raises:
            InputError: it has neither a time for the kind nor flops and bytes.
        """
        for key in (f"{TIME}.{kind}", TIME):
            if key in self.keys:
                return self.number(key), False
        if "flops" not in self.keys or "bytes" not in self.keys:
            if "bytes" in self.keys:
                lacks = "flops"
            elif "flops" in self.keys:
                lacks = "bytes"
            else:
                lacks = TIME
            raise InputError(
                f"{self.where}.{lacks}: missing; give time or time.{kind} in seconds, or flops and "
                "bytes"
            )
        return roofline(
            get_figures(kind), self.number("flops"), self.number("bytes")
        ), True


def number(
    keys: Mapping[str, Any], key: str, where: str, default: float | None = None
) -> float:
    """Return a finite number of ``keys``, not negative; ``where`` is the path of ``keys``."""
    if key not in keys and default is not None:
        return default
    if key not in keys:
        raise InputError(f"{where}.{key}: missing")
    try:
        value = float(keys[key])
    except (TypeError, ValueError):
        value = math.nan
    if isinstance(keys[key], bool) or not (math.isfinite(value) and value >= 0):
        raise InputError(
            f"{where}.{key}: {keys[key]!r}: must be a finite number, not negative"
        )
    return value


def roofline(gpu: Gpu, flops: float, size: float) -> float:
    """Return the seconds that an op takes at least; `size` is bytes read and written."""
    return max(gpu.launch, flops / gpu.flops(FLOAT32), size / gpu.bandwidth)


def make_problem(
    name: str,
    ops: list[GivenOp],
    tensors: Iterable[tuple[int, float, list[int]]],
    cluster: Cluster | str | None = None,
) -> Problem:
    """Return a problem of ops and tensors as others say them.

    Args:
        name: The name of the problem.
        ops: The ops in order, with different names.
        tensors: producer, bytes and consumers of each, as numbers of ops.
        cluster: or a preset's name or file; four V100 on PCIe by default.

    Raises:
        InputError: a key is missing or malformed, the graph has a cycle, a kind is unknown.
    """
    if cluster is None or isinstance(cluster, str):
        cluster = load_cluster(cluster or DEFAULT_CLUSTER)
    if not ops:
        raise InputError("nodes: none")
    graph = ComputationGraph.from_tensors([op.name for op in ops], tensors)
    _ = graph.topological_order  # names the ops of a cycle
    times_by_kind = {kind: [op.seconds(kind) for op in ops] for kind in cluster.kinds}
    return build_problem(
        name,
        graph,
        cluster,
        {
            kind: [seconds for seconds, _ in times]
            for kind, times in times_by_kind.items()
        },
        state=np.array([op.number("state", 0.0) for op in ops]),
        phase=np.array([_phase(op) for op in ops], dtype=np.int8),
        colocate=tuple(_text(op, "colocate") for op in ops),
        module=tuple(_text(op, "module") for op in ops),
        estimated=np.array(
            [
                any(guess for _, guess in op)
                for op in zip(*times_by_kind.values(), strict=True)
            ]
        ),
    )


def _phase(op: GivenOp) -> int:
    phase = op.keys.get("phase", PHASES[FORWARD])
    if phase not in PHASES:
        raise InputError(
            f"{op.where}.phase: {phase!r}: must be one of {', '.join(PHASES)}"
        )
    return PHASES.index(phase)


def _text(op: GivenOp, key: str) -> str | None:
    value = op.keys.get(key)
    if value is None:
        return None
    return str(value)


def from_networkx(
    graph: nx.DiGraph, cluster: Cluster | str | None = None, name: str | None = None
) -> Problem:
    """Return a directed graph with attributes as a problem; the module says which attributes.

    Args:
        graph: nodes are ops, edges carry tensors.
        cluster: or a preset's name or file; four V100 on PCIe by default.
        name: The name of the problem; the graph's by default.

    Raises:
        InputError: naming the node or edge, the key and the fault.
    """
    if not graph.is_directed():
        raise InputError(
            "graph: edges have no direction; give a DiGraph, producers to consumers"
        )
    ops = [
        GivenOp(str(node), f"nodes[{node!r}]", keys)
        for node, keys in graph.nodes(data=True)
    ]
    index = {node: k for k, node in enumerate(graph.nodes)}
    tensors: dict[tuple[int, Any], tuple[float, list[int]]] = {}
    for k, (source, target, keys) in enumerate(graph.edges(data=True)):
        key_path = f"edges[{source!r}, {target!r}]"
        one = graph.nodes[source]
        if "bytes" not in keys and "output" not in one:
            raise InputError(
                f"{key_path}.bytes: missing; give bytes, or output of its first node"
            )
        if "bytes" in keys:
            size = number(keys, "bytes", key_path)
            key: tuple[int, Any] = (index[source], k)
            if "tensor" in keys:
                key = (index[source], ("tensor", keys["tensor"]))
        else:
            size = number(one, "output", f"nodes[{source!r}]")
            key = (index[source], "output")
        tensor = tensors.setdefault(key, (size, []))
        if tensor[0] != size:
            raise InputError(
                f"{key_path}.bytes: {size:g}, but its tensor has {tensor[0]:g}"
            )
        tensor[1].append(index[target])
    triples = [(key[0], size, consumers) for key, (size, consumers) in tensors.items()]
    return make_problem(name or str(graph.name or "graph"), ops, triples, cluster)


def read_node_link(path: str | Path, cluster: Cluster | None = None) -> Problem:
    """Read networkx's node-link JSON: ``nodes`` with ``id``, ``edges`` or ``links``.

    Raises:
        FormatError: naming the file, the key path and the fault.
    """
    data = read_json(path)
    with within(path):
        graph = _node_link(data)
        return from_networkx(graph, cluster, Path(path).stem)


def _node_link(data: object) -> nx.MultiDiGraph:
    if not isinstance(data, dict) or data.get("directed") is not True:
        raise InputError("directed: must be true")
    key = "links" if "links" in data else "edges"
    for part in ("nodes", key):
        if not isinstance(data.get(part), list):
            raise InputError(f"{part}: missing, or no list")
    import networkx as nx  # late: of two formats alone

    graph = nx.MultiDiGraph()
    for k, node in enumerate(data["nodes"]):
        if isinstance(node, dict):
            name = _node_id(node.get("id"))
        else:
            name = None
        if name is None:
            raise InputError(
                f"nodes[{k}].id: missing, or neither text nor a number nor a list"
            )
        if name in graph:
            raise InputError(f"nodes[{k}].id: {name!r} is repeated")
        graph.add_node(name, **{str(key): value for key, value in node.items()})
    for k, edge in enumerate(data[key]):
        for end in ("source", "target"):
            if isinstance(edge, dict):
                end_id = _node_id(edge.get(end))
            else:
                end_id = None
            if end_id is None or end_id not in graph:
                raise InputError(f"{key}[{k}].{end}: no node has the id {end_id!r}")
        attributes = {
            n: v for n, v in edge.items() if n not in ("source", "target", "key")
        }
        graph.add_edge(_node_id(edge["source"]), _node_id(edge["target"]), **attributes)
    return graph


def _node_id(value: object) -> Hashable | None:
    """Return an id as networkx has it: lists of JSON are tuples. None if it can be no id."""
    if isinstance(value, list):
        parts = tuple(map(_node_id, value))
        if None in parts:
            return None
        return parts
    if isinstance(value, str | int | float):
        return value
    return None


def read_graphml(path: str | Path, cluster: Cluster | None = None) -> Problem:
    """Read GraphML; attributes as the module says, by their ``attr.name``.

    Raises:
        FormatError: naming the file, the key path and the fault.
    """
    import networkx as nx

    try:
        graph = nx.read_graphml(path)
        root = ElementTree.parse(path).getroot()
    except (
        OSError,
        ElementTree.ParseError,
        nx.NetworkXError,
        LookupError,
        ValueError,
    ) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise FormatError(f"{path}: cannot be read: {lines[0]}") from None
    except (TypeError, AttributeError):
        # Errors of networkx if a key or a default has no text.
        raise FormatError(
            f"{path}: cannot be read: a key or its default is empty"
        ) from None
    with within(path):
        _check_graphml(root, graph)
        _apply_defaults(root, graph)
        return from_networkx(graph, cluster, Path(path).stem)


def _check_graphml(root: ElementTree.Element, graph: nx.DiGraph) -> None:
    """Refuse what networkx leaves out, or adds, without a word.

    Raises:
        InputError: There are several graphs, or an edge names a node that is not in the file.
    """
    num_graphs = sum(1 for _ in root.iter(f"{{{GRAPHML}}}graph"))
    if num_graphs > 1:
        raise InputError(
            f"graph: {num_graphs}, beside or within each other; give one flat graph"
        )
    declared = {node.get("id") for node in root.iter(f"{{{GRAPHML}}}node")}
    for node in graph:
        if node not in declared:
            raise InputError(f"edge: no node has the id {node!r}")


def _apply_defaults(root: ElementTree.Element, graph: nx.DiGraph) -> None:
    """Give nodes and edges the `<default>` of every key that they have no value for."""
    nodes = [keys for _, keys in graph.nodes(data=True)]
    edges = [keys for _, _, keys in graph.edges(data=True)]
    owners = {"node": nodes, "edge": edges, "all": [*nodes, *edges]}
    for key in root.iter(f"{{{GRAPHML}}}key"):
        default = key.find(f"{{{GRAPHML}}}default")
        if default is None:
            continue
        text = default.text or ""
        convert = GRAPHML_TYPES.get(key.get("attr.type", "string"), str)
        for attributes in owners.get(key.get("for", "all"), ()):
            attributes.setdefault(key.get("attr.name"), convert(text))
