"""Parts of one call at any number of examples and shards, from a few that were recorded.

The sizes of a call's kernels are products of its axes, their bytes sums of such products. An axis
that is divided by t shards, and the axis of the examples, come into each of them at most once, so
that a size is a polynomial of degree one in the number of examples and in 1 / t:

    s(e, 1/t) = a + b e + c / t + d e / t.

Recordings at two numbers of examples and two numbers of shards say all of them. Where the ops of
the recordings differ (a copy that one of them does not need), the part that is asked for is
recorded itself. A sum over an axis of one, or its copy, is counted there too; it takes next to
nothing. Complexity: at most four recordings a call and split, instead of one for every micro-batch
and mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gnnplace.costs.profiling.description import Description
from gnnplace.plans.segments.recording import Recorded


def example_corners(batch: int) -> tuple[int, ...]:
    """Numbers of examples to record at: divisors of the batch, above 1 where there are two."""
    divisors = [d for d in range(2, batch + 1) if batch % d == 0]
    return tuple(divisors[:2]) if len(divisors) > 1 else tuple(dict.fromkeys((1, batch)))


def shard_corners(shards: int) -> tuple[int, ...]:
    """Numbers of shards to record at: where 8 and more divide an axis, 2 and 4 do."""
    return (2, 4) if shards > 4 and shards & (shards - 1) == 0 else (shards,)


def between(first: Recorded, second: Recorded, at: float) -> Recorded | None:
    """The part whose sizes are `at` of the way from one to another; None: their ops differ.

    Args:
        first: a recording.
        second: another one of the same call.
        at: 0 is the first, 1 the second; beyond is beyond.
    """
    passes = []
    for name in ("forward", "backward", "whole"):
        found = _described(getattr(first, name), getattr(second, name), at)
        if found is None:
            return None
        passes.append(found)
    if len(first.sizes) != len(second.sizes) or first.reads != second.reads:
        return None
    if first.results != second.results:
        return None
    inner = float(_mixed([first.inner], [second.inner], at)[0])
    sizes = _mixed(first.sizes, second.sizes, at)
    return replace(
        first, forward=passes[0], backward=passes[1], whole=passes[2], inner=inner, sizes=sizes
    )


def _described(first: Description, second: Description, at: float) -> Description | None:
    one, other = first.rows, second.rows
    same = (
        np.array_equal(one.op, other.op)
        and np.array_equal(one.dtype, other.dtype)
        and np.array_equal(first.view, second.view)
        and np.array_equal(first.owner, second.owner)
    )
    if not same:
        return None
    sizes = np.maximum(_mixed(one.sizes, other.sizes, at), 0.0)
    rows = replace(one, sizes=sizes, bytes=_mixed(one.bytes, other.bytes, at))
    return Description(rows, np.arange(len(one)), first.owner, first.view)


def _mixed(
    first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray, at: float
) -> np.ndarray:
    """Whole numbers on the line through two."""
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    return np.maximum(np.rint(one + at * (other - one)), 0.0)
