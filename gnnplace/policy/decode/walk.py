"""``Walk``: a problem as flat arrays that the decoder walks in one of two directions.

The decoder decides one device for each placement unit. It visits ops; where an op's unit has no
device yet, that is a decision; the op is then booked on its device, so that the next decision sees
the partial schedule. With micro-batches all copies of an op share a device, so only the ops of the
first micro-batch are visited, and loads, memory and traffic of units count all copies.

A walk backwards is the same on the reversed graph: producers and consumers change places, and so
do the two ends of every link.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.graph import (
    COORDINATE,
    ORDERS,
    ComputationGraph,
    Direction,
    direction,
    downward_rank,
    follow_forward,
    full_floats,
    group_entries,
    kernel,
    sum_finite,
    traversal,
    upward_rank,
    zero_flags,
    zero_floats,
)
from gnnplace.placers import SearchSpace
from gnnplace.problem import FORWARD, Problem
from gnnplace.simulation import (
    DELAY,
    PACE,
    Links,
    mean_times,
    mean_transfer_times,
    reverse_links,
    without_gaps,
)

NEAR_PEAK = 0.9  # Relative to the most bytes that are alive


class Walk(NamedTuple):
    """Arrays of one problem in one direction; m visited ops, U units, D devices, T tensors.

    Attributes:
        unit: placement unit of each visited op. [m]
        time: seconds on each device, inf where it cannot run. [m, D]
        before_offset: Index where each op's inputs (in walking direction) start. [m + 1]
        before_op: the visited op that makes each input.
        before_tensor: tensor of each input, 0..T-1.
        before_size: bytes of each input.
        num_tensors: the number of tensors, T.
        tail_seconds: longest path after each op in walking direction. [m]
        unit_time: seconds of all ops of a unit on each device, inf where not allowed. [U, D]
        unit_work: seconds of all ops of a unit, mean over its devices. [U]
        unit_state: bytes that stay. [U]
        unit_bytes: bytes of all tensors that the unit's ops make. [U]
        unit_peak: bytes of those that are alive when most are: see ``unit_peak``. [U]
        flow_offset: Index where each unit's neighbours start. [U + 1]
        flow_unit: units that exchange tensors with a unit, by ``flow_offset``.
        flow_in: bytes from the neighbour, -1 without any tensor.
        flow_out: bytes to the neighbour, -1 without any tensor.
        device_time: seconds of all units on each device, for those it can run. [D]
        memory: bytes, at least 1. [D]
        links: what messages cost; no delay where there is no link.
        far: mean seconds of a mean tensor from each device to the others. [D]
        scale: mean seconds of a visited op.
        work: seconds of all units.
        bound: longest path or work on all devices, whichever is more, in seconds.
        mean_bytes: mean bytes of a tensor.
    """

    unit: IntArray
    time: FloatArray
    before_offset: IntArray
    before_op: IntArray
    before_tensor: IntArray
    before_size: FloatArray
    num_tensors: int
    tail_seconds: FloatArray
    unit_time: FloatArray
    unit_work: FloatArray
    unit_state: FloatArray
    unit_bytes: FloatArray
    unit_peak: FloatArray
    flow_offset: IntArray
    flow_unit: IntArray
    flow_in: FloatArray
    flow_out: FloatArray
    device_time: FloatArray
    memory: FloatArray
    links: Links
    far: FloatArray
    scale: float
    work: float
    bound: float
    mean_bytes: float


@dataclass(frozen=True, eq=False)
class WalkGraph:
    """The visited part of a problem and what both directions share. m visited ops."""

    space: SearchSpace

    @property
    def problem(self) -> Problem:
        """Return the whole problem."""
        return self.space.problem

    @cached_property
    def ops(self) -> IntArray:
        """Return the visited ops, as indices of the problem. [m]"""
        problem = self.problem
        first = problem.microbatch == 0
        covered = np.zeros(problem.num_units, dtype=bool)
        covered[problem.unit_of[first]] = True
        return np.flatnonzero(first | ~covered[problem.unit_of]).astype(np.int32)

    @cached_property
    def graph(self) -> ComputationGraph:
        """Return the graph of visited ops, with the tensors between them."""
        full_graph = self.problem.graph
        if len(self.ops) == full_graph.num_ops:
            return full_graph
        local = np.full(full_graph.num_ops, -1, dtype=np.int32)
        local[self.ops] = np.arange(len(self.ops), dtype=np.int32)
        tensors = np.flatnonzero(local[full_graph.producer] >= 0)
        tensor = full_graph.consumption_tensor
        consumer = local[full_graph.consumer]
        inside = (consumer >= 0) & (local[full_graph.producer][tensor] >= 0)
        counts = np.bincount(tensor[inside], minlength=full_graph.num_tensors)[tensors]
        return ComputationGraph(
            names=tuple(full_graph.names[i] for i in self.ops),
            producer=local[full_graph.producer[tensors]],
            size=full_graph.size[tensors],
            consumer_offset=np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
            consumer=consumer[inside].astype(np.int32),
        )

    @cached_property
    def unit(self) -> IntArray:
        """Return the placement unit of each visited op. [m]"""
        return self.problem.unit_of[self.ops]

    @cached_property
    def cost(self) -> FloatArray:
        """Mean seconds of each visited op over the devices that can run it. [m]"""
        return mean_times(self.problem)[self.ops]

    @cached_property
    def edge_cost(self) -> FloatArray:
        """Mean seconds of each edge's transfer over the cluster. [edges]"""
        return mean_transfer_times(self.problem, self.graph.edges[2])

    @cached_property
    def up(self) -> FloatArray:
        """Return the upward rank in seconds. [m]"""
        return upward_rank(self.graph, self.cost, self.edge_cost)

    @cached_property
    def down(self) -> FloatArray:
        """Return the downward rank in seconds. [m]"""
        return downward_rank(self.graph, self.cost, self.edge_cost)

    @cached_property
    def forward(self) -> Walk:
        """Return the walk from producers to consumers."""
        return _build(self)

    @cached_property
    def backward(self) -> Walk:
        """Return the walk from consumers to producers."""
        walk = self.forward
        return walk._replace(
            **_inputs(self.graph, backwards=True),
            tail_seconds=self.down,
            flow_in=walk.flow_out,
            flow_out=walk.flow_in,
            links=reverse_links(walk.links),
        )

    def walk(self, order: str) -> Walk:
        """Return the walk in the direction of the traversal order of that name."""
        backwards = self.direction(order) == Direction.CONSUMERS
        if backwards:
            return self.backward
        return self.forward

    @cached_property
    def own_orders(self) -> dict[str, IntArray]:
        """Return the user-defined orders that were asked for, each computed once. [m]"""
        return {}

    def direction(self, order: str) -> Direction:
        """Return which ends of tensors the traversal order of that name lists first."""
        if order in ORDERS:
            return ORDERS[order].direction
        return direction(self.graph, self.order(order))

    @cached_property
    def unit_coordinate(self) -> FloatArray:
        """Return each unit's position in the graph: the mean coordinate of its forward ops. [U]

        A forward op's coordinate is its latest start in the forward pass, so that what has no
        inputs (a weight turned round, a mask) is where it is used; an op that leads to no late end
        of the forward pass, or is not of it, has the largest of its forward inputs', or the
        smallest of its other inputs'. ``SearchSpace`` has positions instead, which change with the
        listing.
        """
        g = self.graph
        forward = self.problem.phase[self.ops] == FORWARD
        arrays = (g.topological_order, g.successor_offset, g.successor)
        latest = latest_starts(*arrays, forward, self.cost)
        main = latest >= 0.0
        latest[~main] = latest.max()  # where it stays for what has no inputs
        inputs = (g.predecessor_offset, g.predecessor)
        coordinate = follow_forward(g.topological_order, *inputs, main, latest)
        weight = np.where(main, 1.0, np.where(forward, 1e-6, 1e-12))
        count = self.problem.num_units
        total = np.bincount(self.unit, weight * coordinate, count)
        mean = np.asarray(total / np.bincount(self.unit, weight, count))  # [U]
        # Rounded, so that equal coordinates are true ties.
        depth = float(latest.max()) or 1.0
        return np.asarray(np.round(mean / depth, 9))

    @cached_property
    def unit_order(self) -> IntArray:
        """Return the units by coordinate, then by their first op in ``depth-first-rank``. [U]"""
        order = self.order("depth-first-rank")
        first = np.full(self.problem.num_units, len(order))
        position = np.arange(len(order))
        np.minimum.at(first, self.unit[order], position)
        return np.lexsort((first, self.unit_coordinate)).astype(np.int32)

    @cached_property
    def place(self) -> FloatArray:
        """Share of the work in units of lesser coordinate than each unit, half its own too. [U]"""
        work = self.forward.unit_work
        place = np.empty(len(work))
        sorted_work = work[self.unit_order]
        place[self.unit_order] = np.cumsum(sorted_work) - sorted_work / 2
        return np.asarray(place / max(float(work.sum()), 1e-300))

    def order(self, name: str) -> IntArray:
        """Return the visited ops in a traversal order; ``coordinate`` visits a layer's ops
        together. [m]

        Raises:
            InputError: there is no such order.
        """
        if name == COORDINATE:
            rank = np.empty(self.problem.num_units, dtype=np.int64)
            rank[self.unit_order] = np.arange(len(rank))
            order = np.lexsort((self.graph.position, rank[self.unit]))
            return order.astype(np.int32)
        if name in ORDERS:
            return traversal(name, self.graph, self.cost, self.edge_cost, 0)
        if name not in self.own_orders:
            self.own_orders[name] = traversal(
                name, self.graph, self.cost, self.edge_cost, 0
            )
        return self.own_orders[name]


