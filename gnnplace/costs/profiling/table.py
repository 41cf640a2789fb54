"""A table of measured ops from programs that were measured op by op, to predict others with."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gnnplace.costs.prediction import predict
from gnnplace.costs.profiling.description import describe
from gnnplace.costs.rows import Floats, Rows, joined
from gnnplace.costs.tables import shipped
from gnnplace.tracing.program import Program

LEAST = 1e-7  # seconds: below it the clock ticked, and nothing was timed


def measured_rows(program: Program, seconds: Floats, kind: str) -> Rows:
    """What was measured of a program's ops, as rows of a table.

    On a GPU the median of its views, which launch nothing, is what two events take by themselves
    and comes off every op. An op of two kernels is split over them as the shipped tables would.

    Args:
        program: As it was measured.
        seconds: Of each op. [ops]
        kind: Of the device.
    """
    found = describe(program)
    kernel = np.asarray(seconds, dtype=np.float64)
    if kind != "cpu" and found.view.any():
        kernel = np.maximum(kernel - np.median(kernel[found.view]), 0.0)
    share = predict(found.rows, kind, shipped()).seconds
    whole = np.bincount(found.owner, share, len(kernel))
    mine = kernel[found.owner] * share / np.maximum(whole[found.owner], 1e-30)
    rows = found.rows
    keep = mine > LEAST
    if kind != "cpu":
        keep &= ~found.view[found.owner]
    return Rows(rows.op, rows.dtype, rows.sizes, rows.bytes, mine).take(keep)


def merged_rows(tables: Iterable[Rows]) -> Rows:
    """One row an op and its sizes, with the median of its seconds."""
    rows = joined(tables)
    key = [rows.op, rows.dtype, *rows.sizes.T.astype(np.int64), rows.bytes.astype(np.int64)]
    names = np.array(["|".join(map(str, parts)) for parts in zip(*key, strict=True)])
    _, first, number = np.unique(names, return_index=True, return_inverse=True)
    order = np.argsort(number, kind="stable")
    groups = np.split(rows.seconds[order], np.searchsorted(number[order], range(1, len(first))))
    merged = rows.take(first)
    median = np.array([np.median(group) for group in groups])
    return Rows(merged.op, merged.dtype, merged.sizes, merged.bytes, median)
