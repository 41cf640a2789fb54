"""Sorts families of graphs into blocks by structure: writes ``gnnplace/bench/blocks.json``.

    python -m benchmarks.structure

A family's name says little: BERT, ELECTRA, MPNet and ViT are four names of one kind of graph. So
graphs are compared by what surrounds their ops. The label of an op is its phase, its numbers of
producers and consumers (at most ``MOST_NEIGHBOURS``), and the same of each neighbour. The distance
of two graphs is the total variation distance of their labels' shares: 0 for graphs of the same
surroundings in the same shares, 1 for graphs that have none in common. Costs, bytes and sizes do
not count, so depth and width hardly do. Two families whose nearest graphs are within ``NEAR`` are
in one block (single linkage). Graphs are those of the store and of ``data_sets``, and draws of the
random families with one micro-batch.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from gnnplace.arrays import IntArray
from gnnplace.bench.exposure import BLOCKS
from gnnplace.files import write_json
from gnnplace.graph import ComputationGraph
from gnnplace.policy import RANDOM
from gnnplace.train.data.captured import CapturedStore, open_shipped_store
from gnnplace.train.data.random_families import (
    TEST,
    TRAIN,
    VALIDATION,
    RandomDraws,
    random_problem,
)

DATA_SETS = Path(__file__).parents[1] / "data_sets"
MOST_NEIGHBOURS = 8
MOST_OPS = 6_000  # of a graph; larger ones of a family say the same
MOST_GRAPHS = 12  # of a family
NEAR = 0.5
SEEDS = range(6)  # of draws of a random family
Profile = Mapping[object, float]


def profile(graph: ComputationGraph, phase: IntArray) -> Profile:
    """Return the share of ops that have each label; shares sum to 1."""
    source, target, _ = graph.edges
    source, target = np.unique(np.stack([source, target]), axis=1)
    count = graph.num_ops
    into = np.minimum(np.bincount(target, minlength=count), MOST_NEIGHBOURS)
    out = np.minimum(np.bincount(source, minlength=count), MOST_NEIGHBOURS)
    own = list(zip(into.tolist(), out.tolist(), phase.tolist(), strict=True))
    before: list[list[tuple[int, int, int]]] = [[] for _ in range(count)]
    after: list[list[tuple[int, int, int]]] = [[] for _ in range(count)]
    for a, b in zip(source.tolist(), target.tolist(), strict=True):
        after[a].append(own[b])
        before[b].append(own[a])
    labels = Counter(
        (own[op], tuple(sorted(before[op])), tuple(sorted(after[op])))
        for op in range(count)
    )
    return {label: number / count for label, number in labels.items()}


def distance(one: Profile, other: Profile) -> float:
    """Return the total variation distance of two profiles, 0 to 1."""
    return 1.0 - sum(min(share, other.get(label, 0.0)) for label, share in one.items())


def profiles() -> dict[str, list[Profile]]:
    """Return the profiles of every family's graphs."""
    result: dict[str, list[Profile]] = defaultdict(list)
    folders = sorted(path for path in DATA_SETS.iterdir() if any(path.glob("*.npz")))
    for store in (open_shipped_store(), *map(CapturedStore, folders)):
        for name in store.names:
            graph = store.graph(name)
            family = result[str(graph.origin["family"])]
            if graph.num_ops <= MOST_OPS and len(family) < MOST_GRAPHS:
                family.append(profile(graph.graph, graph.phase))
    for name in (*TRAIN, *VALIDATION, *TEST):
        for seed in SEEDS:
            problem = random_problem(
                name, seed, RandomDraws(ops=(100, 300), microbatches=(1,))
            )
            result[f"{RANDOM}{name}"].append(profile(problem.graph, problem.phase))
    return {family: graphs for family, graphs in sorted(result.items()) if graphs}


def find_blocks(distances: Mapping[tuple[str, str], float]) -> dict[str, Sequence[str]]:
    """Join families by single linkage; return the families of each block by its name."""
    families = sorted({family for pair in distances for family in pair})
    block = {family: {family} for family in families}
    for (one, other), how_far in distances.items():
        if how_far <= NEAR and block[one] is not block[other]:
            joined = block[one] | block[other]
            for family in joined:
                block[family] = joined
    named = {"+".join(sorted(members)): sorted(members) for members in block.values()}
    return dict(sorted(named.items()))


def main() -> int:
    """Write the blocks, and for each family the nearest other one."""
    by_family = profiles()
    distances = {
        (one, other): min(
            distance(a, b) for a in by_family[one] for b in by_family[other]
        )
        for one, other in combinations(by_family, 2)
    }
    nearest = {}
    for family in by_family:
        pairs = [
            (d, set(pair) - {family}) for pair, d in distances.items() if family in pair
        ]
        how_far, (other,) = min(pairs, key=lambda entry: entry[0])
        nearest[family] = [other, round(how_far, 3)]
    write_json(
        BLOCKS, {"near": NEAR, "blocks": find_blocks(distances), "nearest": nearest}
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