@kernel
def latest_starts(
    order: IntArray,
    offset: IntArray,
    successor: IntArray,
    forward: BoolArray,
    cost: FloatArray,
) -> FloatArray:
    """Return the latest start of each forward op in seconds; -1 if it leads to no late end, or is
    not one. [m]

    An end is a forward op without forward successors; it is late in the second half of the longest
    path. ``order`` is topological.
    """
    m = len(order)
    earliest = zero_floats(m)
    remaining = full_floats(m, -1.0)
    leads = zero_flags(m)
    longest = 0.0
    for op in order:
        if not forward[op]:
            continue
        finish = earliest[op] + cost[op]
        longest = max(longest, finish)
        for k in range(offset[op], offset[op + 1]):
            if forward[successor[k]]:
                leads[op] = True
                earliest[successor[k]] = max(earliest[successor[k]], finish)
    for i in range(m - 1, -1, -1):
        op = order[i]
        if not forward[op]:
            continue
        if not leads[op] and earliest[op] + cost[op] >= longest / 2:
            remaining[op] = 0.0
        for k in range(offset[op], offset[op + 1]):
            consumer = successor[k]
            if forward[consumer] and remaining[consumer] >= 0.0:
                remaining[op] = max(remaining[op], remaining[consumer] + cost[consumer])
    for i in range(m):
        remaining[i] = (
            max(longest - remaining[i] - cost[i], -1.0) if remaining[i] >= 0.0 else -1.0
        )
    return remaining


