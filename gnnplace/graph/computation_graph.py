"""``ComputationGraph``: ops and the tensors between them, as frozen arrays.

``quotient`` gives the graph of groups of ops. The tensors of a group are those that leave it. Each
has one consumption for every group that reads it, in the order in which its consumers are listed. A
tensor of zero bytes only says that one op comes before another. It is dropped if the same two
groups are already linked by a tensor with bytes, or by another such tensor that is listed earlier.
Complexity: O(m log m) for m consumptions, where a consumption is a pair of tensor and consumer.

`unite_groups` merges colocation classes of ops that a group has in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import BoolArray, FloatArray, IntArray, LongArray
from gnnplace.errors import InputError
from gnnplace.files import MOST

if TYPE_CHECKING:
    import networkx as nx

MOST_SHOWN = 12  # ops of a cycle that an error names


@dataclass(frozen=True, eq=False)
class ComputationGraph:
    """A DAG of ops and tensors; a tensor has one producer and any number of consumers.

    Attributes:
        names: Name of each op. [num_ops]
        producer: Op that makes each tensor. [num_tensors]
        size: Bytes of each tensor. [num_tensors]
        consumer_offset: Index where each tensor's consumers start in ``consumer``. [num_tensors +
            1]
        consumer: Consumers of all tensors, one after the other.

    Raises:
        InputError: A name or a consumer is repeated, an index is of no op, a size is negative, or
            there is a cycle.
    """

    names: tuple[str, ...]
    producer: IntArray
    size: FloatArray
    consumer_offset: IntArray
    consumer: IntArray

    def __post_init__(self) -> None:
        for array in (self.producer, self.size, self.consumer_offset, self.consumer):
            array.flags.writeable = False
        self._check_names()
        self._check_tensors()
        _ = self.topological_order

    @classmethod
    def from_tensors(
        cls,
        names: Sequence[str],
        tensors: Iterable[tuple[int, float, Sequence[int] | NDArray[Any]]],
    ) -> ComputationGraph:
        """Build a graph from ``(producer, bytes, consumers)`` triples of op indices."""
        producer: list[int] = []
        size: list[float] = []
        consumer_offset = [0]
        consumer: list[Any] = []
        for tensor_producer, tensor_bytes, consumers in tensors:
            producer.append(tensor_producer)
            size.append(tensor_bytes)
            consumer.extend(consumers)
            consumer_offset.append(len(consumer))
        return cls(
            names=tuple(names),
            producer=np.array(producer, dtype=np.int32),
            size=np.array(size, dtype=np.float64),
            consumer_offset=np.array(consumer_offset, dtype=np.int32),
            consumer=np.array(consumer, dtype=np.int32),
        )

    def _check_names(self) -> None:
        if len(self.index) == len(self.names):
            return
        unique: set[str] = set()
        for i, name in enumerate(self.names):
            if name in unique:
                raise InputError(f"ops[{i}].name: {name!r} is repeated")
            unique.add(name)

    def _check_tensors(self) -> None:
        for role, ends in (("producer", self.producer), ("consumers", self.consumer)):
            if ends.size and (ends.min() < 0 or ends.max() >= self.num_ops):
                raise InputError(
                    f"tensors: a {role} index is outside 0..{self.num_ops - 1}"
                )
        # Negated, so that NaN is invalid too.
        invalid = np.flatnonzero(~((self.size >= 0) & (self.size <= MOST)))
        if invalid.size:
            raise InputError(
                f"tensors[{invalid[0]}].bytes: must be a number, 0 to {MOST:g}"
            )
        self._check_consumers()

    def _check_consumers(self) -> None:
        tensor = self.consumption_tensor
        # Sorted by tensor and consumer, a repeated pair follows its equal.
        order = np.lexsort((self.consumer, tensor))
        same_tensor = np.diff(tensor[order]) == 0
        same_consumer = np.diff(self.consumer[order]) == 0
        is_repeated = same_tensor & same_consumer
        if is_repeated.any():
            k = int(order[int(np.argmax(is_repeated)) + 1])
            name = self.names[self.consumer[k]]
            raise InputError(f"tensors[{tensor[k]}].consumers: {name!r} is repeated")

    @property
    def num_ops(self) -> int:
        """Return the number of ops, n."""
        return len(self.names)

    @property
    def num_tensors(self) -> int:
        """Return the number of tensors, T."""
        return len(self.producer)

    @cached_property
    def index(self) -> dict[str, int]:
        """Return the index of each op by its name."""
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def consumption_tensor(self) -> IntArray:
        """Return the tensor of each entry of ``consumer``. [consumptions]"""
        return np.repeat(
            np.arange(self.num_tensors, dtype=np.int32), np.diff(self.consumer_offset)
        )

    @cached_property
    def op_tensor(self) -> IntArray:
        """Return the tensors, sorted by producer and then as they are listed. [num_tensors]"""
        return np.argsort(self.producer, kind="stable").astype(np.int32)

    @cached_property
    def op_tensor_offset(self) -> IntArray:
        """Return where each op's tensors start in ``op_tensor``. [num_ops + 1]"""
        return _count_offsets(self.producer, self.num_ops)

    @cached_property
    def edges(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Return source op, target op and bytes of each edge, sorted by source, then by target.

        An edge is a pair of a producer and a consumer; its bytes are summed over their tensors.
        """
        source = self.producer[self.consumption_tensor].astype(np.int64)
        key = source * self.num_ops + self.consumer
        unique, inverse = np.unique(key, return_inverse=True)
        edge_bytes = np.bincount(
            inverse, self.size[self.consumption_tensor], len(unique)
        )
        edge_source, edge_target = np.divmod(unique, max(1, self.num_ops))
        return (
            edge_source.astype(np.int32),
            edge_target.astype(np.int32),
            edge_bytes.astype(np.float64),
        )

    @cached_property
    def successor(self) -> IntArray:
        """Return the distinct successors of all ops, op after op, ascending within an op."""
        return self.edges[1]

    @cached_property
    def successor_offset(self) -> IntArray:
        """Return where each op's successors start in ``successor``. [num_ops + 1]"""
        return _count_offsets(self.edges[0], self.num_ops)

    @cached_property
    def predecessor(self) -> IntArray:
        """Return the distinct predecessors of all ops, op after op, ascending within an op."""
        source, target, _ = self.edges
        return source[np.lexsort((source, target))]

    @cached_property
    def predecessor_offset(self) -> IntArray:
        """Return where each op's predecessors start in ``predecessor``. [num_ops + 1]"""
        return _count_offsets(self.edges[1], self.num_ops)

    @cached_property
    def topological_order(self) -> IntArray:
        """Return all ops, producers first; of the ready ops the smallest index is next. [num_ops]

        Raises:
            InputError: There is a cycle; the message names its ops.
        """
        from gnnplace.graph.kernels import order_producers_first  # late: a kernel

        listed = np.arange(self.num_ops, dtype=np.int32)
        order = order_producers_first(self.successor_offset, self.successor, listed)
        if len(order) < self.num_ops:
            source, target, _ = self.edges
            cycle = describe_cycle(source.tolist(), target.tolist(), self.names)
            raise InputError(f"tensors: a cycle: {cycle}")
        return np.asarray(order)

    @cached_property
    def position(self) -> IntArray:
        """Return the position of each op in ``topological_order``. [num_ops]"""
        position = np.empty(self.num_ops, dtype=np.int32)
        position[self.topological_order] = np.arange(self.num_ops, dtype=np.int32)
        return position

    def successors(self, op: int) -> IntArray:
        """Return the distinct successors of ``op``, ascending."""
        return self.successor[self.successor_offset[op] : self.successor_offset[op + 1]]

    def predecessors(self, op: int) -> IntArray:
        """Return the distinct predecessors of ``op``, ascending."""
        return self.predecessor[
            self.predecessor_offset[op] : self.predecessor_offset[op + 1]
        ]

    def consumers(self, tensor: int) -> IntArray:
        """Return the consumers of ``tensor`` in listing order."""
        return self.consumer[
            self.consumer_offset[tensor] : self.consumer_offset[tensor + 1]
        ]

    def to_networkx(self) -> nx.DiGraph:
        """Return the graph for networkx: names of ops are its nodes, and edges have ``bytes``."""
        import networkx as nx  # late: a tenth of a second that few commands need

        view = nx.DiGraph()
        view.add_nodes_from(self.names)
        names = self.names
        for source, target, edge_bytes in zip(*self.edges, strict=True):
            view.add_edge(names[source], names[target], bytes=float(edge_bytes))
        return view


def _count_offsets(key: IntArray, count: int) -> IntArray:
    """Return where each of ``count`` keys starts in a list that is sorted by key. [count + 1]"""
    sizes = np.bincount(key, minlength=count)
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)


