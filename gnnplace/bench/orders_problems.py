"""What traversal orders are studied on: problems by family and cluster, and features of a problem.

Three parts. ``seen``: the families that training draws from, other problems. ``held-out``: families
that it never draws from. ``searched``: the three families of Wang et al. (2022, arXiv 2201.09676)
from ``datasets/``. Every family is on every type of cluster equally often, ``EACH`` times; one
problem in three has four micro-batches, the others have one. Memory is ample throughout: what fits
where is another question. Seeds are apart from those of training, validation and benchmark suites.

Clusters of captured graphs have links of real kinds of devices, those of random families a drawn
ratio of communication to computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from gnnplace.errors import InputError
from gnnplace.graph.ranks import levels, upward_rank
from gnnplace.placers import SearchSpace
from gnnplace.policy.walk import WalkGraph
from gnnplace.problem import Problem
from gnnplace.zoo import random_families
from gnnplace.zoo.captured import CapturedStore, captured_problem, shipped_store
from gnnplace.zoo.captured_models import SPLIT, TRAIN
from gnnplace.zoo.random_clusters import CLUSTERS, TRAIN_CLUSTERS

SEEN, HELD_OUT, SEARCHED = "seen", "held-out", "searched"
PARTS = (SEEN, HELD_OUT, SEARCHED)
EACH = 6  # problems of a family on a type of cluster
SHARES = (1, 1, 4)  # micro-batches, in turn
OPS = (60, 250)  # of random families, before micro-batches
GROUPS = (60, 200)  # of captured graphs
TRAIN_OPS, TRAIN_GROUPS = (40, 160), (50, 150)
BATCH = (0.25, 4.0)  # of the captured batch
FIRST_SEED, TRAIN_SEED, CHECK_SEED = 810_000, 40_000_000, 860_000
SEED_STEP = 17  # to the next seed where memory is short


@dataclass(frozen=True, eq=False)
class StudyProblem:
    """A problem of the study.

    Attributes:
        family: of the graph; captured ones end in ``*``.
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
    if part == SEARCHED:
        raise InputError(f"part {part!r}: its graphs are not there")
    held_out = part == HELD_OUT
    random = (
        random_families.VALIDATION + random_families.TEST if held_out else random_families.TRAIN
    )
    captured = [f"{name}*" for name, of in SPLIT.items() if (of != TRAIN) == held_out]
    return (*random, *captured)


def study_problems(
    part: str, *, each: int = EACH, first_seed: int = FIRST_SEED
) -> list[StudyProblem]:
    """All problems of a part, always the same ones; ``each`` of a family on a type of cluster."""
    cells = product(families(part), CLUSTERS, range(each))
    return [
        StudyProblem(family, cluster, drawn(family, first_seed + 100 * i, (cluster,), i))
        for i, (family, cluster, _) in enumerate(cells)
    ]


def drawn(
    family: str,
    seed: int,
    clusters: tuple[str, ...],
    number: int,
    *,
    ops: tuple[int, int] = OPS,
    groups: tuple[int, int] = GROUPS,
) -> Problem:
    """The problem of a family with the first seed from ``seed`` on whose memory is ample.

    Args:
        family: as in ``families``.
        seed: of everything that is drawn.
        clusters: types to draw from.
        number: which graph of a captured family, and how many micro-batches, in turn.
        ops: least and most of random families.
        groups: least and most of captured graphs.
    """
    share = (SHARES[number % len(SHARES)],)
    if family.endswith("*"):
        return _captured(shipped_store(), family[:-1], seed, clusters, number, groups, share)
    while True:
        problem = random_families.random_problem(
            family, seed, ops=ops, clusters=clusters, microbatches=share
        )
        if not SearchSpace(problem).memory_matters:
            return problem
        seed += SEED_STEP


def _captured(
    store: CapturedStore,
    family: str,
    seed: int,
    clusters: tuple[str, ...],
    number: int,
    groups: tuple[int, int],
    share: tuple[int, ...],
) -> Problem:
    names = [name for name in store.names if store.graph(name).origin["family"] == family]
    return captured_problem(
        store,
        names[number // len(SHARES) % len(names)],
        seed,
        groups=groups,
        clusters=clusters,
        microbatches=share,
        memory=("ample",),
        batch=BATCH,
    )


def training_problems(seed: int, count: int) -> list[Problem]:
    """Problems to train on, of the seen families in turn, on the clusters of training."""
    names, first = families(SEEN), TRAIN_SEED + 1_000_000 * seed
    return [
        drawn(
            names[i % len(names)],
            first + 100 * i,
            TRAIN_CLUSTERS,
            i // len(names),
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
    edges' transfers at the mean link over all work; ``uneven``, standard deviation of the log of op
    times; ``shared``, ops that are not a placement unit of their own, as a share. Of the cluster:
    ``devices``, ``mixed`` (fastest device over slowest), ``channels`` (a device), and
    ``microbatches``.
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
