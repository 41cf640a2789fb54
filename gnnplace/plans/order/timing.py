"""The step time of a plan: its actions as a problem that the simulator runs.

Each device of this problem is a pipeline rank (all devices of its mesh do the same at the same
time). Its ops are passes of micro-batches through chunks and, at the end, the rank's exchange of
gradients and its update. Each pair of ranks has a link in each direction, which sends one message
after the other. If transfers block, as Megatron-LM's and DeepSpeed's do, the sender is busy during
the transfer, and so is the receiver before the pass that reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gnnplace.graph import ComputationGraph
from gnnplace.plans.order.orders import FORWARD, FULL, INPUT, WEIGHT, Action, Pipeline
from gnnplace.problem import Cluster, Device, Link, Placement, Problem, build_problem
from gnnplace.simulation import Simulation, simulate

KIND = "rank"
Orders = Sequence[Sequence[Action]]


@dataclass(frozen=True, eq=False)
class Timing:
    """A simulated step.

    Attributes:
        line: The pipeline that was run.
        orders: The actions of every rank, in their order.
        problem: The actions as ops, and the ranks as devices, of the simulator.
        simulation: When each action began and ended, in seconds.
    """

    line: Pipeline
    orders: Orders
    problem: Problem
    simulation: Simulation

    @property
    def step_time(self) -> float:
        """Return the seconds of the step."""
        return float(self.simulation.step_time)

    @cached_property
    def spans(self) -> list[tuple[str, int, float, float]]:
        """Return the name, the rank, and the start and end in seconds, of every op."""
        simulation = self.simulation
        rank = {}
        for p, names in enumerate(_names(self.orders)):
            for n in names:
                rank[n] = p
        return [
            (name, rank[name], float(simulation.start[i]), float(simulation.finish[i]))
            for i, name in enumerate(self.problem.graph.names)
        ]


def time_pipeline(
    line: Pipeline, orders: Orders, ends: Sequence[float], *, blocking: bool = False
) -> Timing:
    """Simulate one step of a pipeline.

    Args:
        line: The pipeline: ranks, and seconds of passes and messages.
        orders: The actions of every rank, in their order.
        ends: Seconds of each rank after its last pass. [P]
        blocking: Whether a transfer keeps both of its ends busy.
    """
    problem = _problem(line, orders, ends, blocking)
    index = {name: i for i, name in enumerate(problem.graph.names)}
    sequence = tuple(
        np.array([index[name] for name in names], dtype=np.int32)
        for names in _names(orders)
    )
    device = np.zeros(problem.num_ops, dtype=np.int32)
    for rank, ops in enumerate(sequence):
        device[ops] = rank
    return Timing(line, orders, problem, simulate(problem, Placement(device, sequence)))


def _names(orders: Orders) -> list[list[str]]:
    """Return the names of ops in every rank's order; the last is the rank's end of the step."""
    return [[*map(str, actions), f"end {rank}"] for rank, actions in enumerate(orders)]


def _problem(
    line: Pipeline, orders: Orders, ends: Sequence[float], blocking: bool
) -> Problem:
    names = [name for row in _names(orders) for name in row]
    index = {name: i for i, name in enumerate(names)}
    seconds = [0.0] * len(names)
    tensors: list[tuple[int, float, list[int]]] = []
    for rank, actions in enumerate(orders):
        seconds[index[f"end {rank}"]] = ends[rank]
        for action in actions:
            op = index[str(action)]
            seconds[op] = _sum_taken(line, action)
            for reader, size in _readers(line, action, rank):
                tensors.append((op, size, [index[reader]]))
    graph = ComputationGraph.from_tensors(names, tensors)
    return build_problem("pipeline", graph, _cluster(line, blocking), {KIND: seconds})


def _sum_taken(line: Pipeline, action: Action) -> float:
    forward, inputs, weights = line.seconds[action.chunk]
    kinds = {FORWARD: forward, INPUT: inputs, WEIGHT: weights, FULL: inputs + weights}
    return kinds[action.kind]


def _readers(line: Pipeline, action: Action, rank: int) -> list[tuple[str, float]]:
    """Return the ops that read what an action makes, and the seconds of each message."""
    chunk, kind, m = action
    back = INPUT if line.apart else FULL
    last = chunk + 1 == len(line.rank)
    if kind == FORWARD:
        # What it saved is read by its own backward pass, and its result by the next chunk.
        gradient = (str(Action(chunk, back, m)), 0.0)
        if last:
            return [gradient]
        return [gradient, (str(Action(chunk + 1, FORWARD, m)), line.between(chunk))]
    if kind != INPUT:
        readers = [(f"end {rank}", 0.0)]
    else:
        readers = [(str(Action(chunk, WEIGHT, m)), 0.0)]
    if kind != WEIGHT and chunk > 0:
        readers.append((str(Action(chunk - 1, back, m)), line.between(chunk - 1)))
    return readers


def _cluster(line: Pipeline, blocking: bool) -> Cluster:
    """Return the ranks as devices, linked where chunks follow each other; a byte takes a second."""
    pairs = {
        pair
        for a, b in zip(line.rank, line.rank[1:], strict=False)
        for pair in ((a, b), (b, a))
        if a != b
    }
    # Where transfers block, a receiver waits for the longest message of the link.
    wait = {pair: 0.0 for pair in pairs}
    for chunk, seconds in enumerate(line.sent):
        for pair in ((line.rank[chunk], line.rank[chunk + 1]),):
            for ends in (pair, pair[::-1]):
                if ends in wait:
                    wait[ends] = max(wait[ends], seconds)
    links = tuple(
        Link(
            source=f"rank {a}",
            target=f"rank {b}",
            latency=0.0,
            bandwidth=1.0,
            sender_busy=blocking,
            receive_overhead=wait[a, b] if blocking else 0.0,
        )
        for a, b in sorted(pairs)
    )
    count = line.ranks
    devices = tuple(
        Device(name=f"rank {p}", kind=KIND, memory=1e30) for p in range(count)
    )
    return Cluster(devices, links, "pipeline")
