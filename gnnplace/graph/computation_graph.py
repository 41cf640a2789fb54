"""``ComputationGraph``: ops and the tensors between them, as frozen arrays.

The quotient of a graph has groups of ops as its ops. The tensors of a group are those that leave
it, each with one consumption for every group that reads it, in the order in which the consumers are
listed. A tensor of zero bytes that only orders two ops is dropped if another tensor, or an order
listed earlier, already links the same two groups. Complexity: O(m log m) for m consumptions.
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
        InputError: There is a repeated name, a dangling index, a negative size or a cycle.
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
        triples = list(tensors)
        counts = np.array(
            [0, *(len(consumers) for _, _, consumers in triples)], dtype=np.int64
        )
        return cls(
            names=tuple(names),
            producer=np.array([producer for producer, _, _ in triples], dtype=np.int32),
            size=np.array([size for _, size, _ in triples], dtype=np.float64),
            consumer_offset=np.cumsum(counts).astype(np.int32),
            consumer=np.array(
                [c for _, _, consumers in triples for c in consumers], np.int32
            ),
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
        bad = np.flatnonzero(~((self.size >= 0) & (self.size <= MOST)))
        if bad.size:
            raise InputError(
                f"tensors[{bad[0]}].bytes: must be a number, 0 to {MOST:g}"
            )
        self._check_consumers()

    def _check_consumers(self) -> None:
        tensor = self.consumption_tensor
        order = np.lexsort((self.consumer, tensor))
        same = (np.diff(tensor[order]) == 0) & (np.diff(self.consumer[order]) == 0)
        if same.any():
            k = int(order[int(np.argmax(same)) + 1])
            name = self.names[self.consumer[k]]
            raise InputError(f"tensors[{tensor[k]}].consumers: {name!r} is repeated")

    @property
    def num_ops(self) -> int:
        """Return the number of ops n."""
        return len(self.names)

    @property
    def num_tensors(self) -> int:
        """Return the number of tensors T."""
        return len(self.producer)

    @cached_property
    def index(self) -> dict[str, int]:
        """Return the index of each op by its name."""
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def consumption_tensor(self) -> IntArray:
        """Return the tensor of each entry of ``consumer``."""
        return np.repeat(
            np.arange(self.num_tensors, dtype=np.int32), np.diff(self.consumer_offset)
        )

    @cached_property
    def op_tensor(self) -> IntArray:
        """Return tensors sorted by producer, in listing order within an op. [num_tensors]"""
        return np.argsort(self.producer, kind="stable").astype(np.int32)

    @cached_property
    def op_tensor_offset(self) -> IntArray:
        """Return where each op's tensors start in ``op_tensor``. [num_ops + 1]"""
        return _offsets(self.producer, self.num_ops)

    @cached_property
    def edges(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Return the distinct (source op, target op, bytes summed over tensors).

        Sorted by source, then by target.
        """
        source = self.producer[self.consumption_tensor].astype(np.int64)
        key = source * self.num_ops + self.consumer
        unique, inverse = np.unique(key, return_inverse=True)
        total = np.bincount(inverse, self.size[self.consumption_tensor], len(unique))
        pair = np.divmod(unique, max(1, self.num_ops))
        return (
            pair[0].astype(np.int32),
            pair[1].astype(np.int32),
            total.astype(np.float64),
        )

    @cached_property
    def successor(self) -> IntArray:
        """Return the distinct successors of all ops, op after op, ascending within an op."""
        return self.edges[1]

    @cached_property
    def successor_offset(self) -> IntArray:
        """Return where each op's successors start in ``successor``. [num_ops + 1]"""
        return _offsets(self.edges[0], self.num_ops)

    @cached_property
    def predecessor(self) -> IntArray:
        """Return the distinct predecessors of all ops, op after op, ascending within an op."""
        return self.edges[0][np.lexsort((self.edges[0], self.edges[1]))]

    @cached_property
    def predecessor_offset(self) -> IntArray:
        """Return where each op's predecessors start in ``predecessor``. [num_ops + 1]"""
        return _offsets(self.edges[1], self.num_ops)

    @cached_property
    def topological_order(self) -> IntArray:
        """Return ops so that producers come first; among the ready ones the smallest index first.

        Raises:
            InputError: There is a cycle; the message names its ops.
        """
        from gnnplace.graph.kernels import least_first  # late: a kernel

        listed = np.arange(self.num_ops, dtype=np.int32)
        order = least_first(self.successor_offset, self.successor, listed)
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
        """Return the graph with op names as nodes and bytes between two ops as edge ``bytes``."""
        import networkx as nx  # late: a tenth of a second that few commands need

        view = nx.DiGraph()
        view.add_nodes_from(self.names)
        names = self.names
        for source, target, size in zip(*self.edges, strict=True):
            view.add_edge(names[source], names[target], bytes=float(size))
        return view


def _offsets(sorted_key: IntArray, count: int) -> IntArray:
    sizes = np.bincount(sorted_key, minlength=count)
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)


