"""The search for the best configurations of a captured model on a mesh, as a ``ShardingProblem``.

A node for every operation; besides, for every value that several operations read, a node for the
layout in which they share it, so that what is gathered once is counted once; and one for the home
of every parameter that several operations read, such as a table that embedding and head share.

Beside it (``ddp_parts``), what data parallelism costs as PyTorch's DDP does it. Every device runs
the whole step on its share of the batch, the largest share deciding, and the gradients of all
parameters are added up by one all-reduce. Nothing else is exchanged: batch norms see their own
share, and a call that no rule knows how to split needs none, since whole examples go through it.
What does not depend on the inputs is done everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gnnplace.arrays import FloatArray, LongArray
from gnnplace.costs.collectives import gradient_seconds
from gnnplace.sharding.captured.costs import (
    MeshMachine,
    Moved,
    compute,
    exchange,
    made_bytes,
    move,
    parameter_bytes,
    parameter_gradient,
    passed,
)
from gnnplace.sharding.captured.layout import (
    CALL,
    PARAMETER,
    Configuration,
    Layout,
    Mesh,
    SplitGraph,
    SplitValue,
    gradient_layout,
    made_layout,
    mesh_configurations,
    read_layout,
    settled,
    uses,
)
from gnnplace.sharding.costs import CostParts
from gnnplace.sharding.problem import Edge, ShardingProblem
from gnnplace.sharding.solver.classes import ClassTable, over_classes
from gnnplace.tracing import INPUT

Port = tuple[Layout, Layout]
"""How a value is read: its layout, and that of the gradient left behind."""
Cost = Callable[[Port, Port], Moved]


@dataclass(frozen=True)
class PortLink:
    """An edge before it is a table: both ends' ports by configuration, and the cost of a pair.

    ``info`` is of the value that is handed over, ``value`` its number.
    """

    value: int
    u: int
    v: int
    before: tuple[Port, ...]
    after: tuple[Port, ...]
    info: SplitValue
    cost: Cost
    parameter: bool = False


@dataclass(eq=False)
class CapturedProblem:
    """A captured model on a mesh.

    Attributes:
        graph: the operations and the values between them.
        mesh: sizes of its dimensions.
        machine: speeds of a device and of its link.
        seconds: measured seconds of each whole operation, forward and backward, if any were.
        options: configurations of each operation.
        shared: states of each node beyond the operations, by value.
    """

    graph: SplitGraph
    mesh: Mesh
    machine: MeshMachine
    seconds: tuple[float, ...] = ()
    options: list[tuple[Configuration, ...]] = field(default_factory=list)
    shared: dict[int, tuple[Port, ...]] = field(default_factory=dict)
    links: list[PortLink] = field(default_factory=list)
    position: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.options = [self.configurations(op) for op in range(len(self.graph.ops))]
        self.readers = uses(self.graph)
        self.producers = {
            value: (i, slot)
            for i, op in enumerate(self.graph.ops)
            for slot, value in enumerate(op.results)
        }
        for value, readers in self.readers.items():
            if len(readers) > 1 and self.graph.values[value].source in (CALL, PARAMETER):
                self._share(value)
        for value in self.readers:
            self._connect(value)

    def configurations(self, op: int) -> tuple[Configuration, ...]:
        """How an operation may be split. [K]"""
        return mesh_configurations(self.graph.ops[op].shape, self.mesh)

    def node_key(self, op: int) -> object:
        """What decides an operation's costs."""
        it = self.graph.ops[op]
        values = [self.graph.values[v] for v in (*it.reads, *it.results)]
        kinds = tuple((v.shape, v.element, v.gradient, v.source) for v in values)
        seconds = self.seconds[op] if self.seconds else None
        return it.shape, kinds, tuple(v in self.shared for v in it.reads), seconds

    def _share(self, value: int) -> None:
        ports = {port for i, slot in self.readers[value] for port in self.ports(i, slot)}
        if self.graph.values[value].source == PARAMETER:
            ports = {(layout, layout) for layout, _ in ports}
        else:
            ports |= {(settled(a), settled(a)) for a, _ in self._made(value)}
        self.position[value] = len(self.graph.ops) + len(self.shared)
        self.shared[value] = tuple(sorted(ports))

    def ports(self, op: int, slot: int) -> tuple[Port, ...]:
        """How an operation reads one of its tensors, by configuration."""
        axes = self.graph.ops[op].shape.reads[slot]
        return tuple((read_layout(axes, c), gradient_layout(axes, c)) for c in self.options[op])

    def _made(self, value: int) -> tuple[Port, ...]:
        op, slot = self.producers[value]
        axes = self.graph.ops[op].shape.results[slot]
        return tuple((made_layout(axes, c), made_layout(axes, c)) for c in self.options[op])

    def _connect(self, value: int) -> None:
        info = self.graph.values[value]
        sources = self._made(value) if value in self.producers else None
        node = self.producers[value][0] if value in self.producers else -1
        if value in self.shared:
            states = self.shared[value]
            if sources is not None:
                self.links.append(
                    PortLink(
                        value,
                        node,
                        self.position[value],
                        sources,
                        states,
                        info,
                        self._handed(value),
                    )
                )
            for op, slot in self.readers[value]:
                cost = self._taken(value)
                self.links.append(
                    PortLink(value, self.position[value], op, states, self.ports(op, slot), info,
                         cost, info.source == PARAMETER)
                )  # fmt: skip
        elif sources is not None:
            (op, slot), = self.readers[value]  # fmt: skip
            self.links.append(
                PortLink(value, node, op, sources, self.ports(op, slot), info, self._handed(value))
            )

    def _handed(self, value: int) -> Cost:
        info, mesh, machine = self.graph.values[value], self.mesh, self.machine

        def cost(before: Port, after: Port) -> Moved:
            return passed(info, before[0], after[0], after[1], mesh, machine)

        return cost

    def _taken(self, value: int) -> Cost:
        """Of a shared value: nothing where the reader wants what is shared."""
        info, mesh, machine = self.graph.values[value], self.mesh, self.machine

        def cost(before: Port, after: Port) -> Moved:
            if before == after:
                return Moved()
            there = move(info.bytes, before[0], after[0], mesh, machine)
            if not info.gradient:
                return there
            return there + move(info.bytes, after[1], before[0], mesh, machine)

        return cost

    def names(self) -> tuple[str, ...]:
        """Of all nodes."""
        shared = [self.graph.values[v].name or f"shared.{v}" for v in self.shared]
        return (*(op.name for op in self.graph.ops), *shared)

    def compute(self, op: int) -> FloatArray:
        """Seconds of an operation's configurations. [K]"""
        graph, mesh, machine = self.graph, self.mesh, self.machine
        known = self.seconds[op] if self.seconds else None
        return np.array(
            [compute(graph, graph.ops[op], c, mesh, machine, known) for c in self.options[op]]
        )

    def exchanges(self, op: int) -> FloatArray:
        """Seconds of what an operation's parts exchange while they compute. [K]"""
        graph, mesh, machine = self.graph, self.mesh, self.machine
        return np.array(
            [exchange(graph, graph.ops[op], c, mesh, machine) for c in self.options[op]]
        )

    def gradients(self, op: int) -> FloatArray:
        """Seconds of adding up the gradients of the parameters that it alone reads. [K]"""
        found = np.zeros(len(self.options[op]))
        for value, axes in self._own(op):
            info = self.graph.values[value]
            found += [
                parameter_gradient(info, axes, c, self.mesh, self.machine) for c in self.options[op]
            ]
        return found

    def memory(self, op: int) -> FloatArray:
        """Bytes of results, and of the parameters that it alone reads. [K]"""
        graph, mesh = self.graph, self.mesh
        found = np.array([made_bytes(graph, graph.ops[op], c, mesh) for c in self.options[op]])
        for value, axes in self._own(op):
            info = graph.values[value]
            found += [
                parameter_bytes(info, read_layout(axes, c), mesh, self.machine)
                for c in self.options[op]
            ]
        return found

    def _own(self, op: int) -> list[tuple[int, tuple[str | None, ...]]]:
        pairs = zip(self.graph.ops[op].reads, self.graph.ops[op].shape.reads, strict=True)
        return [
            (value, axes)
            for value, axes in pairs
            if self.graph.values[value].source == PARAMETER and value not in self.shared
        ]

    def shared_memory(self, value: int) -> FloatArray:
        """Bytes of a shared parameter's homes. [K]"""
        info = self.graph.values[value]
        if info.source != PARAMETER:
            return np.zeros(len(self.shared[value]))
        return np.array(
            [parameter_bytes(info, s[0], self.mesh, self.machine) for s in self.shared[value]]
        )