def _build(graph: WalkGraph) -> Walk:
    problem = graph.problem
    space = graph.space
    cluster = graph.problem.cluster
    work = max(float(space.mean_work.sum()), 1e-300)
    every = len(graph.ops) == problem.num_ops
    flow = space.unit_flows
    links = without_gaps(space.compiled.links)
    units = problem.unit_of[problem.graph.producer]
    mean_bytes = float(graph.graph.size.mean()) if graph.graph.num_tensors else 0.0
    return Walk(
        unit=graph.unit,
        time=problem.times if every else problem.times[graph.ops],
        **_inputs(graph.graph, backwards=False),
        tail_seconds=graph.up - graph.cost,
        unit_time=space.work,
        unit_work=space.mean_work,
        unit_state=problem.unit_state,
        unit_bytes=np.bincount(units, problem.graph.size, problem.num_units).astype(
            np.float64
        ),
        unit_peak=unit_peak(graph),
        flow_offset=flow[0],
        flow_unit=flow[1],
        flow_in=flow[2],
        flow_out=flow[3],
        device_time=sum_finite(space.work),
        memory=np.maximum(cluster.memory, 1.0),
        links=links,
        far=np.round(
            (links.each(DELAY) + mean_bytes * links.each(PACE)).mean(axis=1), 12
        ),
        scale=float(graph.cost.mean()) or 1.0,
        work=work,
        bound=max(
            float((graph.up + graph.down).max()), work / problem.num_devices, 1e-300
        ),
        mean_bytes=mean_bytes,
    )


def _inputs(graph: ComputationGraph, *, backwards: bool) -> dict[str, Any]:
    tensor = graph.consumption_tensor
    ends = (graph.producer[tensor], graph.consumer.copy())
    source, reader = ends[::-1] if backwards else ends
    offset, by_op = group_entries(reader, graph.num_ops)
    return {
        "before_offset": offset,
        "before_op": source[by_op],
        "before_tensor": tensor[by_op],
        "before_size": graph.size[tensor[by_op]],
        "num_tensors": graph.num_tensors,
    }


def unit_peak(graph: WalkGraph) -> FloatArray:
    """Return the bytes of each unit's tensors that are alive when most are, were there one device.
    [U]

    One device takes ops by phase, and in a phase by upward rank. A tensor of an earlier phase than
    its last consumer's is there once for each micro-batch, since they are all in flight. Bytes are
    means over the time at which at least ``NEAR_PEAK`` of the most is alive. Zeros where memory
    does not matter.
    """
    problem = graph.problem
    g = graph.graph
    if not graph.space.memory_matters or g.num_tensors == 0:
        return np.zeros(problem.num_units)
    phase = problem.phase[graph.ops]
    at = np.empty(g.num_ops, np.int64)
    by_phase = np.lexsort((-graph.up, phase))
    at[by_phase] = np.arange(g.num_ops)
    first = at[g.producer]
    last = at[g.producer]
    last_phase = phase[g.producer].copy()
    np.maximum.at(last, g.consumption_tensor, at[g.consumer])
    np.maximum.at(last_phase, g.consumption_tensor, phase[g.consumer])
    alive_bytes = (
        np.where(last_phase > phase[g.producer], problem.microbatches, 1) * g.size
    )
    changes = np.bincount(first, alive_bytes, g.num_ops + 1) - np.bincount(
        last + 1, alive_bytes, g.num_ops + 1
    )
    alive = np.cumsum(changes)[:-1]
    is_near_peak = alive >= NEAR_PEAK * alive.max()
    near = np.concatenate(([0], np.cumsum(is_near_peak)))
    share = (near[last + 1] - near[first]) / near[-1]
    return np.asarray(
        np.bincount(graph.unit[g.producer], alive_bytes * share, problem.num_units)
    )
