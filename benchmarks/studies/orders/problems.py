"""What traversal orders are studied on: problems by family and cluster, and features of a problem.

Five parts. ``seen``: the families that training draws from, other problems. The others hold
families that it never draws from: ``held-out`` from the random families and the package's store,
``networks`` and ``searched`` from the folders of ``data_sets/``, the latter the three families of
Wang et al. (2022, arXiv 2201.09676), every graph once. ``own`` is nearer to what they do: for each
of their families a training of its own, on half of its graphs, evaluated on the other half. Every
family is on every type of cluster equally often; one problem in three has four micro-batches, the
others have one. Memory is ample throughout: what fits where is another question. Seeds are apart
from those of training, validation and benchmark suites.

Clusters of captured graphs have links of real kinds of devices, those of random families a drawn
ratio of communication to computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np

from gnnplace.errors import InputError
from gnnplace.graph.orders import levels, upward_rank
from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.problem import Problem
from gnnplace.train.data import random_families
from gnnplace.train.data.captured import (
    SPLIT,
    TRAIN,
    CapturedDraws,
    CapturedStore,
    draw_captured_problem,
)
from gnnplace.train.data.datasets import find_dataset
from gnnplace.train.data.random_clusters import CLUSTERS, TRAIN_CLUSTERS
from gnnplace.train.data.recipes import STORE, recipe

SEEN, HELD_OUT, NETWORKS, SEARCHED = "seen", "held-out", "networks", "searched"
OWN = "own"
PARTS = (SEEN, HELD_OUT, NETWORKS, SEARCHED, OWN)
# Problems of a family on a type of cluster.
EACH = {SEEN: 6, HELD_OUT: 6, NETWORKS: 6, SEARCHED: 8, OWN: 16}
SHARES = (1, 1, 4)  # micro-batches, in turn
OPS = (60, 250)  # of random families, before micro-batches
GROUPS = (60, 200)  # of captured graphs
TRAIN_OPS, TRAIN_GROUPS = (40, 160), (50, 150)
BATCH = (0.25, 4.0)  # of the captured batch
DATASETS = {NETWORKS: ("networks",), SEARCHED: ("searched-cnn", "searched-rnn", "nmt")}
FIRST_SEED, TRAIN_SEED, CHECK_SEED = 810_000, 40_000_000, 860_000
SEED_STEP = 17  # to the next seed where memory is short


@dataclass(frozen=True, eq=False)
class StudyProblem:
    """A problem of the study.

    Attributes:
        family: the family of the graph; captured ones end in ``*``.
        cluster: type of cluster.
        problem: the problem.
    """

    family: str
    cluster: str
    problem: Problem


def families(part: str) -> tuple[str, ...]:
    """Names of the part's families; captured ones end in ``*``.

    Raises:
        InputError: there is no such part.
    """
    if part not in PARTS:
        raise InputError(f"part {part!r}: unknown; parts: {', '.join(PARTS)}")
    if part in (NETWORKS, SEARCHED, OWN):
        datasets = DATASETS[SEARCHED if part == OWN else part]
        wanted = [m.family for r in datasets for m in recipe(r).models]
        return tuple(f"{name}*" for name in dict.fromkeys(wanted))
    held_out = part == HELD_OUT
    random: tuple[str, ...] = random_families.TRAIN
    if held_out:
        random = random_families.VALIDATION + random_families.TEST
    captured = [f"{name}*" for name, of in SPLIT.items() if (of != TRAIN) == held_out]
    return (*random, *captured)


def generations_of(part: str, generations: int) -> int:
    """Generations of a part's trainings: half as many where each is on one family."""
    return max(1, generations // 2) if part == OWN else generations


def study_problems(
    part: str, *, each: int | None = None, first_seed: int = FIRST_SEED
) -> list[StudyProblem]:
    """All problems of a part, always the same ones.

    Args:
        part: one of ``PARTS``.
        each: problems of a family on a type of cluster.
        first_seed: the first seed of their draws.
    """
    cells = product(families(part), CLUSTERS, range(each or EACH[part]))
    result = []
    for i, (family, cluster, _) in enumerate(cells):
        share = SHARES[i % len(SHARES)]
        graph = {SEARCHED: i, OWN: 2 * i + 1}.get(part, i // len(SHARES))
        problem = drawn(family, first_seed + 100 * i, (cluster,), graph, share)
        result.append(StudyProblem(family, cluster, problem))
    return result


def drawn(
    family: str,
    seed: int,
    clusters: tuple[str, ...],
    graph: int,
    share: int,
    *,
    ops: tuple[int, int] = OPS,
    groups: tuple[int, int] = GROUPS,
) -> Problem:
    """The problem of a family with the first seed from ``seed`` on whose memory is ample.

    Args:
        family: as in ``families``.
        seed: the seed of everything that is drawn.
        clusters: types to draw from.
        graph: which graph of a captured family, modulo their number.
        share: micro-batches; a random graph without backward ops has one.
        ops: least and most of random families.
        groups: least and most of captured graphs.
    """
    if family.endswith("*"):
        store, names = _store_of(family[:-1])
        return draw_captured_problem(
            store,
            names[graph % len(names)],
            seed,
            CapturedDraws(
                groups=groups,
                clusters=clusters,
                microbatches=(share,),
                memory=("ample",),
                batch=BATCH,
            ),
        )
    while True:
        problem = random_families.random_problem(
            family,
            seed,
            random_families.RandomDraws(
                ops=ops, clusters=clusters, microbatches=(share,)
            ),
        )
        if not SearchSpace(problem).memory_matters:
            return problem
        seed += SEED_STEP


@cache
def _store_of(family: str) -> tuple[CapturedStore, tuple[str, ...]]:
    """The store that has a family, and the names of its graphs."""
    others = [name for names in DATASETS.values() for name in names]
    having = [
        r for r in others if family in {model.family for model in recipe(r).models}
    ]
    name = having[0] if having else STORE.name
    store = find_dataset(name, Path(__file__).parents[1])
    return store, tuple(
        n for n in store.names if store.graph(n).origin["family"] == family
    )


def training_problems(
    seed: int, count: int, family: str | None = None
) -> list[Problem]:
    """Problems to train on, of the seen families in turn, on the clusters of training.

    Args:
        seed: the seed of all draws.
        count: how many.
        family: train on every other graph of this one alone, on all clusters.
    """
    if family is not None:
        start = TRAIN_SEED + 1_000_000 * seed + 50
        return [
            drawn(family, start + 100 * i, CLUSTERS, 2 * i, SHARES[i % len(SHARES)])
            for i in range(count)
        ]
    names, first = families(SEEN), TRAIN_SEED + 1_000_000 * seed
    return [
        drawn(
            names[i % len(names)],
            first + 100 * i,
            TRAIN_CLUSTERS,
            i // len(names) // len(SHARES),
            SHARES[i // len(names) % len(SHARES)],
            ops=TRAIN_OPS,
            groups=TRAIN_GROUPS,
        )
        for i in range(count)
    ]


def graph_features(graph: WalkGraph) -> dict[str, float]:
    """What a rule may choose an order by; all known before anything is decoded.

    Of the graph of one micro-batch with mean costs: ``ops``; ``depth``, levels; ``width``, most ops
    of a level over the mean; ``degree``, edges an op; ``fan-out``, most consumers of an op over
    ops; ``critical share``, longest path without transfers over all work; ``ccr``, seconds of all
    edges' transfers over all work, mean over all pairs of devices, a device with itself included;
    ``uneven``, standard deviation of the log of op times; ``shared``, ops that are not a placement
    unit of their own, as a share. Of the cluster: ``devices``, ``mixed`` (fastest device over
    slowest), ``channels`` (a device), and ``microbatches``.
    """
    g, problem = graph.graph, graph.problem
    work = max(float(graph.cost.sum()), 1e-300)
    level = levels(g)
    speed = graph.space.speed
    longest = float(upward_rank(g, graph.cost, np.zeros(len(graph.edge_cost))).max())
    return {
        "ops": float(g.num_ops),
        "depth": float(level.max() + 1),
        "width": float(np.bincount(level).max()) * (level.max() + 1) / g.num_ops,
        "degree": len(g.successor) / g.num_ops,
        "fan-out": float(np.diff(g.successor_offset).max()) / g.num_ops,
        "critical share": longest / work,
        "ccr": float(graph.edge_cost.sum()) / work,
        "uneven": float(np.log(graph.cost.clip(1e-12)).std()),
        "shared": 1.0 - problem.num_units / g.num_ops,
        "devices": float(problem.num_devices),
        "mixed": float(speed.max() / max(speed.min(), 1e-12)),
        "channels": problem.cluster.num_channels / problem.num_devices,
        "microbatches": float(problem.microbatches),
    }
