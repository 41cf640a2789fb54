"""Modules as rows of a table: a few names that the ops of a problem fall under.

Names are cut to as many parts as give the most rows but not more than ``MOST_ROWS``.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import LongArray
from gnnplace.problem import Problem

MOST_ROWS = 24
DEEPEST = 12
NONE = "(no module)"


def module_rows(problem: Problem, most: int = MOST_ROWS) -> tuple[list[str], LongArray]:
    """Return the labels of module rows, in the order of first need, and each op's row. [n]

    Args:
        problem: The problem whose ops are listed.
        most: rows at most, if names that are cut to one part allow that.
    """
    parts = [(name or NONE).split(".") for name in problem.module]
    depth = 1
    while depth < DEEPEST:
        deeper = {tuple(names[: depth + 1]) for names in parts}
        if len(deeper) > most:
            break
        depth += 1
    labels: dict[str, int] = {}
    row = np.empty(problem.num_ops, dtype=np.int64)
    for op in problem.graph.topological_order.tolist():
        row[op] = labels.setdefault(".".join(parts[op][:depth]), len(labels))
    return list(labels), row