def captured_tables(captured: CapturedProblem) -> ShardingProblem:
    """The cost tables; equal operations and pairs share them."""
    count = len(captured.graph.ops)
    unique: dict[object, tuple[FloatArray, FloatArray]] = {}
    cost, memory = [], []
    for i in range(count):
        key = captured.node_key(i)
        if key not in unique:
            own = captured.compute(i) + captured.exchanges(i) + captured.gradients(i)
            unique[key] = (own, captured.memory(i))
        cost.append(unique[key][0])
        memory.append(unique[key][1])
    for value, states in captured.shared.items():
        cost.append(np.zeros(len(states)))
        memory.append(captured.shared_memory(value))
    tables: dict[object, tuple[FloatArray, ClassTable]] = {}
    edges = []
    for x in captured.links:
        key = (x.before, x.after, x.cost.__qualname__, x.info.bytes, x.info.gradient)
        if key not in tables:
            found = _table(x)
            tables[key] = found, over_classes(found)
        edges.append(Edge(x.u, x.v, tables[key][0], None, tables[key][1]))
    devices = int(np.prod(captured.mesh))
    name = captured.graph.name
    return ShardingProblem(
        name, devices, captured.names(), tuple(cost), tuple(edges), tuple(memory)
    )


def _table(link: PortLink) -> FloatArray:
    """Seconds between configurations of both ends; what is read alike is counted once."""
    rows, row = _distinct(link.before)
    columns, column = _distinct(link.after)
    small = np.empty((len(rows), len(columns)))
    for i, before in enumerate(rows):
        for k, after in enumerate(columns):
            small[i, k] = link.cost(before, after).total
    return np.ascontiguousarray(small[np.ix_(row, column)])


