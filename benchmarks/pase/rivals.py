"""Strategies to compare with, in the same tables: experts', greedy, random search.

* ``expert``: the best of the schemes that people use (``SCHEMES``), over all sizes of the share t
  that a scheme gives its model dimensions; the batch is split over the rest.
* ``greedy``: layer by layer, the configuration that is cheapest with those chosen before.

The random search is in ``markov_chain.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.pase.costs import Setting
from benchmarks.pase.layers import Operation, configurations
from gnnplace.arrays import FloatArray
from gnnplace.sharding.problem import ShardingProblem

MODEL = ("heads", "hidden", "vocabulary", "out")
TENSOR = dict.fromkeys(("linear", "attention", "embedding", "cross_entropy"), MODEL)
WORDS = dict.fromkeys(("linear", "embedding", "cross_entropy"), ("vocabulary",))


@dataclass(frozen=True)
class Scheme:
    """How people split a kind of network.

    Attributes:
        split: dimensions that are split over t devices, by kind of operation; the first it has.
        leaves_devices_to_model: whether all further operations, too, split the batch over
            devices / t alone.
    """

    split: Mapping[str, tuple[str, ...]]
    leaves_devices_to_model: bool = False


SCHEMES: Mapping[str, Scheme] = {
    # Krizhevsky, 2014 (arXiv 1404.5997): convolutions along the batch, fully connected outputs.
    "one weird trick": Scheme({"linear": ("out", "vocabulary")}),
    # Shoeybi et al., 2019 (arXiv 1909.08053), and Mesh-TensorFlow's two-dimensional layout
    # (Shazeer et al., 2018, arXiv 1811.02084).
    "tensor": Scheme({**TENSOR, "expert": ("hidden",)}, leaves_devices_to_model=True),
    # Wu et al., 2016 (arXiv 1609.08144), section 3.3: layers on devices of their own, batch, and a
    # softmax that is split.
    "pipeline": Scheme({"lstm": ("layers",)}),
    "pipeline and vocabulary": Scheme({"lstm": ("layers",), **WORDS}),
    "vocabulary": Scheme(WORDS),
    # Lepikhin et al., 2020 (arXiv 2006.16668): experts split, the rest along the batch.
    "experts": Scheme({"expert": ("experts",)}),
    "experts and tensor": Scheme(
        {**TENSOR, "expert": ("experts",)}, leaves_devices_to_model=True
    ),
}


def expert(setting: Setting, problem: ShardingProblem) -> tuple[int, ...]:
    """Return the best of the experts' strategies over all schemes and shares of the model."""
    ways = [t for t in range(1, setting.devices + 1) if setting.devices % t == 0]
    strategies = [
        tuple(
            _expert_split(x.operation, setting, t, scheme)
            for x in setting.network.layers
        )
        for t in ways
        for scheme in SCHEMES.values()
    ]
    return min(strategies, key=problem.value)


def _expert_split(
    operation: Operation, setting: Setting, ways: int, scheme: Scheme
) -> int:
    """Return the index of the configuration nearest to the one that the scheme wants."""
    rows = configurations(operation, setting.devices, setting.space)
    names = [d.name for d in operation.dimensions]
    dimension = next(
        (name for name in scheme.split.get(operation.kind, ()) if name in names), None
    )
    wanted = np.ones(len(names))
    if dimension is not None:
        ways = min(ways, operation.dimensions[names.index(dimension)].extent)
        wanted[names.index(dimension)] = ways
    elif not scheme.leaves_devices_to_model:
        ways = 1
    wanted[names.index("batch")] = setting.devices // ways
    return int(np.abs(np.log(rows / wanted)).sum(axis=1).argmin())


def greedy(problem: ShardingProblem) -> tuple[int, ...]:
    """Return the strategy that picks, layer by layer in the problem's order, the cheapest
    configuration.
    """
    edges: list[Incident] = [[] for _ in problem.names]
    for edge in problem.edges:
        edges[edge.u].append((edge.v, edge.cost.T))
        edges[edge.v].append((edge.u, edge.cost))
    configuration = np.full(len(problem.names), -1)
    for node in range(len(configuration)):
        total = problem.cost[node].copy()
        for neighbour, table in edges[node]:
            if configuration[neighbour] >= 0:  # -1: not yet
                total += table[configuration[neighbour]]
        configuration[node] = int(total.argmin())
    return tuple(int(k) for k in configuration)


Incident = list[tuple[int, FloatArray]]