def describe_cycle(source: list[int], target: list[int], names: Sequence[str]) -> str:
    """Name the ops of one cycle of a directed graph, e.g. ``'a' -> 'b' -> 'a'``."""
    import networkx as nx  # late: a cycle is an error

    cycle = nx.find_cycle(nx.DiGraph(list(zip(source, target, strict=True))))
    shown = [repr(names[edge[0]]) for edge in cycle]
    if len(shown) > MOST_SHOWN:
        # All but the first ones and the last one are left out.
        shown = [*shown[: MOST_SHOWN - 2], "...", shown[-1]]
    return " -> ".join([*shown, shown[0]])


def quotient(
    graph: ComputationGraph,
    group: IntArray,
    names: Sequence[str],
    order_only: BoolArray | None = None,
) -> ComputationGraph:
    """Return the graph of groups, in which a group is one op.

    Args:
        graph: The graph of ops.
        group: Group of each op, from 0. [n]
        names: The names of the groups. [G]
        order_only: Whether a tensor only orders ops; by default, those of no bytes. [T]
    """
    if order_only is None:
        is_bare = graph.size == 0
    else:
        is_bare = order_only
    tensor = np.repeat(np.arange(graph.num_tensors), np.diff(graph.consumer_offset))
    source = group[graph.producer][tensor]
    target = group[graph.consumer]
    consumptions = _select_consumptions(
        tensor=tensor,
        source=source,
        target=target,
        is_bare=is_bare[tensor],
        num_groups=len(names),
    )

    # Tensors that only order ops are listed last.
    by_kind = np.argsort(is_bare[tensor[consumptions]], kind="stable")
    consumptions = consumptions[by_kind]

    # A run of consumptions of one tensor is a tensor of the quotient.
    begins = np.flatnonzero(np.diff(tensor[consumptions], prepend=-1))
    tensors = tensor[consumptions[begins]]
    return ComputationGraph(
        names=tuple(names),
        producer=group[graph.producer[tensors]].astype(np.int32),
        size=graph.size[tensors],
        consumer_offset=np.append(begins, len(consumptions)).astype(np.int32),
        consumer=target[consumptions].astype(np.int32),
    )


