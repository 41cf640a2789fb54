"""CPU milliseconds of everything around a search, by part and size of the problem.

What ``Placer.place`` and the policy do before the first decode and after the last: compiled
arrays, placement units, orders, the walk and its features, then simulation, bounds, placement. All
are recomputed on a fresh problem; code is compiled before. The least of a few rounds is shown.

    python benchmarks/preparation.py [--largest 100000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gnnplace.graph import ComputationGraph
from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.aims import DECODED
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.policy.gnn.clusters import build_clusters
from gnnplace.policy.gnn.features import message_features, static_features
from gnnplace.problem import Problem
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.simulation import finish_placement, lower_bound
from gnnplace.train.data.random_families import RandomDraws, random_problem

UNITS = (
    "work",
    "mean_work",
    "unit_order",
    "unit_edges",
    "unit_ops",
    "memory_matters",
    "penalty",
)


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--largest", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    parts(problem(40, 2))
    shown = False
    for ops, devices, microbatches in (
        (150, 4, 1),
        (300, 8, 1),
        (1_000, 4, 1),
        (1_000, 4, 8),
        (10_000, 8, 1),
        (100_000, 64, 1),
    ):
        if ops <= arguments.largest:
            whole = with_microbatches(problem(ops, devices), microbatches)
            rounds = [parts(fresh(whole)) for _ in range(arguments.rounds)]
            least = {name: min(r[name] for r in rounds) for name in rounds[0]}
            if not shown:
                print(f"| ops | devices | {' | '.join(least)} | total | peak MB |")
                print("|" + "---|" * (len(least) + 4))
                shown = True
            report(whole, least)


def problem(ops: int, devices: int) -> Problem:
    """A training step of about ``ops`` ops on a two-tier cluster."""
    return random_problem(
        "inception",
        1,
        RandomDraws(
            ops=(ops, ops),
            devices=(devices, devices),
            clusters=("two-tier",),
            microbatches=(1,),
        ),
    )


def fresh(old: Problem) -> Problem:
    """The same problem with nothing derived from it yet."""
    g = old.graph
    arrays = (g.producer, g.size, g.consumer_offset, g.consumer)
    return replace(old, graph=ComputationGraph(g.names, *(a.copy() for a in arrays)))


def parts(whole: Problem) -> dict[str, float]:
    """Milliseconds of each part."""
    space, walk = SearchSpace.__new__(SearchSpace), WalkGraph.__new__(WalkGraph)
    device = np.zeros(whole.num_ops, np.int32)
    order = whole.graph.topological_order
    steps: dict[str, Callable[[], object]] = {
        "compile": lambda: (space.__init__(whole), space.check_possible()),  # type: ignore[misc]
        "units": lambda: [getattr(space, name) for name in UNITS],
        "priorities": lambda: (space.priorities, space.turn_order),
        "walk": lambda: (walk.__init__(space), walk.forward, walk.backward),  # type: ignore[misc]
        "walk units": lambda: (walk.unit_order, walk.place),
        "orders": lambda: [walk.order(name) for name in DECODED],
        "clusters": lambda: build_clusters(walk),
        "features": lambda: (
            static_features(walk, build_clusters(walk)),
            message_features(walk),
        ),
        "simulate": lambda: space.simulator.run(device, order),
        "bounds": lambda: lower_bound(whole),
        "placement": lambda: finish_placement(whole, device, order),
    }
    result = {}
    for name, step in steps.items():
        begin = time.process_time()
        step()
        result[name] = 1e3 * (time.process_time() - begin)
    return result


def report(whole: Problem, least: dict[str, float]) -> None:
    """One row."""
    name = f"{whole.num_ops:,}" + (
        f" ({whole.microbatches} mb)" * (whole.microbatches > 1)
    )
    cells = " | ".join(f"{value:.2f}" for value in least.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    total = f"{sum(least.values()):.1f}"
    print(
        f"| {name} | {whole.num_devices} | {cells} | {total} | {peak:.0f} |", flush=True
    )


if __name__ == "__main__":
    main()
