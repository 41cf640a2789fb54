"""The search for the best configurations of a captured model on a mesh, as a ``ShardingProblem``.

The problem has a node for every operation. For every value that several operations read it has a
node for the layout in which they share it, so that one gather is counted once. For every parameter
that several operations read, such as a table shared by embedding and head, it has a node for the
layout in which the parameter is stored.

``ddp_parts`` prices data parallelism as PyTorch's DDP does it, for comparison. Every device runs
the whole step on its share of the batch, and the largest share decides. The gradients of all
parameters are summed by one all-reduce, on GPUs behind the backward pass
(`compute_exposed_seconds`, as for plans). Nothing else is exchanged: batch norms see their own
share, and calls that no rule can split need no rule, since whole examples pass through them. Calls
that do not depend on the inputs run on every device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gnnplace.arrays import FloatArray, LongArray
from gnnplace.costs import (
    compute_exposed_seconds,
    compute_gradient_seconds,
    get_hidden_replica_share,
)
from gnnplace.sharding.captured.costs import (
    BACKWARD,
    CostParts,
    MeshMachine,
    Moved,
    compute,
    compute_result_bytes,
    exchange,
    move,
    parameter_bytes,
    parameter_gradient,
    price_handover,
)
from gnnplace.sharding.captured.layout import (
    CALL,
    PARAMETER,
    Configuration,
    Layout,
    Mesh,
    SplitGraph,
    SplitValue,
    get_result_layout,
    gradient_layout,
    mesh_configurations,
    pending_layouts,
    read_layout,
    settle_sums,
    uses,
)
from gnnplace.sharding.problem import Edge, ShardingProblem
from gnnplace.sharding.solver.classes import ClassTable, over_classes
from gnnplace.tracing import INPUT

Port = tuple[Layout, Layout]
"""How a value is read: its layout, and that of the gradient left behind."""
Cost = Callable[[Port, Port], Moved]


@dataclass(frozen=True)
class PortLink:
    """An edge before it is a table.

    Attributes:
        value: number of the value that is handed over.
        u: node that hands it over.
        v: node that takes it.
        sources: how the value stands at ``u``, by configuration of ``u``. [K_u]
        targets: how ``v`` reads it, by configuration of ``v``. [K_v]
        info: the value that is handed over.
        cost: seconds between two ports.
        parameter: whether the value is a parameter, whose gradient is then added up.
    """

    value: int
    u: int
    v: int
    sources: tuple[Port, ...]
    targets: tuple[Port, ...]
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
            if len(readers) > 1 and self.graph.values[value].source in (
                CALL,
                PARAMETER,
            ):
                self._share(value)
        for value in self.readers:
            self._connect(value)

    def configurations(self, op: int) -> tuple[Configuration, ...]:
        """Return how an operation may be split. [K]"""
        return mesh_configurations(self.graph.ops[op].shape, self.mesh)

    def node_key(self, op: int) -> object:
        """Return what decides an operation's costs; equal keys share tables."""
        split_op = self.graph.ops[op]
        kinds = []
        for number in (*split_op.reads, *split_op.results):
            value = self.graph.values[number]
            kinds.append((value.shape, value.element, value.gradient, value.source))
        seconds = None
        if self.seconds:
            seconds = self.seconds[op]
        shared = tuple(value in self.shared for value in split_op.reads)
        return split_op.shape, tuple(kinds), shared, seconds

    def _share(self, value: int) -> None:
        """Add a node for a value that several operations read.

        Its states are all layouts in which they read it. Those of a parameter have, as the layout
        of its gradient, what is summed once all readers have left theirs; any other value may also
        be as it is made.
        """
        ports = {
            port for i, slot in self.readers[value] for port in self.ports(i, slot)
        }
        if self.graph.values[value].source == PARAMETER:
            gradients = {gradient for _, gradient in ports}
            ports = {
                (home, pending)
                for home in {layout for layout, _ in ports}
                for pending in pending_layouts(home, gradients)
            }
        else:
            ports |= {
                (settle_sums(a), settle_sums(a))
                for a, _ in self._list_produced_layouts(value)
            }
        self.position[value] = len(self.graph.ops) + len(self.shared)
        self.shared[value] = tuple(sorted(ports))

    def ports(self, op: int, slot: int) -> tuple[Port, ...]:
        """Return how an operation reads one of its tensors, by configuration. [K]"""
        axes = self.graph.ops[op].shape.reads[slot]
        return tuple(
            (read_layout(axes, c), gradient_layout(axes, c)) for c in self.options[op]
        )

    def _list_produced_layouts(self, value: int) -> tuple[Port, ...]:
        """Return the layouts in which a value is made, by configuration of its producer. [K]"""
        op, slot = self.producers[value]
        axes = self.graph.ops[op].shape.results[slot]
        return tuple(
            (get_result_layout(axes, c), get_result_layout(axes, c))
            for c in self.options[op]
        )

    def _connect(self, value: int) -> None:
        """Add the links of a value: from its producer to its reader or, if it is shared, from its
        producer to the shared node and from that to each reader.
        """
        info = self.graph.values[value]
        sources = (
            self._list_produced_layouts(value) if value in self.producers else None
        )
        node = self.producers[value][0] if value in self.producers else -1
        if value in self.shared:
            states = self.shared[value]
            if sources is not None:
                self.links.append(
                    PortLink(
                        value=value,
                        u=node,
                        v=self.position[value],
                        sources=sources,
                        targets=states,
                        info=info,
                        cost=self._handed(value),
                    )
                )
            for op, slot in self.readers[value]:
                self.links.append(
                    PortLink(
                        value=value,
                        u=self.position[value],
                        v=op,
                        sources=states,
                        targets=self.ports(op, slot),
                        info=info,
                        cost=self._price_taking(value),
                        parameter=info.source == PARAMETER,
                    )
                )
        elif sources is not None:
            op, slot = self.readers[value][0]  # not shared: read once
            self.links.append(
                PortLink(
                    value=value,
                    u=node,
                    v=op,
                    sources=sources,
                    targets=self.ports(op, slot),
                    info=info,
                    cost=self._handed(value),
                )
            )

    def _handed(self, value: int) -> Cost:
        """Return the cost of handing a value from where it is made to a reader, and its gradient
        back.
        """
        info = self.graph.values[value]
        mesh = self.mesh
        machine = self.machine

        def cost(source: Port, read: Port) -> Moved:
            return price_handover(
                value=info,
                before=source[0],
                read=read[0],
                gradient=read[1],
                mesh=mesh,
                machine=machine,
            )

        return cost

    def _price_taking(self, value: int) -> Cost:
        """Return the cost of reading a shared value, and of its gradient's way back to where the
        readers' gradients are added up: nothing where the reader wants what is shared.
        """
        info = self.graph.values[value]
        mesh = self.mesh
        machine = self.machine

        def cost(shared: Port, read: Port) -> Moved:
            if shared == read:
                return Moved()
            forward = move(info.bytes, shared[0], read[0], mesh, machine)
            if not info.gradient:
                return forward
            return forward + move(info.bytes, read[1], shared[1], mesh, machine)

        return cost

    def names(self) -> tuple[str, ...]:
        """Return the names of all nodes: operations, then shared values."""
        shared = [self.graph.values[v].name or f"shared.{v}" for v in self.shared]
        return (*(op.name for op in self.graph.ops), *shared)

    def compute(self, op: int) -> FloatArray:
        """Return the seconds of an operation's configurations. [K]"""
        graph = self.graph
        mesh = self.mesh
        machine = self.machine
        measured = self.seconds[op] if self.seconds else None
        return np.array(
            [
                compute(graph, graph.ops[op], c, mesh, machine, measured)
                for c in self.options[op]
            ]
        )

    def exchanges(self, op: int) -> FloatArray:
        """Return the seconds of what an operation's parts exchange while they compute. [K]"""
        graph = self.graph
        mesh = self.mesh
        machine = self.machine
        return np.array(
            [exchange(graph, graph.ops[op], c, mesh, machine) for c in self.options[op]]
        )

    def gradients(self, op: int) -> FloatArray:
        """Return the seconds of adding up the gradients of the parameters that it alone
        reads. [K]
        """
        seconds = np.zeros(len(self.options[op]))
        for value, axes in self._parameters(op):
            info = self.graph.values[value]
            seconds += [
                parameter_gradient(
                    info, gradient_layout(axes, c), self.mesh, self.machine
                )
                for c in self.options[op]
            ]
        return seconds

    def memory(self, op: int) -> FloatArray:
        """Return the bytes of results, and of the parameters that it alone reads. [K]"""
        graph = self.graph
        mesh = self.mesh
        size = np.array(
            [
                compute_result_bytes(graph, graph.ops[op], c, mesh)
                for c in self.options[op]
            ]
        )
        for value, axes in self._parameters(op):
            info = graph.values[value]
            size += [
                parameter_bytes(info, read_layout(axes, c), mesh, self.machine)
                for c in self.options[op]
            ]
        return size

    def _parameters(self, op: int) -> list[tuple[int, tuple[str | None, ...]]]:
        """Return the parameters that an operation alone reads, with the labels of their axes."""
        pairs = zip(
            self.graph.ops[op].reads, self.graph.ops[op].shape.reads, strict=True
        )
        return [
            (value, axes)
            for value, axes in pairs
            if self.graph.values[value].source == PARAMETER and value not in self.shared
        ]

    def price_shared_gradient(self, value: int) -> FloatArray:
        """Return the seconds of adding up a shared parameter's gradient. [K]"""
        info = self.graph.values[value]
        return np.array(
            [
                parameter_gradient(info, s[1], self.mesh, self.machine)
                for s in self.shared[value]
            ]
        )

    def count_shared_memory(self, value: int) -> FloatArray:
        """Return the bytes of a shared parameter's homes. [K]"""
        info = self.graph.values[value]
        if info.source != PARAMETER:
            return np.zeros(len(self.shared[value]))
        return np.array(
            [
                parameter_bytes(info, s[0], self.mesh, self.machine)
                for s in self.shared[value]
            ]
        )


