"""A pipelined training step of stages, as a problem that the simulator runs.

1F1B (Narayanan et al., 2019, PipeDream; 2021, arXiv 2104.04473, section 2.2.1): stage s of S runs
S - s - 1 forward passes, then a forward and a backward pass in turns, then the backward passes that
are left. A device here is what runs a stage; gradients are reduced and parameters updated after its
last backward pass.

Transfers block, as in Megatron-LM and DeepSpeed: the sending stage makes its copy before it goes
on (``sender_busy``), and the receiving one waits for as long before the pass that reads it
(``receive_overhead``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gnnplace.cluster import Cluster, Device, Link
from gnnplace.graph import ComputationGraph
from gnnplace.placement import Placement
from gnnplace.problem import Problem, build_problem
from gnnplace.simulation import simulate

KIND = "stage"


@dataclass(frozen=True)
class Stage:
    """What one stage takes, in seconds.

    Attributes:
        forward: of a micro-batch.
        backward: of a micro-batch.
        end: of reducing gradients and updating parameters, once.
    """

    forward: float
    backward: float
    end: float = 0.0


def step_seconds(stages: Sequence[Stage], microbatches: int, transfer: float) -> float:
    """Seconds of a step under 1F1B.

    Args:
        stages: in order.
        microbatches: M.
        transfer: seconds of sending a micro-batch's values, or their gradients, to a neighbour.
    """
    problem = _problem(stages, microbatches, transfer)
    count = len(stages)
    index = {name: i for i, name in enumerate(problem.graph.names)}
    sequence = tuple(
        np.array([index[name] for name in _order(s, count, microbatches)], dtype=np.int32)
        for s in range(count)
    )
    device = np.zeros(problem.num_ops, dtype=np.int32)
    for s, ops in enumerate(sequence):
        device[ops] = s
    return simulate(problem, Placement(device, sequence)).step_time


def _order(stage: int, stages: int, microbatches: int) -> list[str]:
    """Names of a stage's ops as it runs them."""
    ahead = min(stages - stage - 1, microbatches)
    forward = [f"F{stage}.{m}" for m in range(microbatches)]
    backward = [f"B{stage}.{m}" for m in range(microbatches)]
    names = forward[:ahead]
    for m in range(microbatches):
        names += [*forward[ahead + m : ahead + m + 1], backward[m]]
    return [*names, f"U{stage}"]


def _problem(stages: Sequence[Stage], microbatches: int, transfer: float) -> Problem:
    """Ops F (forward), B (backward) and U (update); messages of one byte, all alike."""
    last, shares = len(stages) - 1, range(microbatches)
    names, seconds, edges = [], [], []
    for s, stage in enumerate(stages):
        names += [*(f"F{s}.{m}" for m in shares), *(f"B{s}.{m}" for m in shares), f"U{s}"]
        seconds += [stage.forward] * microbatches + [stage.backward] * microbatches + [stage.end]
        for m in shares:
            edges.append((f"F{s}.{m}", [f"B{s}.{m}"]))
            edges.append((f"B{s}.{m}", [f"U{s}"]))
            edges += [(f"F{s}.{m}", [f"F{s + 1}.{m}"])] if s < last else []
            edges += [(f"B{s}.{m}", [f"B{s - 1}.{m}"])] if s > 0 else []
    index = {name: i for i, name in enumerate(names)}
    tensors = [(index[a], 1.0, [index[b] for b in readers]) for a, readers in edges]
    graph = ComputationGraph.from_tensors(names, tensors)
    return build_problem("pipeline", graph, _devices(len(stages), transfer), {KIND: seconds})


def _devices(count: int, transfer: float) -> Cluster:
    """Neighbours are linked."""
    names = [f"stage:{s}" for s in range(count)]
    pairs = [*pairwise(names), *((b, a) for a, b in pairwise(names))]
    links = tuple(
        Link(
            source=a,
            target=b,
            latency=0.0,
            bandwidth=1.0 / transfer if transfer else 1e30,
            sender_busy=True,
            receive_overhead=transfer,
        )
        for a, b in pairs
    )
    return Cluster(tuple(Device(name=n, kind=KIND, memory=1e30) for n in names), links)
