"""Random graph families: generated problems, reproducible by seed, for learning and for tests.

A family draws the forward graph: ops, what they take as inputs, which share weights. Costs and
sizes are then drawn for it, it becomes a training step (backward and update ops) or stays forward
only, is cut into micro-batches, and gets a cluster whose links match a drawn ratio of communication
to computation. The shapes follow the networks the families are named after; all distributions are
our own choice, wide enough to cover the published profiles (PipeDream, 2019).

Split: a learner trains on ``TRAIN`` families and ``TRAIN_CLUSTERS``; it is validated on
``VALIDATION`` families and tested on ``TEST`` families, the ``two-tier`` cluster kept for the test.

Shapes of the random families: forward graphs as sketches, without costs.

Each function draws one graph of about ``size`` ops: what ops take as inputs, which share weights,
how heavy they are. The shapes follow the networks they are named after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import FloatArray
from gnnplace.errors import InputError
from gnnplace.graph import ComputationGraph
from gnnplace.problem import (
    BACKWARD,
    FORWARD,
    UPDATE,
    Problem,
    build_problem,
    with_microbatches,
)
from gnnplace.train.data.random_clusters import CLUSTERS, check_cluster, make_cluster
from gnnplace.train.data.random_clusters import TRAIN_CLUSTERS as TRAIN_CLUSTERS

Generator = np.random.Generator


@dataclass
class Sketch:
    """A forward graph being drawn: inputs and weight class of each op, in topological order."""

    inputs: list[list[int]] = field(default_factory=list)
    weight: list[str | None] = field(default_factory=list)
    heavy: list[float] = field(default_factory=list)

    def add(
        self, inputs: list[int], *, heavy: float = 1.0, weight: str | None = None
    ) -> int:
        """Add an op; ``heavy`` scales its cost, ``weight`` names parameters that it shares."""
        self.inputs.append(sorted(set(inputs)))
        self.heavy.append(heavy)
        self.weight.append(weight)
        return len(self.inputs) - 1

    def layer(self, inputs: list[int], heavy: float = 4.0) -> int:
        """Add an op with parameters of its own."""
        return self.add(inputs, heavy=heavy, weight=f"w{len(self.inputs)}")

    def block(self, start: int, length: int) -> int:
        """Add layers, each with a light op after it, one after the other."""
        for _ in range(length):
            start = self.add([self.layer([start])], heavy=0.5)
        return start


def layered(rng: Generator, size: int) -> Sketch:
    """Draw layers of random width.

    Each op takes one to three ops of the layer before, or skips.
    """
    sketch = Sketch()
    previous = [-1]
    width = int(rng.integers(2, 10))
    previous = [sketch.add([]) for _ in range(width)]
    while len(sketch.inputs) < size:
        layer = [
            sketch.layer(
                rng.choice(
                    previous, min(len(previous), int(rng.integers(1, 4)))
                ).tolist()
            )
            for _ in range(int(rng.integers(1, width + 1)))
        ]
        if rng.random() < 0.8:
            previous = layer
        else:
            previous = previous + layer
    return sketch


def erdos_renyi(rng: Generator, size: int) -> Sketch:
    """Draw a graph in which every earlier op of a window is an input with the same probability."""
    sketch = Sketch()
    window = int(rng.integers(5, 40))
    share = rng.uniform(1.0, 3.0) / window
    for i in range(size):
        low = max(0, i - window)
        inputs = (low + np.flatnonzero(rng.random(i - low) < share)).tolist()
        sketch.add(
            inputs,
            weight=f"w{i}" if rng.random() < 0.5 else None,
            heavy=rng.uniform(0.5, 4),
        )
    return sketch


def inception(rng: Generator, size: int) -> Sketch:
    """Draw blocks of parallel branches of different lengths, joined again."""
    sketch = Sketch()
    join = sketch.block(sketch.add([]), 2)
    while len(sketch.inputs) < size:
        branches = int(rng.integers(2, 7))
        ends = [sketch.block(join, int(rng.integers(1, 5))) for _ in range(branches)]
        join = sketch.add(ends, heavy=0.5)
    return sketch


def transformer(rng: Generator, size: int) -> Sketch:
    """Draw layers of attention (in heads or whole) and feed-forward blocks, with residuals."""
    sketch = Sketch()
    x = sketch.layer([sketch.add([])])
    heads = int(rng.integers(1, 7))
    while len(sketch.inputs) < size:
        parts = []
        for _ in range(heads):
            q, k, v = (sketch.layer([x], heavy=4 / heads) for _ in range(3))
            weights = sketch.add([sketch.add([q, k], heavy=2 / heads)], heavy=0.3)
            parts.append(sketch.add([weights, v], heavy=2 / heads))
        x = sketch.add([sketch.layer(parts), x], heavy=0.3)
        x = sketch.add(
            [sketch.layer([sketch.layer([x], heavy=8)], heavy=8), x], heavy=0.3
        )
    return sketch


def chain(rng: Generator, size: int) -> Sketch:
    """Draw layers one after the other, some with residuals over a few of them."""
    sketch = Sketch()
    x = sketch.add([])
    residual = rng.random() < 0.5
    while len(sketch.inputs) < size:
        y = sketch.block(x, int(rng.integers(1, 4)))
        if residual:
            x = sketch.add([x, y], heavy=0.3)
        else:
            x = y
    return sketch


def mixture(rng: Generator, size: int) -> Sketch:
    """Draw layers whose tokens go through parallel experts."""
    sketch = Sketch()
    experts = int(rng.integers(2, 9))
    x = sketch.layer([sketch.add([])])
    while len(sketch.inputs) < size:
        x = sketch.block(x, int(rng.integers(1, 3)))
        router = sketch.layer([x], heavy=0.5)
        ends = [
            sketch.block(sketch.add([x, router], heavy=0.2), 2) for _ in range(experts)
        ]
        x = sketch.add([*ends, x], heavy=0.5)
    return sketch


def grid(rng: Generator, size: int) -> Sketch:
    """Draw a recurrent network unrolled over time: ops of a layer share weights."""
    sketch = Sketch()
    layers = int(rng.integers(2, 7))
    _cells(sketch, layers, max(2, size // (2 * layers)), "cell", [])
    return sketch


def _cells(
    sketch: Sketch, layers: int, steps: int, name: str, start: list[int]
) -> list[list[int]]:
    """Add cells unrolled over time and return the outputs of each layer's steps.

    ``start`` is an input of the first layer's cell in every step.
    """
    outputs: list[list[int]] = [[] for _ in range(layers)]
    for _ in range(steps):
        below = sketch.add(start, heavy=0.5)
        for layer in range(layers):
            mixed = sketch.add(
                [below, *outputs[layer][-1:]], heavy=4, weight=f"{name}{layer}"
            )
            below = sketch.add([mixed], heavy=0.5)
            outputs[layer].append(below)
    return outputs


def seq2seq(rng: Generator, size: int) -> Sketch:
    """Draw an encoder and a decoder unrolled over time.

    The decoder has attention and an output layer for each step.
    """
    sketch = Sketch()
    layers = int(rng.integers(1, 5))
    steps = max(2, size // (4 * layers + 4))
    encoder = _cells(sketch, layers, steps, "encoder", [])
    decoder = _cells(sketch, layers, steps, "decoder", [encoder[-1][-1]])
    memory = sketch.add(encoder[-1], heavy=1)
    for top in decoder[-1]:
        attended = sketch.add([top, memory], heavy=1, weight="attention")
        sketch.add([attended], heavy=6, weight="output")
    return sketch


def nas(rng: Generator, size: int) -> Sketch:
    """Draw cells of random pairwise ops over the two cells before, as in searched architectures."""
    sketch = Sketch()
    cells = [sketch.layer([sketch.add([])])] * 2
    while len(sketch.inputs) < size:
        nodes = list(cells)
        for _ in range(int(rng.integers(3, 7))):
            a, b = rng.choice(nodes, 2).tolist()
            nodes.append(sketch.add([sketch.block(a, 1), sketch.layer([b])], heavy=0.3))
        cells = [cells[1], sketch.add(nodes[2:], heavy=0.5)]
    return sketch


def two_tower(rng: Generator, size: int) -> Sketch:
    """Draw two to four chains that meet at the end."""
    sketch = Sketch()
    towers = int(rng.integers(2, 5))
    shares = rng.dirichlet(np.full(towers, 4.0))
    lengths = [max(1, int(share * size / 2)) for share in shares]
    ends = [sketch.block(sketch.add([]), length) for length in lengths]
    sketch.layer([sketch.add(ends)])
    return sketch


def series_parallel(rng: Generator, size: int) -> Sketch:
    """Draw series and parallel compositions recursively."""
    sketch = Sketch()
    _compose(sketch, rng, sketch.add([]), size)
    return sketch


def _compose(sketch: Sketch, rng: Generator, start: int, size: int) -> int:
    if size <= 3:
        return sketch.layer([start], heavy=float(rng.uniform(0.5, 4)))
    if rng.random() < 0.5:
        first = int(rng.integers(1, size))
        return _compose(sketch, rng, _compose(sketch, rng, start, first), size - first)
    parts = int(rng.integers(2, 5))
    ends = [_compose(sketch, rng, start, (size - 1) // parts) for _ in range(parts)]
    return sketch.add(ends, heavy=0.5)


TRAIN = (
    "layered",
    "erdos-renyi",
    "inception",
    "transformer",
    "chain",
    "mixture",
    "grid",
)
VALIDATION = ("nas", "two-tower")
TEST = ("seq2seq", "series-parallel")
MICROBATCHES = (1, 1, 1, 2, 4, 8)
MOST_OPS = 2_000


FAMILIES: dict[str, Callable[[Generator, int], Sketch]] = {
    "layered": layered,
    "erdos-renyi": erdos_renyi,
    "inception": inception,
    "transformer": transformer,
    "chain": chain,
    "mixture": mixture,
    "grid": grid,
    "nas": nas,
    "two-tower": two_tower,
    "seq2seq": seq2seq,
    "series-parallel": series_parallel,
}


@dataclass(frozen=True)
class RandomDraws:
    """The distribution of random problems.

    Attributes:
        ops: Least and most ops before micro-batches; the most is met roughly.
        devices: Least and most devices.
        clusters: Types of clusters to draw from; of ``CLUSTERS``.
        microbatches: Numbers of micro-batches to draw from; forward-only graphs have one.
        most_ops: No number of micro-batches is drawn that makes more ops than this.
        ccr: Seconds of all tensors at the drawn bandwidth over all work; None: drawn, 0.02 to 4.
        heterogeneity: How many times slower a cluster's slow devices are, where it has some; None:
            drawn, 1 to 5. No other draw depends on it or on ``ccr``.
    """

    ops: tuple[int, int] = (40, 260)
    devices: tuple[int, int] = (2, 8)
    clusters: tuple[str, ...] = CLUSTERS
    microbatches: tuple[int, ...] = MICROBATCHES
    most_ops: int = MOST_OPS
    ccr: float | None = None
    heterogeneity: float | None = None


def random_problem(family: str, seed: int, draws: RandomDraws | None = None) -> Problem:
    """Return a problem of a family; the same arguments give the same problem.

    Args:
        family: A key of ``FAMILIES``.
        seed: The seed of everything that is drawn.
        draws: What it is drawn from; the defaults of ``RandomDraws`` without it.

    Raises:
        InputError: There is no such family or cluster; the names are listed.
    """
    if family not in FAMILIES:
        raise InputError(f"family {family!r}: unknown; families: {', '.join(FAMILIES)}")
    draws = draws or RandomDraws()
    rng = np.random.default_rng([seed, list(FAMILIES).index(family)])
    wanted = int(np.exp(rng.uniform(*np.log(draws.ops))))
    training = rng.random() < 0.6
    sketch = FAMILIES[family](rng, max(4, int(wanted / 2.6) if training else wanted))
    draft = _draw_costs(sketch, rng)
    if training:
        graph = _training_graph(draft)
    else:
        graph = _forward_graph(draft)
    cluster_type = str(rng.choice(draws.clusters))
    check_cluster(cluster_type)
    name = f"{family}-{seed}"
    problem = _make_on_cluster(
        graph, name, cluster_type, draws.devices, rng, (draws.ccr, draws.heterogeneity)
    )
    counts = draws.microbatches
    most_ops = draws.most_ops
    fitting = [m for m in counts if training and m * problem.num_ops <= most_ops]
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
        1e6
        * rng.lognormal(0.0, rng.uniform(0.2, 1.2), n)
        * np.linspace(1, rng.uniform(0.2, 1), n)
    )
    has = np.array([weight is not None for weight in sketch.weight])
    return CostedSketch(sketch, seconds, size, has * 2e6 * rng.lognormal(0.0, 1.0, n))


def _forward_graph(draft: CostedSketch) -> GraphParts:
    sketch = draft.sketch
    n = len(draft.seconds)
    consumers = _consumers(sketch)
    tensors = [(i, draft.size[i], consumers[i]) for i in range(n) if consumers[i]]
    graph = ComputationGraph.from_tensors([f"op{i}" for i in range(n)], tensors)
    state = _state(draft, 1.0)
    colocate = tuple(sketch.weight)
    return GraphParts(graph, draft.seconds, state, np.zeros(n, np.int8), colocate)


def _state(draft: CostedSketch, times: float) -> FloatArray:
    """Return the bytes of parameters' state, on the first op that has them. [n]"""
    first = {
        w: i for i, w in reversed(list(enumerate(draft.sketch.weight))) if w is not None
    }
    state = np.zeros(len(draft.seconds))
    for i in first.values():
        state[i] = times * draft.parameters[i]
    return state