def build_captured_tables(captured: CapturedProblem) -> ShardingProblem:
    """Build the cost tables; equal operations and pairs share them."""
    count = len(captured.graph.ops)
    unique: dict[object, tuple[FloatArray, FloatArray]] = {}
    cost = []
    memory = []
    for i in range(count):
        key = captured.node_key(i)
        if key not in unique:
            seconds = (
                captured.compute(i) + captured.exchanges(i) + captured.gradients(i)
            )
            unique[key] = (seconds, captured.memory(i))
        cost.append(unique[key][0])
        memory.append(unique[key][1])
    for value in captured.shared:
        cost.append(captured.price_shared_gradient(value))
        memory.append(captured.count_shared_memory(value))
    tables: dict[object, tuple[FloatArray, ClassTable]] = {}
    edges = []
    for link in captured.links:
        kind = link.cost.__qualname__  # equal for costs that are computed alike
        key = (link.sources, link.targets, kind, link.info.bytes, link.info.gradient)
        if key not in tables:
            table = _table(link)
            tables[key] = table, over_classes(table)
        table, classes = tables[key]
        edges.append(Edge(link.u, link.v, table, over_classes=classes))
    return ShardingProblem(
        name=captured.graph.name,
        devices=int(np.prod(captured.mesh)),
        names=captured.names(),
        cost=tuple(cost),
        edges=tuple(edges),
        memory=tuple(memory),
    )


