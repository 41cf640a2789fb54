"""The best strategy as an integer programme, to compare elimination with (HiGHS through SciPy).

Formulation as in Alpa (Zheng et al., 2022, arXiv 2201.12023, section 4.2): a binary x of every
configuration of a node, a y from 0 to 1 of every cell of a pair's table,

    min  sum c x + sum t y      one x of a node is 1;  y sums over either axis to the x of the other

over classes of configurations that a table does not tell apart, which leaves far fewer y. With
binary x the y are binary by themselves where costs make them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnplace.errors import UnsupportedError
from gnnplace.sharding.problem import ShardingProblem
from gnnplace.sharding.solver.search import ShardingResult
from gnnplace.sharding.solver.tables import Flat, make_flat_tables

FloatArray = NDArray[np.float64]
MOST_VARIABLES = 3_000_000  # About 2 GB in the solver.
GAP = 1e-9  # Relative gap at which the solver's answer counts as proven.


class TooManyVariablesError(UnsupportedError):
    """A programme that would not fit into memory."""


@dataclass
class _Rows:
    """Entries of a sparse matrix whose rows sum up to right-hand sides."""

    row: list[NDArray[np.int64]]
    column: list[NDArray[np.int64]]
    value: list[NDArray[np.float64]]
    right: list[float]

    def add(
        self, columns: NDArray[np.int64], values: NDArray[np.float64], right: float
    ) -> None:
        self.row.append(np.full(len(columns), len(self.right)))
        self.column.append(columns)
        self.value.append(values)
        self.right.append(right)


def solve_programme(
    problem: ShardingProblem, time_limit: float
) -> ShardingResult | None:
    """The best strategy that the solver finds in time; None if it finds none.

    Args:
        problem: cost tables.
        time_limit: seconds of the solver; building the programme counts in the result's.

    Raises:
        TooManyVariablesError: says how many.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    begin = time.perf_counter()
    flat = make_flat_tables(problem)
    cost, binary = _variables(flat)
    matrix, right = _constraints(flat, len(cost))
    # The solver's tolerances are absolute: an objective near one.
    scale = max(sum(float(np.abs(table).min()) for table in problem.cost), 1e-300)
    found = milp(
        cost / scale,
        integrality=binary,
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(matrix, right, right),
        options={"time_limit": time_limit, "mip_rel_gap": GAP},
    )
    if found.x is None:
        return None
    parts = np.split(found.x[: flat.start[-1]], flat.start[1:-1])
    configuration = tuple(int(part.argmax()) for part in parts)
    seconds = time.perf_counter() - begin
    value, memory = problem.value(configuration), problem.bytes(configuration)
    bound = (
        None if found.mip_dual_bound is None else float(found.mip_dual_bound) * scale
    )
    return ShardingResult(
        value, memory, configuration, seconds, found.status == 0, bound
    )


def _variables(flat: Flat) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Costs of all x and y, and which of them are binary."""
    sizes = flat.shape.prod(axis=1) if len(flat.shape) else np.zeros(0, np.int64)
    count = int(flat.start[-1] + sizes.sum())
    if count > MOST_VARIABLES:
        raise TooManyVariablesError(
            f"integer programme: {count} variables are more than {MOST_VARIABLES}"
        )
    spans = zip(flat.table, sizes, strict=True)
    cells = [flat.cells[begin : begin + size] for begin, size in spans]
    binary = np.zeros(count, np.int64)
    binary[: flat.start[-1]] = 1
    return np.concatenate([flat.unary, *cells]), binary


def _constraints(flat: Flat, count: int):  # type: ignore[no-untyped-def]
    """The sparse matrix [rows, variables] and its right-hand sides."""
    from scipy.sparse import csr_array

    rows = _Rows([], [], [], [])
    for node in range(len(flat.start) - 1):
        mine = np.arange(flat.start[node], flat.start[node + 1])
        rows.add(mine, np.ones(len(mine)), 1.0)
    begin = int(flat.start[-1])
    for e, (height, width) in enumerate(flat.shape.tolist()):
        cells = begin + np.arange(height * width).reshape(height, width)
        for side, lines in ((0, cells), (1, cells.T)):
            _tie(rows, flat, e, side, lines)
        begin += height * width
    places = (np.concatenate(rows.row), np.concatenate(rows.column))
    shape = (len(rows.right), count)
    matrix = csr_array((np.concatenate(rows.value), places), shape=shape)
    return matrix, np.array(rows.right)


def _tie(rows: _Rows, flat: Flat, e: int, side: int, lines: NDArray[np.int64]) -> None:
    """Cells of each class sum to the x of its configurations."""
    node = flat.ends[e, side]
    size = int(flat.start[node + 1] - flat.start[node])
    of = flat.classes[flat.lookup[e, side] : flat.lookup[e, side] + size]
    for number, line in enumerate(lines):
        mine = flat.start[node] + np.flatnonzero(of == number)
        values = np.concatenate([np.ones(len(line)), -np.ones(len(mine))])
        rows.add(np.concatenate([line, mine]), values, 0.0)
