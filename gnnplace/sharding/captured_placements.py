"""Strategies of single ATen operations, forward and backward, as a ``ShardingProblem``.

Here every operation of the traced training step is a node, and its configurations are the layouts
of its tensors that DTensor's own rules allow (``gnnplace.tracing.layer_placements`` reads them). A
rule holds for one dimension of a mesh; a configuration takes one for each dimension. Gradients need
no rule of their own: their operations are nodes as well, and a gradient is brought to the layout of
its parameter, which is a node too. Each reader of a tensor pays for its own layout.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gnnplace.sharding.problem import Edge, ShardingProblem
from gnnplace.splitting.tables.costs import MeshMachine, move
from gnnplace.splitting.tables.layout import REPLICATED, Layout, Mesh, parts_in

FloatArray = NDArray[np.float64]
Placed = tuple[int, ...]
"""The place of each result, then of each read, along one dimension of a mesh."""
Configuration = tuple[Placed, ...]
"""One rule for each dimension of the mesh."""


@dataclass(frozen=True)
class PlacedValue:
    """A tensor of a traced step."""

    shape: tuple[int, ...]
    element: int

    @property
    def bytes(self) -> float:
        """Of the whole tensor."""
        return float(math.prod(self.shape) * self.element)


@dataclass(frozen=True)
class PlacedOp:
    """An operation of a traced step, or a parameter (which reads nothing).

    Attributes:
        name: unique.
        results: values made.
        reads: values read.
        rules: allowed places of results and reads along a mesh dimension; the first leaves
            everything whole.
        flops: of the operation.
        state: it is a parameter, which stays with gradient and optimizer state.
    """

    name: str
    results: tuple[int, ...]
    reads: tuple[int, ...]
    rules: tuple[Placed, ...]
    flops: float = 0.0
    state: bool = False


@dataclass(frozen=True)
class PlacedStep:
    """A traced training step.

    Attributes:
        name: of the model.
        ops: in order; parameters first.
        values: by index.
        gradients: pairs of a gradient and the parameter it belongs to, as values.
    """

    name: str
    ops: tuple[PlacedOp, ...]
    values: tuple[PlacedValue, ...]
    gradients: tuple[tuple[int, int], ...]


@dataclass(eq=False)
class _Step:
    """A step on a mesh, with what is made once."""

    step: PlacedStep
    mesh: Mesh
    machine: MeshMachine
    options: list[tuple[Configuration, ...]] = field(default_factory=list)
    tables: dict[object, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known: dict[object, tuple[Configuration, ...]] = {}
        for op in self.step.ops:
            shapes = tuple(self.step.values[v].shape for v in (*op.results, *op.reads))
            key = (op.rules, shapes)
            if key not in known:
                known[key] = _configurations(op.rules, shapes, self.mesh)
            self.options.append(known[key])

    def layouts(self, op: int, position: int) -> tuple[Layout, ...]:
        """Of one tensor (results first, then reads) in every configuration."""
        return tuple(tuple(rule[position] for rule in c) for c in self.options[op])

    def cost(self, op: int) -> FloatArray:
        """Seconds: the work is divided along every mesh dimension that a rule splits."""
        it = self.step.ops[op]
        parts = np.array([self._parts(c, it.rules[0]) for c in self.options[op]])
        return it.flops / parts / self.machine.flops

    def _parts(self, configuration: Configuration, whole: Placed) -> float:
        pairs = zip(configuration, self.mesh, strict=True)
        return float(math.prod(n for rule, n in pairs if rule != whole))

    def memory(self, op: int) -> FloatArray:
        """Bytes of what an operation makes; a parameter stays with what belongs to it."""
        it = self.step.ops[op]
        copies = self.machine.state if it.state else 1
        found = np.zeros(len(self.options[op]))
        for position, value in enumerate(it.results):
            size = copies * self.step.values[value].bytes
            found += [size / parts_in(x, self.mesh) for x in self.layouts(op, position)]
        return found

    def table(
        self, value: int, before: tuple[Layout, ...], after: tuple[Layout, ...]
    ) -> FloatArray:
        """Seconds to bring a value from each layout into each. [K_u, K_v]"""
        size = self.step.values[value].bytes
        key = (size, before, after)
        if key not in self.tables:
            rows, row = np.unique(np.array(before), axis=0, return_inverse=True)
            columns, column = np.unique(np.array(after), axis=0, return_inverse=True)
            small = np.array([[self._move(size, a, b) for b in columns] for a in rows])
            self.tables[key] = np.ascontiguousarray(small[np.ix_(row.ravel(), column.ravel())])
        return self.tables[key]

    def _move(self, size: float, before: FloatArray, after: FloatArray) -> float:
        a, b = tuple(int(x) for x in before), tuple(int(x) for x in after)
        return move(size, a, b, self.mesh, self.machine).total


def _configurations(
    rules: Sequence[Placed], shapes: Sequence[tuple[int, ...]], mesh: Mesh
) -> tuple[Configuration, ...]:
    """All choices of a rule for each mesh dimension with equal parts; the first is whole."""
    return tuple(
        c for c in itertools.product(rules, repeat=len(mesh)) if _equal_parts(c, shapes, mesh)
    )


def _equal_parts(
    configuration: Configuration, shapes: Sequence[tuple[int, ...]], mesh: Mesh
) -> bool:
    for position, shape in enumerate(shapes):
        parts = [1] * len(shape)
        for rule, size in zip(configuration, mesh, strict=True):
            if rule[position] >= 0:
                parts[rule[position]] *= size
        if any(extent % n for extent, n in zip(shape, parts, strict=True)):
            return False
    return True


def placement_problem(step: PlacedStep, mesh: Mesh, machine: MeshMachine) -> ShardingProblem:
    """Cost tables of a traced step over DTensor's own strategies.

    Args:
        step: operations with their rules.
        mesh: sizes of the mesh's dimensions.
        machine: speeds.
    """
    work = _Step(step, mesh, machine)
    made = {v: (i, k) for i, op in enumerate(step.ops) for k, v in enumerate(op.results)}
    edges = []
    for i, op in enumerate(step.ops):
        for slot, value in enumerate(op.reads):
            if value in made:
                u, position = made[value]
                before = work.layouts(u, position)
                after = work.layouts(i, len(op.results) + slot)
                edges.append(Edge(u, i, work.table(value, before, after)))
    for gradient, parameter in step.gradients:
        (u, position), (home, at) = made[gradient], made[parameter]
        table = work.table(gradient, work.layouts(u, position), work.layouts(home, at))
        edges.append(Edge(u, home, table))
    whole = (REPLICATED,) * len(mesh)
    assert all(whole in work.layouts(i, 0) for i, op in enumerate(step.ops) if op.results)
    nodes = range(len(step.ops))
    return ShardingProblem(
        step.name,
        math.prod(mesh),
        tuple(op.name for op in step.ops),
        tuple(work.cost(i) for i in nodes),
        tuple(e for e in edges if e.u != e.v),
        tuple(work.memory(i) for i in nodes),
    )
