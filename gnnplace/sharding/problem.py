"""``ShardingProblem``: cost tables over layer configurations, and its files.

``NAME.json`` beside ``NAME.npz``; ARRAY names an entry of the npz. Node arrays have shape (K_u,),
edge arrays (K_u, K_v); parallel edges add up; several nodes or edges may name one array.
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
    """Cost between two nodes' configurations: [K_u, K_v].

    Attributes:
        over_classes: ``cost`` over classes, where that is known already.
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
        devices: number of devices p that the configurations are for.
        names: name of each node. [N]
        cost: cost of each node's configurations. N arrays [K_u]
        memory: bytes of each node's configurations, or None. N arrays [K_u]
        edges: between different nodes; parallel ones add up.

    Raises:
        InputError: shapes that do not fit, values that are not finite or negative bytes.
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
        for i, bytes_ in enumerate(self.memory):
            if bytes_ is not None and bytes_.shape != self.cost[i].shape:
                raise InputError(f"nodes[{i}].memory: must have the shape of cost")
            if bytes_ is not None and not (np.isfinite(bytes_) & (bytes_ >= 0)).all():
                raise InputError(f"nodes[{i}].memory: must be finite and not negative")
        for k, edge in enumerate(self.edges):
            self._check_edge(k, edge)

    def _check_edge(self, index: int, edge: Edge) -> None:
        num_sources = len(self.cost[edge.u])
        num_targets = len(self.cost[edge.v])
        shape = (num_sources, num_targets)
        if edge.u == edge.v:
            raise InputError(
                f"edges[{index}].v: an edge from {self.names[edge.u]!r} to itself"
            )
        for key, table in (("cost", edge.cost), ("memory", edge.memory)):
            if table is not None and (
                table.shape != shape or not np.isfinite(table).all()
            ):
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
        around: list[set[int]] = [set() for _ in self.cost]
        for edge in self.edges:
            around[edge.u].add(edge.v)
            around[edge.v].add(edge.u)
        return around

    def restricted(self, subsets: Sequence[LongArray]) -> ShardingProblem:
        """Return the problem with a subset of each node's configurations.

        Args:
            subsets: Indices of the configurations that stay. N arrays
        """
        nodes = [cost[rows] for cost, rows in zip(self.cost, subsets, strict=True)]
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
            cost=tuple(nodes),
            edges=tuple(edges),
            memory=tuple(memory),
        )

    def value(self, configuration: tuple[int, ...]) -> float:
        """Return the cost of a strategy: one configuration index a node."""
        total = sum(
            float(cost[i]) for cost, i in zip(self.cost, configuration, strict=True)
        )
        return total + sum(
            float(edge.cost[configuration[edge.u], configuration[edge.v]])
            for edge in self.edges
        )

    def bytes(self, configuration: tuple[int, ...]) -> float | None:
        """Return the memory of a strategy, one configuration index a node; None if no table says
        any.
        """
        if not self.has_memory:
            return None
        pairs = zip(self.memory, configuration, strict=False)
        total = sum(float(memory[i]) for memory, i in pairs if memory is not None)
        return total + sum(
            float(edge.memory[configuration[edge.u], configuration[edge.v]])
            for edge in self.edges
            if edge.memory is not None
        )


class NodeEntry(Schema):
    """A node of a sharding file."""

    name: Name
    cost: str
    memory: str | None = None


class EdgeEntry(Schema):
    """An edge of a sharding file."""

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
    """Read ``NAME.json`` and ``NAME.npz`` beside it.

    Raises:
        FormatError: naming the file, the key path and the fault.
    """
    file = parse(ShardingFile, read_json(path), str(path))
    arrays = _read_arrays(Path(path).with_suffix(".npz"))
    with within(path):
        return _assemble(file, arrays)


def _read_arrays(path: Path) -> dict[str, FloatArray]:
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("one array")
        with archive:
            arrays = {key: archive[key] for key in archive.files}
        if invalid_types := [
            a.dtype for a in arrays.values() if a.dtype.kind not in "fiu"
        ]:
            raise ValueError(f"numbers of type {invalid_types[0]}")
        return {key: array.astype(np.float64) for key, array in arrays.items()}
    except OSError as error:
        raise FormatError(
            f"{path}: cannot be read: {error.strerror or error}"
        ) from None
    except (EOFError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        raise FormatError(f"{path}: not an npz archive of numbers") from None


def _assemble(file: ShardingFile, arrays: dict[str, FloatArray]) -> ShardingProblem:
    index: dict[str, int] = {}
    for i, node in enumerate(file.nodes):
        if node.name in index:
            raise InputError(f"nodes[{i}].name: {node.name!r} is repeated")
        index[node.name] = i

    def array(key: str | None, where: str) -> FloatArray | None:
        if key is None:
            return None
        if key not in arrays:
            raise InputError(f"{where}: the npz has no array {key!r}")
        return arrays[key]

    # Shapes are checked by the problem itself, which knows how many strategies each node has.
    edges = []
    for k, entry in enumerate(file.edges):
        for end, name in (("u", entry.u), ("v", entry.v)):
            if name not in index:
                raise InputError(f"edges[{k}].{end}: no node is named {name!r}")
        cost = array(entry.cost, f"edges[{k}].cost")
        assert cost is not None
        memory = array(entry.memory, f"edges[{k}].memory")
        edges.append(
            Edge(
                u=index[entry.u],
                v=index[entry.v],
                cost=cost,
                memory=memory,
            )
        )
    costs = [array(node.cost, f"nodes[{i}].cost") for i, node in enumerate(file.nodes)]
    return ShardingProblem(
        name=file.name,
        devices=file.devices,
        names=tuple(node.name for node in file.nodes),
        cost=tuple(cost for cost in costs if cost is not None),
        edges=tuple(edges),
        memory=tuple(
            array(n.memory, f"nodes[{i}].memory") for i, n in enumerate(file.nodes)
        ),
    )


def write_sharding(path: str | Path, problem: ShardingProblem) -> None:
    """Write a problem's two files, each at once or not at all; tables that are one stay one.

    Args:
        path: the path of the JSON file; the arrays go beside it.
        problem: the cost tables that are written.

    Raises:
        InputError: the folder does not exist or cannot be written to.
    """
    store = _Store()
    memory = problem.memory or (None,) * len(problem.names)
    nodes = [
        {"name": name, **store.keys(cost, bytes_)}
        for name, cost, bytes_ in zip(problem.names, problem.cost, memory, strict=True)
    ]
    edges = [
        {
            "u": problem.names[e.u],
            "v": problem.names[e.v],
            **store.keys(e.cost, e.memory),
        }
        for e in problem.edges
    ]
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


class _Store:
    """Arrays under names; the same array has one name."""

    def __init__(self) -> None:
        self.arrays: dict[str, FloatArray] = {}
        self._names: dict[tuple[Any, ...], str] = {}

    def keys(self, cost: FloatArray, memory: FloatArray | None) -> dict[str, str]:
        names = {"cost": self._name(cost)}
        if memory is not None:
            names["memory"] = self._name(memory)
        return names

    def _name(self, array: FloatArray) -> str:
        key = (array.shape, array.tobytes())
        if key not in self._names:
            self._names[key] = f"a{len(self.arrays)}"
            self.arrays[self._names[key]] = array
        return self._names[key]