def _table(link: PortLink) -> FloatArray:
    """Return the seconds between configurations of both ends; equal ports are priced once. [K_u,
    K_v]
    """
    rows, row = _distinct(link.sources)
    columns, column = _distinct(link.targets)
    small = np.empty((len(rows), len(columns)))
    for i, source in enumerate(rows):
        for k, target in enumerate(columns):
            small[i, k] = link.cost(source, target).total
    return np.ascontiguousarray(small[np.ix_(row, column)])


def _distinct(ports: Sequence[Port]) -> tuple[list[Port], LongArray]:
    """Return the distinct ports, sorted, and the index of each port among them. [len(ports)]"""
    unique = sorted(set(ports))
    index = {port: i for i, port in enumerate(unique)}
    return unique, np.array([index[port] for port in ports])


def price_captured_parts(
    captured: CapturedProblem, strategy: Sequence[int]
) -> CostParts:
    """Return the seconds of a strategy by what they go to, and bytes a device."""
    return total_parts(parts_by_op(captured, strategy))


def parts_by_op(
    captured: CapturedProblem, strategy: Sequence[int]
) -> tuple[CostParts, ...]:
    """Return the parts of each operation, which add up to those of the strategy.

    What changes a value's layout counts for the operation that reads it, or for its producer on
    the way to the node that readers share; a shared parameter, and the sum of its
    gradient, for its first reader.
    """
    graph = captured.graph
    count = len(graph.ops)
    compute = [float(captured.compute(i)[strategy[i]]) for i in range(count)]
    reduction = [float(captured.exchanges(i)[strategy[i]]) for i in range(count)]
    gradient = [float(captured.gradients(i)[strategy[i]]) for i in range(count)]
    memory = [float(captured.memory(i)[strategy[i]]) for i in range(count)]
    resharding = [0.0] * count
    for link in captured.links:
        source = link.sources[strategy[link.u]]
        target = link.targets[strategy[link.v]]
        cost = link.cost(source, target)
        op = link.v if link.v < count else link.u
        if link.parameter:
            gradient[op] += cost.total
        else:
            reduction[op] += cost.reduction
            resharding[op] += cost.resharding
    for value in captured.shared:
        state = strategy[captured.position[value]]
        first = captured.readers[value][0][0]
        memory[first] += float(captured.count_shared_memory(value)[state])
        gradient[first] += float(captured.price_shared_gradient(value)[state])
    columns = zip(compute, reduction, gradient, resharding, memory, strict=True)
    return tuple(
        CostParts(
            compute=row[0],
            reduction=row[1],
            gradient=row[2],
            resharding=row[3],
            memory=row[4],
        )
        for row in columns
    )


