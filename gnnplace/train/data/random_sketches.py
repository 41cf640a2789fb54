"""Shapes of the random families: forward graphs as sketches, without costs.

Each function draws one graph of about ``size`` ops: what ops take as inputs, which share weights,
how heavy they are. The shapes follow the networks they are named after.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

Generator = np.random.Generator


@dataclass
class Sketch:
    """A forward graph being drawn: inputs and weight class of each op, in topological order."""

    inputs: list[list[int]] = field(default_factory=list)
    weight: list[str | None] = field(default_factory=list)
    heavy: list[float] = field(default_factory=list)

    def add(self, inputs: list[int], *, heavy: float = 1.0, weight: str | None = None) -> int:
        """Adds an op; ``heavy`` scales its cost, ``weight`` names parameters that it shares."""
        self.inputs.append(sorted(set(inputs)))
        self.heavy.append(heavy)
        self.weight.append(weight)
        return len(self.inputs) - 1

    def layer(self, inputs: list[int], heavy: float = 4.0) -> int:
        """Adds an op with parameters of its own."""
        return self.add(inputs, heavy=heavy, weight=f"w{len(self.inputs)}")

    def block(self, start: int, length: int) -> int:
        """Adds layers, each with a light op after it, one after the other."""
        for _ in range(length):
            start = self.add([self.layer([start])], heavy=0.5)
        return start


def layered(rng: Generator, size: int) -> Sketch:
    """Layers of random width; each op takes one to three ops of the layer before, or skips."""
    sketch, before, width = Sketch(), [-1], int(rng.integers(2, 10))
    before = [sketch.add([]) for _ in range(width)]
    while len(sketch.inputs) < size:
        now = [
            sketch.layer(rng.choice(before, min(len(before), int(rng.integers(1, 4)))).tolist())
            for _ in range(int(rng.integers(1, width + 1)))
        ]
        before = now if rng.random() < 0.8 else before + now
    return sketch


def erdos_renyi(rng: Generator, size: int) -> Sketch:
    """Every earlier op of a window is an input with the same probability."""
    sketch, window = Sketch(), int(rng.integers(5, 40))
    share = rng.uniform(1.0, 3.0) / window
    for i in range(size):
        low = max(0, i - window)
        inputs = (low + np.flatnonzero(rng.random(i - low) < share)).tolist()
        sketch.add(
            inputs, weight=f"w{i}" if rng.random() < 0.5 else None, heavy=rng.uniform(0.5, 4)
        )
    return sketch


def inception(rng: Generator, size: int) -> Sketch:
    """Blocks of parallel branches of different lengths, joined again."""
    sketch = Sketch()
    join = sketch.block(sketch.add([]), 2)
    while len(sketch.inputs) < size:
        branches = int(rng.integers(2, 7))
        ends = [sketch.block(join, int(rng.integers(1, 5))) for _ in range(branches)]
        join = sketch.add(ends, heavy=0.5)
    return sketch


def transformer(rng: Generator, size: int) -> Sketch:
    """Layers of attention (in heads or whole) and a feed-forward block, with residuals."""
    sketch = Sketch()
    x, heads = sketch.layer([sketch.add([])]), int(rng.integers(1, 7))
    while len(sketch.inputs) < size:
        parts = []
        for _ in range(heads):
            q, k, v = (sketch.layer([x], heavy=4 / heads) for _ in range(3))
            weights = sketch.add([sketch.add([q, k], heavy=2 / heads)], heavy=0.3)
            parts.append(sketch.add([weights, v], heavy=2 / heads))
        x = sketch.add([sketch.layer(parts), x], heavy=0.3)
        x = sketch.add([sketch.layer([sketch.layer([x], heavy=8)], heavy=8), x], heavy=0.3)
    return sketch


def chain(rng: Generator, size: int) -> Sketch:
    """Layers one after the other, some with residuals over a few of them."""
    sketch = Sketch()
    x, residual = sketch.add([]), rng.random() < 0.5
    while len(sketch.inputs) < size:
        y = sketch.block(x, int(rng.integers(1, 4)))
        x = sketch.add([x, y], heavy=0.3) if residual else y
    return sketch


def mixture(rng: Generator, size: int) -> Sketch:
    """Layers whose tokens go through parallel experts."""
    sketch, experts = Sketch(), int(rng.integers(2, 9))
    x = sketch.layer([sketch.add([])])
    while len(sketch.inputs) < size:
        x = sketch.block(x, int(rng.integers(1, 3)))
        router = sketch.layer([x], heavy=0.5)
        ends = [sketch.block(sketch.add([x, router], heavy=0.2), 2) for _ in range(experts)]
        x = sketch.add([*ends, x], heavy=0.5)
    return sketch


def grid(rng: Generator, size: int) -> Sketch:
    """A recurrent network unrolled: ops of a layer share weights over time."""
    sketch, layers = Sketch(), int(rng.integers(2, 7))
    _cells(sketch, layers, max(2, size // (2 * layers)), "cell", [])
    return sketch


def _cells(sketch: Sketch, layers: int, steps: int, name: str, start: list[int]) -> list[list[int]]:
    """Cells over time: outputs of each layer's steps. ``start`` goes into every first cell."""
    outputs: list[list[int]] = [[] for _ in range(layers)]
    for _ in range(steps):
        below = sketch.add(start, heavy=0.5)
        for layer in range(layers):
            mixed = sketch.add([below, *outputs[layer][-1:]], heavy=4, weight=f"{name}{layer}")
            below = sketch.add([mixed], heavy=0.5)
            outputs[layer].append(below)
    return outputs


def seq2seq(rng: Generator, size: int) -> Sketch:
    """Encoder and decoder unrolled over time, attention, an output layer for each step."""
    sketch, layers = Sketch(), int(rng.integers(1, 5))
    steps = max(2, size // (4 * layers + 4))
    encoder = _cells(sketch, layers, steps, "encoder", [])
    decoder = _cells(sketch, layers, steps, "decoder", [encoder[-1][-1]])
    memory = sketch.add(encoder[-1], heavy=1)
    for top in decoder[-1]:
        attended = sketch.add([top, memory], heavy=1, weight="attention")
        sketch.add([attended], heavy=6, weight="output")
    return sketch


def nas(rng: Generator, size: int) -> Sketch:
    """Cells of random pairwise ops over the two cells before, as in searched architectures."""
    sketch = Sketch()
    before = [sketch.layer([sketch.add([])])] * 2
    while len(sketch.inputs) < size:
        made = list(before)
        for _ in range(int(rng.integers(3, 7))):
            a, b = rng.choice(made, 2).tolist()
            made.append(sketch.add([sketch.block(a, 1), sketch.layer([b])], heavy=0.3))
        before = [before[1], sketch.add(made[2:], heavy=0.5)]
    return sketch


def two_tower(rng: Generator, size: int) -> Sketch:
    """Two to four chains that meet at the end."""
    sketch, towers = Sketch(), int(rng.integers(2, 5))
    shares = rng.dirichlet(np.full(towers, 4.0))
    lengths = [max(1, int(share * size / 2)) for share in shares]
    ends = [sketch.block(sketch.add([]), length) for length in lengths]
    sketch.layer([sketch.add(ends)])
    return sketch


def series_parallel(rng: Generator, size: int) -> Sketch:
    """Series and parallel compositions, drawn recursively."""
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