def _consumers(sketch: Sketch) -> list[list[int]]:
    consumers: list[list[int]] = [[] for _ in sketch.inputs]
    for i, inputs in enumerate(sketch.inputs):
        for producer in inputs:
            consumers[producer].append(i)
    return consumers


def _training_graph(draft: CostedSketch) -> GraphParts:
    """Return forward ops, their backward ops in reverse, then one update for each weight.

    A backward op costs twice its forward op; it takes the gradients of its op's consumers and the
    activations that its op took (or made, where it took none).
    """
    sketch = draft.sketch
    n = len(draft.seconds)
    consumers = _consumers(sketch)
    backward = {i: 2 * n - 1 - i for i in range(n)}
    weights = list(dict.fromkeys(w for w in sketch.weight if w is not None))
    update = {w: 2 * n + k for k, w in enumerate(weights)}
    # An output goes to its consumers, and is kept for their backward ops.
    takers = [consumers[i] + [backward[c] for c in consumers[i]] for i in range(n)]
    for i in range(n):
        if not sketch.inputs[i] or not consumers[i]:
            takers[i].append(backward[i])
    tensors: list[tuple[int, float, list[int]]] = [
        (i, float(draft.size[i]), takers[i]) for i in range(n)
    ]
    # Backward ops make a gradient for each input, and one for the weight's update.
    for i in range(n):
        tensors += [
            (backward[i], float(draft.size[j]), [backward[j]]) for j in sketch.inputs[i]
        ]
        weight = sketch.weight[i]
        if weight is not None:
            tensors.append((backward[i], float(draft.parameters[i]), [update[weight]]))
    names = [f"op{i}" for i in range(n)] + [f"grad{i}" for i in reversed(range(n))]
    graph = ComputationGraph.from_tensors(
        [*names, *(f"update {w}" for w in weights)], tensors
    )
    seconds = np.concatenate(
        [draft.seconds, 2 * draft.seconds[::-1], np.full(len(weights), 1e-5)]
    )
    phase = np.repeat([FORWARD, BACKWARD, UPDATE], [n, n, len(weights)]).astype(np.int8)
    state = np.concatenate([_state(draft, 3.0), np.zeros(n + len(weights))])
    return GraphParts(
        graph, seconds, state, phase, (*sketch.weight, *sketch.weight[::-1], *weights)
    )