def _select_consumptions(
    tensor: LongArray,
    source: IntArray,
    target: IntArray,
    is_bare: BoolArray,
    num_groups: int,
) -> LongArray:
    """Return the indices of the consumptions that the quotient has, ascending.

    Args:
        tensor: Tensor of each consumption. [m]
        source: Group that makes it. [m]
        target: Group that reads it. [m]
        is_bare: Whether the tensor only orders ops. [m]
        num_groups: The number of groups.
    """
    # Of a tensor's consumptions in one group, the first counts; those in its own group do not.
    leaving = np.flatnonzero(source != target)
    tensor_and_target = tensor[leaving] * num_groups + target[leaving]
    _, first = np.unique(tensor_and_target, return_index=True)
    leaving = leaving[np.sort(first)]

    # An order is needed if it is the first one between two groups, and no tensor links them.
    link = source[leaving].astype(np.int64) * num_groups + target[leaving]
    has_bytes = ~is_bare[leaving]
    is_first = np.zeros(len(leaving), dtype=bool)
    is_first[np.unique(link, return_index=True)[1]] = True
    is_needed_order = is_first & ~np.isin(link, link[has_bytes])
    return leaving[has_bytes | is_needed_order]


def unite_groups(label: IntArray, group: IntArray, count: int) -> IntArray:
    """Return the class of each group, after classes that share a group are merged. [G]

    Merged classes get the smallest of their labels.

    Args:
        label: Class of each op, from 0; -1 for none. [n]
        group: Group of each op. [n]
        count: The number of groups, G.

    Returns:
        A label for each group, -1 where none of its ops has one.
    """
    group_label = np.full(count, -1, dtype=np.int32)
    has_label = label >= 0
    if not has_label.any():
        return group_label
    from gnnplace.graph.kernels import components

    # Labels and groups are nodes of one graph, whose components are the united classes.
    num_labels = int(label.max()) + 1
    source = label[has_label].astype(np.int32)
    target = (num_labels + group[has_label]).astype(np.int32)
    component = components(source, target, num_labels + count)
    smallest = np.full(int(component.max()) + 1, num_labels)
    np.minimum.at(smallest, component[:num_labels], np.arange(num_labels))
    labelled_groups = np.unique(group[has_label])
    group_label[labelled_groups] = smallest[component[num_labels + labelled_groups]]
    return group_label
