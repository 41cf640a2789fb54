"""When a placed step has its gradients, and what an all-reduce of them adds to it.

A gradient is a tensor that an update op reads from another phase; of micro-batches, all copies
of it are one gradient, there when the last of them is. Device ``d`` of each data-parallel group
reduces its gradients with the others (``fabric``) in buckets, in the order they are there, as
PyTorch DDP does (Li et al., VLDB 2020; 25 MiB is its default)::

    begin[i] = max(ready of the bucket's last gradient, end[i - 1])
    end[i]   = begin[i] + all-reduce of bytes[i]
    finish[d] = backward end on d + exposed[d] + time of d's update ops
    step     = max(placed step, the largest finish[d])

What is reduced until the backward end is hidden, the rest is not; `compute_exposed_seconds` says
what both add to the step, as it does for plans.

Updates wait for the all-reduce, so those that the placed step runs before it are taken out: ready
times and backward ends are earlier by the updates that ran on ``d`` until then. Where nothing
overlaps buckets begin at the end of its backward ops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.costs import BUCKET, compute_exposed_seconds, get_hidden_replica_share
from gnnplace.placers import Result
from gnnplace.problem import UPDATE, Problem
from gnnplace.simulation import Simulation


@dataclass(frozen=True, eq=False)
class ReplicaStep:
    """A model-parallel step of D devices, as data parallelism sees it.

    Attributes:
        step_time: Predicted seconds of the step without data parallelism.
        gradients: Seconds at which each gradient of a device is ready and its bytes, by time. D
            arrays [g, 2].
        backward_end: Seconds at which each device would have done all but its updates. [D].
        updates: Seconds of each device's update ops. [D].
        microbatches: M, the number of micro-batches that a group's batch is cut into.
    """

    step_time: float
    gradients: tuple[FloatArray, ...]
    backward_end: FloatArray
    updates: FloatArray
    microbatches: int


@dataclass(frozen=True)
class StepParts:
    """The seconds of a data-parallel step, by what they are spent on.

    Attributes:
        alone: Seconds of the model-parallel step of one group.
        all_reduce: The seconds of the busiest device's all-reduce.
        exposed: Seconds that the all-reduce adds to the step.
    """

    alone: float
    all_reduce: float
    exposed: float

    @property
    def total(self) -> float:
        """Return the seconds of the whole step."""
        return self.alone + self.exposed


def price_placed_step(
    problem: Problem, result: Result, *, scale: float = 1.0
) -> ReplicaStep:
    """Return what data parallelism needs to know of the step of a placed problem.

    Args:
        problem: The problem, cut into its micro-batches.
        result: The placer's result for the problem.
        scale: Bytes of a gradient over those of its tensor: M where the problem was cut without
            being profiled, which divides the bytes of gradients too, though they do not shrink.
    """
    simulation = result.simulation
    devices = problem.num_devices
    finish = without_updates(problem, simulation)
    update = problem.phase == UPDATE
    end = np.zeros(devices)
    np.maximum.at(end, simulation.device, np.where(update, 0.0, finish))
    spent = np.where(update, simulation.finish - simulation.start, 0.0)
    return ReplicaStep(
        step_time=result.step_time,
        gradients=_gradients(problem, simulation.device, finish, scale),
        backward_end=end,
        updates=np.bincount(simulation.device, spent, devices).astype(np.float64),
        microbatches=problem.microbatches,
    )


def without_updates(problem: Problem, simulation: Simulation) -> FloatArray:
    """Return when each op would end if updates took no time. [n]

    Every op ends earlier by the seconds of the updates that ended on its device until then.
    """
    update = problem.phase == UPDATE
    finish = simulation.finish.copy()
    for d in range(problem.num_devices):
        updates = np.flatnonzero(update & (simulation.device == d))
        updates = updates[np.argsort(simulation.finish[updates], kind="stable")]
        spent = np.cumsum(simulation.finish[updates] - simulation.start[updates])
        device_ops = np.flatnonzero(simulation.device == d)
        num_before = np.searchsorted(
            simulation.finish[updates], simulation.finish[device_ops], side="right"
        )
        finish[device_ops] -= np.concatenate(([0.0], spent))[num_before]
    return finish


def _gradients(
    problem: Problem, device: IntArray, finish: FloatArray, scale: float
) -> tuple[FloatArray, ...]:
    """Return when each device's gradients are ready and their bytes, by that time. D arrays [g, 2].

    A parameter's gradient counts once, when its last micro-batch is ready.

    Args:
        problem: The problem, cut into its micro-batches.
        device: The device of each op. [n].
        finish: Seconds at which each op ends, updates left out. [n].
        scale: Bytes of a gradient over those of its tensor.
    """
    graph = problem.graph
    of_buckets: dict[tuple[int, str, int], tuple[float, float]] = {}
    ordinal: dict[tuple[str, int], int] = {}
    for k, producer in enumerate(graph.producer.tolist()):
        readers = graph.consumers(k)
        updates = readers[problem.phase[readers] == UPDATE]
        if not len(updates) or problem.phase[producer] == UPDATE:
            continue
        name = graph.names[producer]
        copy = int(problem.microbatch[producer])
        if problem.microbatches > 1:
            name = name.removesuffix(f"#{copy}")
        number = ordinal[name, copy] = ordinal.get((name, copy), -1) + 1
        update_device = int(device[updates[0]])
        ready, size = of_buckets.get((update_device, name, number), (0.0, 0.0))
        latest = max(ready, float(finish[producer]))
        of_buckets[update_device, name, number] = (
            latest,
            max(size, scale * float(graph.size[k])),
        )
    rows: list[list[tuple[float, float]]] = [[] for _ in range(problem.num_devices)]
    for (update_device, _, _), row in of_buckets.items():
        rows[update_device].append(row)
    columns = []
    for device_rows in rows:
        ordered = np.array(sorted(device_rows), dtype=np.float64)
        columns.append(ordered.reshape(-1, 2))
    return tuple(columns)


def with_all_reduce(
    step: ReplicaStep, seconds: Callable[[int, float], float], *, overlap: bool = True
) -> StepParts:
    """Return the times of a step whose gradients are all-reduced over the groups.

    Args:
        step: The step of one group.
        seconds: Returns the seconds of an all-reduce of so many bytes over one device, given by its
            index.
        overlap: Whether reducing may begin before the backward pass has ended.
    """
    end = step.step_time
    reducing = 0.0
    for d, rows in enumerate(step.gradients):
        backward = float(step.backward_end[d])
        last_end, spent = time_gradient_reduction(
            rows, partial(seconds, d), 0.0 if overlap else backward
        )
        reducing = max(reducing, spent)
        # All gradients are there at the backward end: from then on one bucket follows the other.
        hidden = spent - max(last_end - backward, 0.0)
        exposed = compute_exposed_seconds(spent, hidden, get_hidden_replica_share())
        end = max(end, backward + exposed + float(step.updates[d]))
    return StepParts(step.step_time, reducing, end - step.step_time)


def time_gradient_reduction(
    gradients: FloatArray, seconds: Callable[[float], float], floor: float = 0.0
) -> tuple[float, float]:
    """Return when the last bucket of gradients is reduced, and the seconds of all all-reduces.

    Gradients are collected into buckets of `BUCKET` bytes in the order in which they are ready.

    Args:
        gradients: Seconds at which each is ready, and its bytes, in that order. [g, 2].
        seconds: Returns the seconds of an all-reduce of so many bytes.
        floor: Seconds before which no all-reduce may begin.
    """
    end = 0.0
    spent = 0.0
    size = 0.0
    for k, (ready, elements) in enumerate(gradients.tolist()):
        size += elements
        if size >= BUCKET or k == len(gradients) - 1:
            took = seconds(size)
            size = 0.0
            end = max(ready, floor, end) + took
            spent = spent + took
    return end, spent