def _make_on_cluster(
    parts: GraphParts,
    name: str,
    cluster_type: str,
    devices: tuple[int, int],
    rng: Generator,
    fixed: tuple[float | None, float | None],
) -> Problem:
    count = int(rng.integers(devices[0], devices[1] + 1))
    ratio = _unless(fixed[0], float(np.exp(rng.uniform(np.log(0.02), np.log(4.0)))))
    consumed_bytes = float(parts.graph.size[parts.graph.consumption_tensor].sum())
    bandwidth = max(consumed_bytes, 1.0) / (ratio * float(parts.seconds.sum()))
    latency = float(
        parts.seconds.mean() * np.exp(rng.uniform(np.log(1e-3), np.log(0.3)))
    )
    memory = _memory(parts, count, rng)
    cluster = make_cluster(cluster_type, count, bandwidth, latency, memory, rng)
    slower = _unless(fixed[1], float(np.exp(rng.uniform(0.0, np.log(5.0)))))
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
    """Return what is given, else what was drawn.

    The value is drawn in any case, so that the numbers that follow are the same either way.
    """
    if given is None:
        return drawn
    return given


def _memory(parts: GraphParts, count: int, rng: Generator) -> float:
    """Return the bytes of each device: ample, or 1.5 to 3 fair shares of everything."""
    everything = float(parts.state.sum() + parts.graph.size.sum())
    largest = float(parts.state.max() + 4 * parts.graph.size.max(initial=0.0))
    if rng.random() < 0.7:
        return 4.0 * everything + largest
    return max(3.0 * largest, everything * rng.uniform(1.5, 3.0) / count)
