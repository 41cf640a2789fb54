"""``ShardingProblem``: cost tables over the configurations of layers, and its files.

Every node u is a layer with K_u configurations, the ways to split it. A strategy takes one
configuration for each node; its cost is the sum over nodes of ``cost[i]`` and over edges of
``cost[i, j]`` (PaSE, arXiv 2407.04001).

A problem has two files that stand side by side. ``NAME.json`` has nodes and edges, and names their
tables; ``NAME.npz`` has the tables by these names. A node's table has the shape (K_u,), an edge's
(K_u, K_v). Parallel edges add up. Several nodes or edges may name one table.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from gnnplace.arrays import FloatArray, LongArray
from gnnplace.errors import FormatError, InputError
from gnnplace.files import Schema, parse, read_json, within, write_arrays, write_json
from gnnplace.sharding.solver.classes import ClassTable

Name = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, eq=False)
class Edge:
    """The cost tables between the configurations of two nodes.

    Attributes:
        u: Index of the first node.
        v: Index of the second node.
        cost: Cost of every pair of configurations. [K_u, K_v]
        memory: Bytes of every pair, or None. [K_u, K_v]
        over_classes: ``cost`` over classes of equal configurations, if it was computed already.
    """

    u: int
    v: int
    cost: FloatArray
    memory: FloatArray | None = None
    over_classes: ClassTable | None = None


@dataclass(frozen=True, eq=False)
class ShardingProblem:
    """A layer graph with a cost for every configuration and pair of configurations.

    Attributes:
        name: Name of the problem.
        devices: Number of devices p that the configurations are for.
        names: Name of each node. [N]
        cost: Cost of each node's configurations. N arrays [K_u]
        edges: Edges between different nodes. Parallel ones add up.
        memory: Bytes of each node's configurations; None for a node without. N arrays [K_u], or
            empty if no node has bytes.

    Raises:
        InputError: If shapes do not fit, a value is not finite, or bytes are negative.
    """

    name: str
    devices: int
    names: tuple[str, ...]
    cost: tuple[FloatArray, ...]
    edges: tuple[Edge, ...]
    memory: tuple[FloatArray | None, ...] = ()

    def __post_init__(self) -> None:
        for i, cost in enumerate(self.cost):
            if cost.ndim != 1 or len(cost) == 0 or not np.isfinite(cost).all():
                raise InputError(f"nodes[{i}].cost: must be a vector of finite numbers")
        for i, memory in enumerate(self.memory):
            if memory is None:
                continue
            if memory.shape != self.cost[i].shape:
                raise InputError(f"nodes[{i}].memory: must have the shape of cost")
            if not (np.isfinite(memory) & (memory >= 0)).all():
                raise InputError(f"nodes[{i}].memory: must be finite and not negative")
        for k, edge in enumerate(self.edges):
            self._check_edge(k, edge)

    def _check_edge(self, index: int, edge: Edge) -> None:
        """Check the tables of an edge.

        Raises:
            InputError: If it joins a node to itself, or a table is wrong.
        """
        shape = (len(self.cost[edge.u]), len(self.cost[edge.v]))
        if edge.u == edge.v:
            raise InputError(
                f"edges[{index}].v: an edge from {self.names[edge.u]!r} to itself"
            )
        for key, table in (("cost", edge.cost), ("memory", edge.memory)):
            if table is None:
                continue
            if table.shape != shape or not np.isfinite(table).all():
                raise InputError(
                    f"edges[{index}].{key}: must be finite numbers of shape {shape}"
                )
        if edge.memory is not None and (edge.memory < 0).any():
            raise InputError(f"edges[{index}].memory: must not be negative")

    @property
    def has_memory(self) -> bool:
        """Return whether any node or edge has bytes."""
        tables = [*self.memory, *(edge.memory for edge in self.edges)]
        return any(table is not None for table in tables)

    def neighbours(self) -> list[set[int]]:
        """Return the nodes that each node shares an edge with. [N]"""
        neighbours: list[set[int]] = [set() for _ in self.cost]
        for edge in self.edges:
            neighbours[edge.u].add(edge.v)
            neighbours[edge.v].add(edge.u)
        return neighbours

    def restrict_to(self, subsets: Sequence[LongArray]) -> ShardingProblem:
        """Return the problem with a subset of each node's configurations.

        Args:
            subsets: Indices of the configurations that each node keeps. N arrays
        """
        costs = [cost[rows] for cost, rows in zip(self.cost, subsets, strict=True)]
        # There are no pairs if no node has bytes.
        pairs = zip(self.memory, subsets, strict=False)
        memory = [None if table is None else table[rows] for table, rows in pairs]
        edges = []
        for edge in self.edges:
            cells = np.ix_(subsets[edge.u], subsets[edge.v])
            if edge.memory is None:
                edge_memory = None
            else:
                edge_memory = edge.memory[cells]
            edges.append(
                Edge(
                    u=edge.u,
                    v=edge.v,
                    cost=edge.cost[cells],
                    memory=edge_memory,
                )
            )
        return ShardingProblem(
            name=self.name,
            devices=self.devices,
            names=self.names,
            cost=tuple(costs),
            edges=tuple(edges),
            memory=tuple(memory),
        )

    def value(self, configuration: tuple[int, ...]) -> float:
        """Return the cost of a strategy.

        Args:
            configuration: Index of each node's configuration. [N]
        """
        node_cost = sum(
            float(cost[i]) for cost, i in zip(self.cost, configuration, strict=True)
        )
        return node_cost + sum(
            float(edge.cost[configuration[edge.u], configuration[edge.v]])
            for edge in self.edges
        )

    def bytes(self, configuration: tuple[int, ...]) -> float | None:
        """Return the bytes of a strategy, or None if no table has bytes.

        Args:
            configuration: Index of each node's configuration. [N]
        """
        if not self.has_memory:
            return None
        pairs = zip(self.memory, configuration, strict=False)
        node_bytes = sum(float(memory[i]) for memory, i in pairs if memory is not None)
        return node_bytes + sum(
            float(edge.memory[configuration[edge.u], configuration[edge.v]])
            for edge in self.edges
            if edge.memory is not None
        )


class NodeEntry(Schema):
    """A node of a sharding file; `cost` and `memory` name tables of the npz file."""

    name: Name
    cost: str
    memory: str | None = None


class EdgeEntry(Schema):
    """An edge of a sharding file from node `u` to `v`; `cost` and `memory` name tables."""

    u: str
    v: str
    cost: str
    memory: str | None = None


class ShardingFile(Schema):
    """The keys of a sharding file."""

    format: Literal["gnnplace-sharding"]
    version: Literal[1]
    name: str
    devices: Annotated[int, Field(ge=1)]
    nodes: Annotated[list[NodeEntry], Field(min_length=1)]
    edges: list[EdgeEntry]


def read_sharding(path: str | Path) -> ShardingProblem:
    """Read a problem's two files.

    Args:
        path: The path of ``NAME.json``; ``NAME.npz`` must stand beside it.

    Raises:
        FormatError: If a file is wrong; the message names it, the key path and the reason.
    """
    file = parse(ShardingFile, read_json(path), str(path))
    arrays = _read_arrays(Path(path).with_suffix(".npz"))
    with within(path):
        return _assemble(file, arrays)


def _read_arrays(path: Path) -> dict[str, FloatArray]:
    """Return the arrays of an npz file as floats, by name.

    Raises:
        FormatError: If the file cannot be read, or is no npz archive of numbers.
    """
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("one array")
        with archive:
            arrays = {key: archive[key] for key in archive.files}
        for array in arrays.values():
            if array.dtype.kind not in "fiu":  # floats and integers, signed or not
                raise ValueError(f"numbers of type {array.dtype}")
        return {key: array.astype(np.float64) for key, array in arrays.items()}
    except OSError as error:
        raise FormatError(
            f"{path}: cannot be read: {error.strerror or error}"
        ) from None
    except (EOFError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        raise FormatError(f"{path}: not an npz archive of numbers") from None


def _assemble(file: ShardingFile, arrays: dict[str, FloatArray]) -> ShardingProblem:
    """Return the problem of a file and its arrays.

    Raises:
        InputError: If a name is repeated or missing, or a table is wrong; the message names the key
            path.
    """
    index: dict[str, int] = {}
    for i, node in enumerate(file.nodes):
        if node.name in index:
            raise InputError(f"nodes[{i}].name: {node.name!r} is repeated")
        index[node.name] = i

    def get_array(name: str | None, key_path: str) -> FloatArray | None:
        if name is None:
            return None
        if name not in arrays:
            raise InputError(f"{key_path}: the npz file has no array {name!r}")
        return arrays[name]

    # `ShardingProblem` checks the shapes, since it knows how many configurations each node has.
    edges = []
    for k, entry in enumerate(file.edges):
        for end, name in (("u", entry.u), ("v", entry.v)):
            if name not in index:
                raise InputError(f"edges[{k}].{end}: no node is named {name!r}")
        cost = get_array(entry.cost, f"edges[{k}].cost")
        assert cost is not None
        memory = get_array(entry.memory, f"edges[{k}].memory")
        edges.append(
            Edge(
                u=index[entry.u],
                v=index[entry.v],
                cost=cost,
                memory=memory,
            )
        )
    costs = [
        get_array(node.cost, f"nodes[{i}].cost") for i, node in enumerate(file.nodes)
    ]
    return ShardingProblem(
        name=file.name,
        devices=file.devices,
        names=tuple(node.name for node in file.nodes),
        cost=tuple(cost for cost in costs if cost is not None),
        edges=tuple(edges),
        memory=tuple(
            get_array(n.memory, f"nodes[{i}].memory") for i, n in enumerate(file.nodes)
        ),
    )


def write_sharding(path: str | Path, problem: ShardingProblem) -> None:
    """Write a problem's two files. Equal tables are written once.

    Each file is written completely or not at all.

    Args:
        path: The path of the JSON file; the npz file goes beside it.
        problem: The problem to write.

    Raises:
        InputError: If the folder does not exist or cannot be written to.
    """
    store = _ArrayStore()
    memory = problem.memory or (None,) * len(problem.names)
    nodes = []
    for name, cost, memory_table in zip(
        problem.names, problem.cost, memory, strict=True
    ):
        nodes.append({"name": name, **store.add_tables(cost, memory_table)})
    edges = []
    for edge in problem.edges:
        ends = {"u": problem.names[edge.u], "v": problem.names[edge.v]}
        edges.append({**ends, **store.add_tables(edge.cost, edge.memory)})
    write_arrays(Path(path).with_suffix(".npz"), store.arrays)
    write_json(
        path,
        {
            "format": "gnnplace-sharding",
            "version": 1,
            "name": problem.name,
            "devices": problem.devices,
            "nodes": nodes,
            "edges": edges,
        },
    )


class _ArrayStore:
    """Arrays by name, in which equal arrays share one name."""

    def __init__(self) -> None:
        self.arrays: dict[str, FloatArray] = {}
        self._names: dict[tuple[Any, ...], str] = {}

    def add_tables(self, cost: FloatArray, memory: FloatArray | None) -> dict[str, str]:
        """Add the tables of a node or an edge, and return their names by key of the JSON file."""
        names = {"cost": self._add(cost)}
        if memory is not None:
            names["memory"] = self._add(memory)
        return names

    def _add(self, array: FloatArray) -> str:
        """Add an array unless an equal one is there, and return its name."""
        key = (array.shape, array.tobytes())
        if key not in self._names:
            self._names[key] = f"a{len(self.arrays)}"
            self.arrays[self._names[key]] = array
        return self._names[key]