def describe_cycle(source: list[int], target: list[int], names: Sequence[str]) -> str:
    """Name the ops of one cycle of a directed graph, e.g. ``'a' -> 'b' -> 'a'``."""
    import networkx as nx  # late: a cycle is an error

    cycle = nx.find_cycle(nx.DiGraph(list(zip(source, target, strict=True))))
    shown = [repr(names[edge[0]]) for edge in cycle]
    if len(shown) > 12:
        shown = [*shown[:10], "...", shown[-1]]
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
        group: Group of each op. [n]
        names: The names of the groups. [G]
        order_only: Whether a tensor carries nothing; by default those of no bytes. [T]
    """
    if order_only is None:
        bare = graph.size == 0
    else:
        bare = order_only
    tensor = np.repeat(np.arange(graph.num_tensors), np.diff(graph.consumer_offset))
    source = group[graph.producer][tensor]
    target = group[graph.consumer]
    consumptions = _firsts(tensor, source, target, bare[tensor], len(names))
    consumptions = consumptions[np.argsort(bare[tensor[consumptions]], kind="stable")]
    # Each run of one tensor is that tensor in the quotient.
    begins = np.flatnonzero(np.diff(tensor[consumptions], prepend=-1))
    tensors = tensor[consumptions[begins]]
    return ComputationGraph(
        names=tuple(names),
        producer=group[graph.producer[tensors]].astype(np.int32),
        size=graph.size[tensors],
        consumer_offset=np.append(begins, len(consumptions)).astype(np.int32),
        consumer=target[consumptions].astype(np.int32),
    )


def _firsts(
    tensor: LongArray, source: IntArray, target: IntArray, bare: BoolArray, count: int
) -> LongArray:
    """Return the indices of consumptions to keep.

    These are the first of a tensor in each other group, and an order where no tensor links two
    groups.
    """
    leaving = np.flatnonzero(source != target)
    pair = tensor[leaving] * count + target[leaving]
    leaving = leaving[np.sort(np.unique(pair, return_index=True)[1])]
    link = source[leaving].astype(np.int64) * count + target[leaving]
    real = ~bare[leaving]
    first = np.zeros(len(leaving), dtype=bool)
    first[np.unique(link, return_index=True)[1]] = True
    needed = first & ~np.isin(link, link[real])
    return leaving[real | needed]


def united(label: IntArray, group: IntArray, count: int) -> IntArray:
    """Return the class of each group; classes that meet in a group become the smallest label. [G]

    Args:
        label: Class of each op, from 0; -1 for none. [n]
        group: Group of each op. [n]
        count: Number of groups G.

    Returns:
        A label for each group, -1 where none of its ops has one.
    """
    group_label = np.full(count, -1, dtype=np.int32)
    has = label >= 0
    if not has.any():
        return group_label
    from gnnplace.graph.kernels import components

    # Labels and groups are nodes of one graph, whose components are the united classes.
    num_labels = int(label.max()) + 1
    source = label[has].astype(np.int32)
    target = (num_labels + group[has]).astype(np.int32)
    component = components(source, target, num_labels + count)
    smallest = np.full(int(component.max()) + 1, num_labels)
    np.minimum.at(smallest, component[:num_labels], np.arange(num_labels))
    labelled_groups = np.unique(group[has])
    group_label[labelled_groups] = smallest[component[num_labels + labelled_groups]]
    return group_label
