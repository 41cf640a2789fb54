"""Does a recommendation beat what the learned placer does by itself? On problems of neither.

Problems are of families that were held out, with seeds of their own (not the study's, not those of
any suite). Each is placed by ``LearnedPlacer`` with budget 0, decodes and refinement: with its own
orders (``auto``), and with the orders that each tree chooses.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.policy.learned import LearnedPlacer
from gnnplace.studies.orders.problems import (
    CHECK_SEED,
    HELD_OUT,
    NETWORKS,
    SEARCHED,
    StudyProblem,
    graph_features,
    study_problems,
)
from gnnplace.studies.orders.tree import Tree

AUTO = "auto"
PARTS = (HELD_OUT, NETWORKS, SEARCHED)
EACH = 2


def check_problems(each: int = EACH) -> list[StudyProblem]:
    """The problems, always the same ones; ``each`` of a family on a type of cluster."""
    return [
        entry
        for i, part in enumerate(PARTS)
        for entry in study_problems(part, each=each, first_seed=CHECK_SEED + 10_000 * i)
    ]


def check(problems: list[StudyProblem], trees: Mapping[str, Tree]) -> dict[str, Any]:
    """Seconds of step time and of this thread of each way, problem by problem.

    Returns:
        ``families``, and by the name of each way (``AUTO`` and those of the trees) ``step_time``
        and ``seconds``; the first problem is placed once before, so that code is compiled.
    """
    found: dict[str, Any] = {"families": [entry.family for entry in problems]}
    ways = (AUTO, *trees)
    found |= {name: {"step_time": [], "seconds": []} for name in ways}
    for way in ways:
        _place(problems[0], trees.get(way))
    for entry in problems:
        for way in ways:
            step_time, seconds = _place(entry, trees.get(way))
            found[way]["step_time"].append(float(f"{step_time:.6g}"))
            found[way]["seconds"].append(round(seconds, 5))
    return found


def _place(entry: StudyProblem, tree: Tree | None) -> tuple[float, float]:
    """Step time, and seconds of this thread from the problem in memory on."""
    space, begin = SearchSpace(entry.problem), time.thread_time()
    orders = tree.choose(graph_features(WalkGraph(space))) if tree else None
    result = LearnedPlacer(orders=orders).place(entry.problem, space=space)
    return result.step_time, time.thread_time() - begin
