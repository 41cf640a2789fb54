"""Binary heaps in flat arrays, in numba: several times as fast as ``heapq`` on lists of tuples.

A heap of ``count`` items lies in ``keys[low : low + count]`` and ``items[low : low + count]``: the
least key first, the least item among equal keys. Both functions take O(log count).
"""

from __future__ import annotations

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.graph.jit import inner
from gnnplace.graph.kernel_arrays import ONE, Index


@inner(_nrt=False)
def heap_push(
    keys: FloatArray, items: IntArray, low: int, count: int, key: float, item: int
) -> None:
    """Adds an item to a heap that has ``count`` and room for one more."""
    base, at = Index(low), Index(count)
    while at > Index(0):
        above = (at - ONE) >> ONE
        other = keys[base + above]
        if other < key or (other == key and items[base + above] < item):
            break
        keys[base + at], items[base + at] = other, items[base + above]
        at = above
    keys[base + at], items[base + at] = key, item


@inner(_nrt=False)
def heap_pop(keys: FloatArray, items: IntArray, low: int, count: int) -> int:
    """Takes the first item off a heap that has ``count`` of them, at least one."""
    base = Index(low)
    last = Index(count) - ONE
    first = items[base]
    key, item = keys[base + last], items[base + last]
    at = Index(0)
    while True:
        below = at + at + ONE
        if below >= last:
            break
        left = base + below
        right = left + ONE
        if below + ONE < last and (
            keys[right] < keys[left] or (keys[right] == keys[left] and items[right] < items[left])
        ):
            below += ONE
        other = keys[base + below]
        if key < other or (key == other and item < items[base + below]):
            break
        keys[base + at], items[base + at] = other, items[base + below]
        at = below
    keys[base + at], items[base + at] = key, item
    return first
