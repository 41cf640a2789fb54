"""``m-sct``: small communication times (Hanen and Munier, 1995) with memory (Baechi, 2020).

Formulation: a linear programme says for every op which child should follow it on its device, its
favourite child: minimise w subject to

* ``start[j] >= start[i] + time[i] + transfer[i, j] * x[i, j]``   for every edge (i, j)
* ``w >= start[i] + time[i]``                                     for every op
* ``sum over children j of x[i, j] >= children(i) - 1``           one child may follow for free
* ``sum over parents i of x[i, j] >= parents(j) - 1``             one parent may be followed
* ``0 <= x <= 1``; the favourite child of i is the j with x[i, j] < 1/2.

Then the ops are scheduled earliest task first, except that a device waits for the favourite child
of its last op while that child is ready. A device takes units until its memory is full. Deviations
are those of ``heft`` and ``etf``; times of ops and transfers are means over devices and links. The
programme is solved by scipy's HiGHS, whose dual simplex ends in a vertex. Complexity: a linear
programme with as many rows as edges, then O(n R D) for R ops that are ready at once.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.graph import empty_ints, full_ints, kernel, zero_floats, zero_table
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.etf import NEVER, WaitingOps, note_arrivals
from gnnplace.placers.search.repair import unit_bytes
from gnnplace.placers.search.space import SearchSpace, with_own_order
from gnnplace.problem import Problem
from gnnplace.simulation import (
    Compiled,
    compute_least_times,
    mean_transfer_times,
    mean_upward_rank,
    pay_overheads,
)

MOST_EDGES = 6_000
LP_SECONDS = 10.0
MOST_OPS = 20_000


@kernel
def favourite_kernel(
    compiled: Compiled,
    rank: FloatArray,
    allowed: BoolArray,
    favourite: IntArray,
    limit: FloatArray,
    unit_bytes: FloatArray,
) -> tuple[IntArray, FloatArray]:
    """Return the device and scheduled start of each op. [n], [n]

    Args:
        compiled: the compiled problem, of n ops and D devices.
        rank: upward rank, breaks ties. [n]
        allowed: whether a unit may be on a device. [U, D]
        favourite: the child an op would like to have on its own device, or -1. [n]
        limit: bytes of units a device takes before it counts as full. [D]
        unit_bytes: bytes of each unit. [U]
    """
    n, num_devices = compiled.times.shape
    device = full_ints(n, -1)
    unit_device = full_ints(len(allowed), -1)
    start = zero_floats(n)
    finish = zero_floats(n)
    # Of devices: seconds when they are free, bytes of units on them, the op that each had last.
    free = zero_floats(num_devices)
    device_bytes = zero_floats(num_devices)
    last = full_ints(num_devices, -1)
    # Of ops: inputs that are not made yet; seconds when all others are on each device.
    missing = compiled.num_inputs.copy()
    arrival = zero_table(n, num_devices)
    links = compiled.links
    num_tensors = len(compiled.size)
    costly = links.sends_cost or links.receives_cost
    made_on = empty_ints(num_tensors)
    sent_to = np.zeros((num_tensors if costly else 0, num_devices), np.bool_)
    ready = empty_ints(n)
    waiting = WaitingOps(arrival, missing, ready)
    num_ready = 0
    for op in range(n):
        if missing[op] == 0:
            ready[num_ready] = op
            num_ready += 1
    for _ in range(n):
        # 1. The ready op and the device at which it starts first; among equals a favourite child,
        # then the op of higher rank.
        best = np.inf
        best_rank = -1.0
        best_at = -1
        best_device = -1
        best_wish = False
        for i in range(num_ready):
            op = ready[i]
            unit = compiled.unit_of[op]
            for d in range(num_devices):
                if not allowed[unit, d] or (
                    unit_device[unit] >= 0 and unit_device[unit] != d
                ):
                    continue
                full = (
                    unit_device[unit] < 0
                    and device_bytes[d] + unit_bytes[unit] > limit[d]
                )
                at = max(arrival[op, d], free[d]) + (NEVER if full else 0.0)
                wish = last[d] >= 0 and favourite[last[d]] == op
                # A device keeps itself for the favourite child of its last op while that is urgent.
                if last[d] >= 0 and favourite[last[d]] >= 0 and not wish:
                    child = favourite[last[d]]
                    if (
                        device[child] < 0
                        and missing[child] == 0
                        and arrival[child, d] <= free[d]
                    ):
                        at = max(at, free[d] + compiled.times[child, d])
                better = at < best or (at == best and wish and not best_wish)
                tie = at == best and wish == best_wish and rank[op] > best_rank
                if better or tie or best_device < 0:
                    best = at
                    best_rank = rank[op]
                    best_at = i
                    best_device = d
                    best_wish = wish
        # 2. It is placed, with its class, and paid for its messages.
        op = ready[best_at]
        d = best_device
        num_ready -= 1
        ready[best_at] = ready[num_ready]
        unit = compiled.unit_of[op]
        if unit_device[unit] < 0:
            device_bytes[d] += unit_bytes[unit]
        unit_device[unit] = d
        device[op] = d
        last[d] = op
        start[op] = max(arrival[op, d], free[d])
        if costly:
            inputs = compiled.input_tensor[
                compiled.input_offset[op] : compiled.input_offset[op + 1]
            ]
            extra = pay_overheads(
                links, free, sent_to, inputs, made_on, compiled.size, d
            )
            start[op] = max(start[op], free[d] + extra)
            for i in range(
                compiled.op_tensor_offset[op], compiled.op_tensor_offset[op + 1]
            ):
                made_on[compiled.op_tensor[i]] = d
        finish[op] = start[op] + compiled.times[op, d]
        free[d] = finish[op]
        # 3. When its tensors would be on each device; ops that waited for nothing else are ready.
        num_ready = note_arrivals(compiled, waiting, op, d, finish[op], num_ready)
    return device, start


class MSct(Placer):
    """Earliest task first with favourite children from a linear programme."""

    name = "m-sct"

    def supports(self, problem: Problem) -> str | None:
        """Refuse more than 6,000 edges, beyond which the linear programme takes too long."""
        edges = len(problem.graph.edges[0])
        if edges > MOST_EDGES or problem.num_ops > MOST_OPS:
            return f"{edges} edges are more than {MOST_EDGES}; use etf, or coarsen"
        return None

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        problem = space.problem
        device, start = favourite_kernel(
            space.compiled,
            mean_upward_rank(problem),
            problem.unit_allowed,
            favourite_children(problem),
            problem.cluster.memory,
            unit_bytes(space),
        )
        return with_own_order(space, device, start)


def favourite_children(problem: Problem) -> IntArray:
    """Return the favourite child of each op, -1 for none. [n]

    Nobody has one if the linear programme is not solved within `LP_SECONDS`.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array, vstack

    num_ops = problem.num_ops
    source, target, size = problem.graph.edges
    num_edges = len(source)
    op_time = compute_least_times(problem)
    transfer = mean_transfer_times(problem, size)

    # Columns: w, the start of each op, x of each edge. Rows are `row @ columns <= limit`.
    num_columns = 1 + num_ops + num_edges
    every_op = np.arange(num_ops, dtype=np.int32)
    every_edge = np.arange(num_edges, dtype=np.int32)
    starts = 1 + every_op
    edges = 1 + num_ops + every_edge

    def build_rows(
        num_rows: int, *entries: tuple[IntArray, IntArray, FloatArray | float]
    ) -> coo_array:
        rows, columns, values = zip(*entries, strict=True)
        coefficients = [
            np.broadcast_to(value, len(row))
            for value, row in zip(values, rows, strict=True)
        ]
        return coo_array(
            (
                np.concatenate(coefficients),
                (np.concatenate(rows), np.concatenate(columns)),
            ),
            shape=(num_rows, num_columns),
        )

    # start[i] + transfer * x - start[j] <= -time[i], for every edge (i, j).
    after_inputs = build_rows(
        num_edges,
        (every_edge, starts[source], 1.0),
        (every_edge, edges, transfer),
        (every_edge, starts[target], -1.0),
    )
    # start[i] - w <= -time[i], for every op.
    before_end = build_rows(
        num_ops, (every_op, starts, 1.0), (every_op, np.zeros_like(every_op), -1.0)
    )
    blocks = [after_inputs, before_end]
    limits: list[FloatArray] = [-op_time[source], -op_time]
    # -(sum of x) <= 1 - number, over the edges that leave or reach an op, if they are several.
    for ends in (source, target):
        number = np.bincount(ends, minlength=num_ops)
        shared = np.flatnonzero(number > 1)
        row_of_op = np.full(num_ops, -1, np.int32)
        row_of_op[shared] = np.arange(len(shared))
        several = np.flatnonzero(number[ends] > 1)
        blocks.append(
            build_rows(len(shared), (row_of_op[ends[several]], edges[several], -1.0))
        )
        limits.append(1.0 - number[shared].astype(np.float64))

    objective = np.zeros(num_columns)
    objective[0] = 1.0
    solution = linprog(
        objective,
        A_ub=vstack(blocks, format="csr"),
        b_ub=np.concatenate(limits),
        bounds=[(0.0, np.inf)] * (1 + num_ops) + [(0.0, 1.0)] * num_edges,
        method="highs-ds",
        options={"time_limit": LP_SECONDS},
    )
    favourite = np.full(num_ops, -1, dtype=np.int32)
    if solution.status == 0 and solution.x is not None:
        is_favourite = solution.x[edges] < 0.5
        favourite[source[is_favourite]] = target[is_favourite]
    return favourite
