"""Random graph families: generated problems, reproducible by seed, for learning and for tests.

A family draws the forward graph: ops, what they take as inputs, which share weights. Costs and
sizes are then drawn for it, it becomes a training step (backward and update ops) or stays forward
only, is cut into micro-batches, and gets a cluster whose links match a drawn ratio of communication
to computation. The shapes follow the networks the families are named after; all distributions are
our own choice, wide enough to cover the published profiles (PipeDream, 2019).

Split: a learner trains on ``TRAIN`` families and ``TRAIN_CLUSTERS``; it is validated on
``VALIDATION`` families and tested on ``TEST`` families, the ``two-tier`` cluster kept for the test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import FloatArray
from gnnplace.errors import InputError
from gnnplace.graph import ComputationGraph
from gnnplace.problem import BACKWARD, FORWARD, UPDATE, Problem, build_problem
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.train.data import random_sketches as sketches
from gnnplace.train.data.random_clusters import CLUSTERS, check_cluster, make_cluster
from gnnplace.train.data.random_clusters import TRAIN_CLUSTERS as TRAIN_CLUSTERS
from gnnplace.train.data.random_sketches import Sketch

Generator = np.random.Generator

TRAIN = ("layered", "erdos-renyi", "inception", "transformer", "chain", "mixture", "grid")
VALIDATION = ("nas", "two-tower")
TEST = ("seq2seq", "series-parallel")
MICROBATCHES = (1, 1, 1, 2, 4, 8)
MOST_OPS = 2_000


FAMILIES: dict[str, Callable[[Generator, int], Sketch]] = {
    "layered": sketches.layered,
    "erdos-renyi": sketches.erdos_renyi,
    "inception": sketches.inception,
    "transformer": sketches.transformer,
    "chain": sketches.chain,
    "mixture": sketches.mixture,
    "grid": sketches.grid,
    "nas": sketches.nas,
    "two-tower": sketches.two_tower,
    "seq2seq": sketches.seq2seq,
    "series-parallel": sketches.series_parallel,
}


def random_problem(
    family: str,
    seed: int,
    *,
    ops: tuple[int, int] = (40, 260),
    devices: tuple[int, int] = (2, 8),
    clusters: tuple[str, ...] = CLUSTERS,
    microbatches: tuple[int, ...] = MICROBATCHES,
    most_ops: int = MOST_OPS,
    ccr: float | None = None,
    heterogeneity: float | None = None,
) -> Problem:
    """A problem of ``family``; the same arguments give the same problem.

    Args:
        family: a key of ``FAMILIES``.
        seed: the seed of everything that is drawn.
        ops: least and most ops before micro-batches; the most is met roughly.
        devices: least and most devices.
        clusters: types of clusters to draw from; of ``CLUSTERS``.
        microbatches: numbers of micro-batches to draw from; forward-only graphs have one.
        most_ops: no number of micro-batches is drawn that makes more ops than this.
        ccr: seconds of all tensors at the drawn bandwidth over all work; None: drawn, 0.02 to 4.
        heterogeneity: how many times slower a cluster's slow devices are, where it has some; None:
            drawn, 1 to 5. What else is drawn depends on neither.

    Raises:
        InputError: there is no such family or cluster; the names are listed.
    """
    if family not in FAMILIES:
        raise InputError(f"family {family!r}: unknown; families: {', '.join(FAMILIES)}")
    rng = np.random.default_rng([seed, list(FAMILIES).index(family)])
    wanted = int(np.exp(rng.uniform(*np.log(ops))))
    training = rng.random() < 0.6
    sketch = FAMILIES[family](rng, max(4, int(wanted / 2.6) if training else wanted))
    draft = _draw_costs(sketch, rng)
    graph = _training_graph(draft) if training else _forward_graph(draft)
    cluster_type = str(rng.choice(clusters))
    check_cluster(cluster_type)
    name = f"{family}-{seed}"
    problem = _on_cluster(graph, name, cluster_type, devices, rng, (ccr, heterogeneity))
    fitting = [m for m in microbatches if training and m * problem.num_ops <= most_ops]
    return with_microbatches(problem, int(rng.choice(fitting or [1])))


@dataclass(frozen=True, eq=False)
class CostedSketch:
    """A sketch with costs: seconds, output bytes and parameter bytes of each forward op."""

    sketch: Sketch
    seconds: FloatArray
    size: FloatArray
    parameters: FloatArray


@dataclass(frozen=True, eq=False)
class GraphParts:
    """A graph with what a problem needs beside its cluster."""

    graph: ComputationGraph
    seconds: FloatArray
    state: FloatArray
    phase: NDArray[np.int8]
    colocate: tuple[str | None, ...]


def _draw_costs(sketch: Sketch, rng: Generator) -> CostedSketch:
    n = len(sketch.inputs)
    spread = rng.uniform(0.2, 1.0)
    seconds = np.array(sketch.heavy) * 1e-4 * rng.lognormal(0.0, spread, n)
    size = (
        1e6 * rng.lognormal(0.0, rng.uniform(0.2, 1.2), n) * np.linspace(1, rng.uniform(0.2, 1), n)
    )
    has = np.array([weight is not None for weight in sketch.weight])
    return CostedSketch(sketch, seconds, size, has * 2e6 * rng.lognormal(0.0, 1.0, n))


def _forward_graph(draft: CostedSketch) -> GraphParts:
    sketch, n = draft.sketch, len(draft.seconds)
    consumers = _consumers(sketch)
    tensors = [(i, draft.size[i], consumers[i]) for i in range(n) if consumers[i]]
    graph = ComputationGraph.from_tensors([f"op{i}" for i in range(n)], tensors)
    state, colocate = _state(draft, 1.0), tuple(sketch.weight)
    return GraphParts(graph, draft.seconds, state, np.zeros(n, np.int8), colocate)


def _state(draft: CostedSketch, times: float) -> FloatArray:
    """Bytes of parameters, on the first op that has them."""
    first = {w: i for i, w in reversed(list(enumerate(draft.sketch.weight))) if w is not None}
    state = np.zeros(len(draft.seconds))
    for i in first.values():
        state[i] = times * draft.parameters[i]
    return state


def _consumers(sketch: Sketch) -> list[list[int]]:
    consumers: list[list[int]] = [[] for _ in sketch.inputs]
    for i, inputs in enumerate(sketch.inputs):
        for other in inputs:
            consumers[other].append(i)
    return consumers


def _training_graph(draft: CostedSketch) -> GraphParts:
    """Forward ops, then their backward ops in reverse, then one update for each weight.

    A backward op costs twice its forward op; it takes the gradients of its op's consumers and the
    activations that its op took (or made, where it took none).
    """
    sketch, n = draft.sketch, len(draft.seconds)
    consumers = _consumers(sketch)
    backward = {i: 2 * n - 1 - i for i in range(n)}
    weights = list(dict.fromkeys(w for w in sketch.weight if w is not None))
    update = {w: 2 * n + k for k, w in enumerate(weights)}
    takers = [consumers[i] + [backward[c] for c in consumers[i]] for i in range(n)]
    for i in range(n):
        if not sketch.inputs[i] or not consumers[i]:
            takers[i].append(backward[i])
    tensors: list[tuple[int, float, list[int]]] = [
        (i, float(draft.size[i]), takers[i]) for i in range(n)
    ]
    for i in range(n):
        tensors += [(backward[i], float(draft.size[j]), [backward[j]]) for j in sketch.inputs[i]]
        weight = sketch.weight[i]
        if weight is not None:
            tensors.append((backward[i], float(draft.parameters[i]), [update[weight]]))
    names = [f"op{i}" for i in range(n)] + [f"grad{i}" for i in reversed(range(n))]
    graph = ComputationGraph.from_tensors([*names, *(f"update {w}" for w in weights)], tensors)
    seconds = np.concatenate([draft.seconds, 2 * draft.seconds[::-1], np.full(len(weights), 1e-5)])
    phase = np.repeat([FORWARD, BACKWARD, UPDATE], [n, n, len(weights)]).astype(np.int8)
    state = np.concatenate([_state(draft, 3.0), np.zeros(n + len(weights))])
    return GraphParts(
        graph, seconds, state, phase, (*sketch.weight, *sketch.weight[::-1], *weights)
    )


def _on_cluster(
    parts: GraphParts,
    name: str,
    cluster_type: str,
    devices: tuple[int, int],
    rng: Generator,
    given: tuple[float | None, float | None],
) -> Problem:
    count = int(rng.integers(devices[0], devices[1] + 1))
    ratio = _unless(given[0], float(np.exp(rng.uniform(np.log(0.02), np.log(4.0)))))
    moved = float(parts.graph.size[parts.graph.consumption_tensor].sum())
    bandwidth = max(moved, 1.0) / (ratio * float(parts.seconds.sum()))
    latency = float(parts.seconds.mean() * np.exp(rng.uniform(np.log(1e-3), np.log(0.3))))
    memory = _memory(parts, count, rng)
    cluster = make_cluster(cluster_type, count, bandwidth, latency, memory, rng)
    slower = _unless(given[1], float(np.exp(rng.uniform(0.0, np.log(5.0)))))
    noise = rng.lognormal(0.0, rng.uniform(0.0, 0.5), len(parts.seconds))
    time = {"fast": parts.seconds, "slow": parts.seconds * slower * noise}
    return build_problem(
        name,
        parts.graph,
        cluster,
        {kind: time[kind] for kind in cluster.kinds},
        state=parts.state,
        phase=parts.phase,
        colocate=parts.colocate,
    )


def _unless(given: float | None, drawn: float) -> float:
    """What is given, else what was drawn: the numbers that follow are the same either way."""
    return drawn if given is None else given


def _memory(parts: GraphParts, count: int, rng: Generator) -> float:
    """Bytes of each device: ample, or one and a half to three fair shares of everything."""
    everything = float(parts.state.sum() + parts.graph.size.sum())
    largest = float(parts.state.max() + 4 * parts.graph.size.max(initial=0.0))
    if rng.random() < 0.7:
        return 4.0 * everything + largest
    return max(3.0 * largest, everything * rng.uniform(1.5, 3.0) / count)
