"""The line of segments of a large graph as a network sees it.

Narrow groups (``search.narrow_problem``) are a line of segments, each with a forward pass, with
gradients of activations and of weights, and with updates, in M copies. Seconds are shares of the
even load (all work over all devices), bytes are the seconds of a mean link over the same. So the
features do not change with units, with the size of the model, or with the names of devices.
Complexity: linear in the coarse graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnplace.problem import BACKWARD, FORWARD, UPDATE, Problem
from gnnplace.search.narrow_problem import NarrowProblem
from gnnplace.search.space import SearchSpace

SingleArray = NDArray[np.float32]
FloatArray = NDArray[np.float64]
LongArray = NDArray[np.int64]
FORWARD_PASS, ACTIVATIONS, WEIGHTS, UPDATES = range(4)  # kinds of work of a segment
SEGMENT_FEATURES, WHOLE_FEATURES = 13, 9


@dataclass(frozen=True, eq=False)
class Line:
    """S segments in a line on D devices; E pairs of segments that exchange tensors.

    Attributes:
        segments: what is known of each segment. [S, SEGMENT_FEATURES]
        whole: what is known of the whole problem. [WHOLE_FEATURES]
        pairs: source and target of each pair. [2, E]
        traffic: logarithm of what each pair exchanges. [E, 1]
        work: share of the even load that each segment is on each device, inf where it may not be.
            [S, D]
        crossing: bytes of all copies over the border before each segment and after the last, over
            the seconds of the even load. [S + 1]
        pace: seconds a byte from each device to each other. [D, D]
        speed: of each device over that of the fastest. [D]
        share: of all work that each segment is. [S]
    """

    segments: SingleArray
    whole: SingleArray
    pairs: LongArray
    traffic: SingleArray
    work: SingleArray
    crossing: SingleArray
    pace: FloatArray
    speed: SingleArray
    share: SingleArray


def line_of(space: SearchSpace, narrow: NarrowProblem) -> Line:
    """The line of a coarse problem.

    Args:
        space: of ``narrow.problem``.
        narrow: the coarse problem.
    """
    problem, line = space.problem, narrow.line
    even = space.mean_work.sum() / problem.num_devices
    copies = problem.microbatches / even  # of one copy's bytes or seconds to the measure of all
    place = np.full(problem.num_units, -1)
    place[line] = np.arange(len(line))
    place = place[problem.unit_of]
    work = _work_by_kind(problem, place, len(line)) / even
    pace, latency = _links(problem)
    mean_pace, mean_latency = _mean_apart(pace), _mean_apart(latency)
    source, target, size = _exchanges(problem, place, len(line))
    crossing = _crossing(source, target, size, len(line)) * copies
    total = work.sum(axis=1)
    share = total / max(total.sum(), 1e-12)
    middle = np.cumsum(share) - share / 2
    border = np.log1p(10 * crossing * mean_pace)
    first = np.arange(len(line)) == 0
    segments = {
        "work by kind": np.log1p(50 * work),
        "share of the mean segment": share * len(line),
        "work before": middle,
        "work behind": 1 - middle,
        "traffic with those before": border[:-1],
        "traffic with those behind": border[1:],
        "weight gradients of its work": work[:, WEIGHTS] / np.maximum(total, 1e-12),
        "forward pass of its work": work[:, FORWARD_PASS] / np.maximum(total, 1e-12),
        "first": first,
        "last": first[::-1],
    }
    between = crossing[1:-1] if len(line) > 2 else np.zeros(1)
    alone = space.mean_work.sum() - space.mean_work[line].sum()
    whole = {
        "log devices": np.log(problem.num_devices),
        "log micro-batches": np.log(problem.microbatches),
        "log segments": np.log(len(line)),
        "traffic of a usual border": np.log1p(10 * float(np.median(between)) * mean_pace),
        "latency": np.log1p(100 * mean_latency * copies),
        "work that stands alone": alone / even,
        "updates": work[:, UPDATES].sum() / total.sum(),
        "weight gradients": work[:, WEIGHTS].sum() / total.sum(),
        "slower devices": space.speed.min() < 0.99 * space.speed.max(),
    }
    return Line(
        segments=np.column_stack(list(segments.values())).astype(np.float32),
        whole=np.array(list(whole.values()), dtype=np.float32),
        pairs=np.stack([source, target]),
        traffic=np.log1p(10 * size * mean_pace * copies).astype(np.float32)[:, None],
        work=(space.work[line] / even).astype(np.float32),
        crossing=crossing.astype(np.float32),
        pace=pace,
        speed=(space.speed / space.speed.max()).astype(np.float32),
        share=share.astype(np.float32),
    )


def _work_by_kind(problem: Problem, place: LongArray, count: int) -> FloatArray:
    """Mean seconds of each segment's four kinds of work. [S, 4]"""
    source, target, _ = problem.graph.edges
    backward = (problem.phase[source] == BACKWARD) & (problem.phase[target] == BACKWARD)
    leaves = backward & (problem.unit_of[source] != problem.unit_of[target])
    waited = np.zeros(problem.num_ops, dtype=bool)
    waited[source[leaves]] = True
    kind = np.where(waited, ACTIVATIONS, WEIGHTS)
    kind[problem.phase == FORWARD] = FORWARD_PASS
    kind[problem.phase == UPDATE] = UPDATES
    able = np.isfinite(problem.kind_times)
    seconds = np.where(able, problem.kind_times, 0.0).sum(axis=1) / np.maximum(able.sum(axis=1), 1)
    work, on_line = np.zeros((count, 4)), place >= 0
    np.add.at(work, (place[on_line], kind[on_line]), seconds[on_line])
    return work


def _exchanges(
    problem: Problem, place: LongArray, count: int
) -> tuple[LongArray, LongArray, FloatArray]:
    """Pairs of segments and the bytes that one micro-batch sends from one to the other. [E]"""
    source, target, size = problem.graph.edges
    first = problem.microbatch == 0
    told = (place[source] >= 0) & (place[target] >= 0) & (place[source] != place[target])
    told &= first[source] & first[target]
    key = place[source[told]] * count + place[target[told]]
    pair, inverse = np.unique(key, return_inverse=True)
    total = np.bincount(inverse, size[told], len(pair))
    return pair // count, pair % count, total.astype(np.float64)


def _crossing(source: LongArray, target: LongArray, size: FloatArray, count: int) -> FloatArray:
    """Bytes over the border before each segment, and after the last. [S + 1]"""
    change = np.zeros(count + 2)
    np.add.at(change, np.minimum(source, target) + 1, size)
    np.subtract.at(change, np.maximum(source, target) + 1, size)
    return np.maximum(np.cumsum(change)[: count + 1], 0.0)


def _links(problem: Problem) -> tuple[FloatArray, FloatArray]:
    """Seconds a byte and latency between devices; slow beyond use where there is no link. [D, D]"""
    cluster, index = problem.cluster, problem.cluster.device_index
    pace = np.zeros((cluster.num_devices,) * 2)
    latency = np.zeros_like(pace)
    for link in cluster.links:
        ends = index[link.source], index[link.target]
        pace[ends], latency[ends] = 1.0 / link.bandwidth, link.latency
    missing = (pace == 0) & ~np.eye(len(pace), dtype=bool)
    pace[missing] = 10 * pace.max(initial=0.0)
    return pace, latency


def _mean_apart(values: FloatArray) -> float:
    """Mean over pairs of different devices."""
    count = len(values)
    return float(values.sum() / max(count * (count - 1), 1))