def _distinct(ports: Sequence[Port]) -> tuple[list[Port], LongArray]:
    found = sorted(set(ports))
    index = {port: i for i, port in enumerate(found)}
    return found, np.array([index[port] for port in ports])


def captured_parts(captured: CapturedProblem, chosen: Sequence[int]) -> CostParts:
    """Seconds of a strategy by what they go to, and bytes a device."""
    count = len(captured.graph.ops)
    moved, gradient = Moved(), 0.0
    for link in captured.links:
        cost = link.cost(link.before[chosen[link.u]], link.after[chosen[link.v]])
        if link.parameter:
            gradient += cost.total
        else:
            moved = moved + cost
    shared = list(captured.shared)
    return CostParts(
        sum(float(captured.compute(i)[chosen[i]]) for i in range(count)),
        moved.reduction + sum(float(captured.exchanges(i)[chosen[i]]) for i in range(count)),
        gradient + sum(float(captured.gradients(i)[chosen[i]]) for i in range(count)),
        moved.resharding,
        sum(float(captured.memory(i)[chosen[i]]) for i in range(count))
        + sum(float(captured.shared_memory(v)[chosen[count + k]]) for k, v in enumerate(shared)),
    )


def completed(captured: CapturedProblem, operations: Sequence[Configuration]) -> tuple[int, ...]:
    """A strategy of the operations with the cheapest states of what they share.

    Raises:
        ValueError: an operation has no such configuration.
    """
    chosen = [options.index(c) for options, c in zip(captured.options, operations, strict=True)]
    for value, states in captured.shared.items():
        node = captured.position[value]
        links = [link for link in captured.links if node in (link.u, link.v)]
        costs = [sum(_beside(link, node, k, chosen) for link in links) for k in range(len(states))]
        chosen.append(int(np.argmin(costs)))
    return tuple(chosen)


def _beside(link: PortLink, node: int, state: int, chosen: Sequence[int]) -> float:
    if link.u == node:
        return link.cost(link.before[state], link.after[chosen[link.v]]).total
    return link.cost(link.before[chosen[link.u]], link.after[state]).total


def ddp_parts(captured: CapturedProblem) -> CostParts:
    """Seconds of a step of DDP by what they go to, and bytes a device."""
    graph, machine = captured.graph, captured.machine
    examples = batch_size(graph)
    devices = min(math.prod(captured.mesh), examples)  # the others have no example
    share, mine = math.ceil(examples / devices) / examples, depends_on_inputs(graph)
    compute = memory = 0.0
    for i in range(len(graph.ops)):
        seconds = float(captured.compute(i)[0])  # the first configuration splits nothing
        fixed = min(seconds, machine.overhead)
        compute += fixed + (seconds - fixed) * (share if mine[i] else 1.0)
        made = sum(graph.values[v].bytes for v in graph.ops[i].results)
        memory += 0.0 if graph.ops[i].shape.moves else made * (share if mine[i] else 1.0)
    parameters = [v for v in graph.values if v.source == PARAMETER]
    learned = sum(v.bytes for v in parameters if v.gradient)
    reduced = gradient_seconds(machine.exchange, machine.bandwidth, devices, learned)
    memory += sum(v.bytes * (machine.state if v.gradient else 1) for v in parameters)
    return CostParts(compute, 0.0, reduced, 0.0, memory)


def batch_size(graph: SplitGraph) -> int:
    """Examples: positions along the first axis of the first input; 1 without inputs."""
    sizes = [v.shape[0] for v in graph.values if v.source == INPUT and v.shape]
    return sizes[0] if sizes else 1


def depends_on_inputs(graph: SplitGraph) -> list[bool]:
    """Of each operation, whether examples go through it."""
    known = {i for i, v in enumerate(graph.values) if v.source == INPUT}
    found = []
    for op in graph.ops:
        found.append(any(value in known for value in op.reads))
        if found[-1]:
            known.update(op.results)
    return found
