"""The quotient of a graph: groups of ops as its ops; and classes that meet in a group, united.

A group's tensors are those of its ops that leave it, each once to every group that takes it, in the
order in which its consumers are listed. A tensor that is only an order (one op has to come before
another, and nothing is passed on) is dropped where a tensor that carries something, or another
order listed before, links the same two groups. Complexity: O(m log m) in the consumptions m.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from gnnplace.arrays import BoolArray, IntArray, LongArray
from gnnplace.graph.computation_graph import ComputationGraph


def quotient(
    graph: ComputationGraph,
    group: IntArray,
    names: Sequence[str],
    order_only: BoolArray | None = None,
) -> ComputationGraph:
    """The graph of groups.

    Args:
        graph: the graph of ops.
        group: group of each op. [n]
        names: the names of the groups. [G]
        order_only: whether a tensor carries nothing; by default those of no bytes. [T]
    """
    bare = graph.size == 0 if order_only is None else order_only
    tensor = np.repeat(np.arange(graph.num_tensors), np.diff(graph.consumer_offset))
    source, target = group[graph.producer][tensor], group[graph.consumer]
    kept = _firsts(tensor, source, target, bare[tensor], len(names))
    kept = kept[np.argsort(bare[tensor[kept]], kind="stable")]
    # Each run of one tensor is that tensor in the quotient.
    begins = np.flatnonzero(np.diff(tensor[kept], prepend=-1))
    made = tensor[kept[begins]]
    return ComputationGraph(
        names=tuple(names),
        producer=group[graph.producer[made]].astype(np.int32),
        size=graph.size[made],
        consumer_offset=np.append(begins, len(kept)).astype(np.int32),
        consumer=target[kept].astype(np.int32),
    )


def _firsts(
    tensor: LongArray, source: IntArray, target: IntArray, bare: BoolArray, count: int
) -> LongArray:
    """Consumptions to keep: the first of a tensor in each other group, and orders needed."""
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
    """Class of each group: classes that meet in a group are one, under the smallest label. [G]

    Args:
        label: class of each op, from 0; -1 for none. [n]
        group: group of each op. [n]
        count: number of groups G.

    Returns:
        A label for each group, -1 where none of its ops has one.
    """
    own = np.full(count, -1, dtype=np.int32)
    has = label >= 0
    if not has.any():
        return own
    num_labels = int(label.max()) + 1
    size = num_labels + count
    links = coo_matrix(
        (np.ones(int(has.sum())), (label[has], num_labels + group[has])), (size, size)
    )
    component = connected_components(links, directed=False)[1]
    least = np.full(int(component.max()) + 1, num_labels)
    np.minimum.at(least, component[:num_labels], np.arange(num_labels))
    mine = np.unique(group[has])
    own[mine] = least[component[num_labels + mine]]
    return own