def total_parts(parts: Sequence[CostParts]) -> CostParts:
    """Return the sums of all parts."""
    return CostParts(
        compute=sum(part.compute for part in parts),
        reduction=sum(part.reduction for part in parts),
        gradient=sum(part.gradient for part in parts),
        resharding=sum(part.resharding for part in parts),
        memory=sum(part.memory for part in parts),
    )


def complete_strategy(
    captured: CapturedProblem, operations: Sequence[Configuration]
) -> tuple[int, ...]:
    """Return a strategy of the operations with the cheapest states of what they share.

    Raises:
        ValueError: an operation has no such configuration.
    """
    strategy = [
        options.index(c)
        for options, c in zip(captured.options, operations, strict=True)
    ]
    for value, states in captured.shared.items():
        node = captured.position[value]
        links = [link for link in captured.links if node in (link.u, link.v)]
        sums = captured.price_shared_gradient(value)
        costs = [
            sums[k] + sum(_link_seconds(link, node, k, strategy) for link in links)
            for k in range(len(states))
        ]
        strategy.append(int(np.argmin(costs)))
    return tuple(strategy)


def _link_seconds(
    link: PortLink, node: int, state: int, strategy: Sequence[int]
) -> float:
    """Return the seconds of a link if one of its nodes is in ``state`` and the other as in
    ``strategy``.
    """
    if link.u == node:
        return link.cost(link.sources[state], link.targets[strategy[link.v]]).total
    return link.cost(link.sources[strategy[link.u]], link.targets[state]).total


def ddp_parts(captured: CapturedProblem) -> CostParts:
    """Return the seconds of a step of DDP by what they go to, and bytes a device."""
    graph = captured.graph
    machine = captured.machine
    examples = batch_size(graph)
    devices = min(math.prod(captured.mesh), examples)  # the others have no example
    share = math.ceil(examples / devices) / examples
    on_examples = depends_on_inputs(graph)
    compute = memory = 0.0
    for i in range(len(graph.ops)):
        # The first configuration splits nothing.
        seconds = float(captured.compute(i)[0])
        fixed = min(seconds, machine.overhead)
        op_share = share if on_examples[i] else 1.0
        compute += fixed + (seconds - fixed) * op_share
        if not graph.ops[i].shape.moves:
            memory += (
                sum(graph.values[v].bytes for v in graph.ops[i].results) * op_share
            )
    parameters = [v for v in graph.values if v.source == PARAMETER]
    learned = sum(v.bytes for v in parameters if v.gradient)
    reduced = compute_gradient_seconds(
        machine.exchange, machine.bandwidth, devices, learned
    )
    if machine.exchange is not None and not machine.exchange.cluster.sender_busy.any():
        backward = compute * (BACKWARD - 1.0) / BACKWARD
        hidden = min(reduced, backward)
        reduced = compute_exposed_seconds(reduced, hidden, get_hidden_replica_share())
    memory += sum(v.bytes * (machine.state if v.gradient else 1) for v in parameters)
    return CostParts(
        compute=compute, reduction=0.0, gradient=reduced, resharding=0.0, memory=memory
    )


def batch_size(graph: SplitGraph) -> int:
    """Return the positions along the first axis of the first input: examples. 1 without inputs."""
    sizes = [v.shape[0] for v in graph.values if v.source == INPUT and v.shape]
    return sizes[0] if sizes else 1


def depends_on_inputs(graph: SplitGraph) -> list[bool]:
    """Return, for each operation, whether examples go through it."""
    on_inputs = {i for i, v in enumerate(graph.values) if v.source == INPUT}
    flags = []
    for op in graph.ops:
        flags.append(any(value in on_inputs for value in op.reads))
        if flags[-1]:
            on_inputs.update(op.results)
    return flags
