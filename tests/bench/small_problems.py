"""Small problems in the place of the order study's."""

from __future__ import annotations

from benchmarks.studies.orders.problems import StudyProblem, families
from gnnplace.problem import Problem
from gnnplace.train.data.random_families import RandomDraws, random_problem


def few(part: str) -> list[StudyProblem]:
    """Two of a part's first two families each; layered graphs, whatever they are called."""
    return [
        StudyProblem(
            family, "own", random_problem("layered", seed, RandomDraws(ops=(30, 40)))
        )
        for family in families(part)[:2]
        for seed in (1, 2)
    ]


def drawn(seed: int, count: int) -> list[Problem]:
    """Problems to train on."""
    return [
        random_problem("layered", 100 * seed + i, RandomDraws(ops=(20, 30)))
        for i in range(count)
    ]
