"""What grouping ops costs: the best step time found with groups over the best without.

Placements of the grouped problem are carried over to the full graph (members follow their group,
groups in their order) and simulated there, so both numbers are step times of the same problem.

    python benchmarks/coarsening.py [--models ...] [--cluster cpu:2] [--budget 5] > table.md

With ``--microbatches`` the graphs are those of the store, on ``--clusters``, and a row compares
what ``learned`` finds in the same time on the whole graph alone, on the groups of
``coarse-annealing`` alone, and by its own rule, each as a step time of the whole graph:

    python benchmarks/coarsening.py --microbatches 1,4,8 --models bert-large,t5-small --budget 10
        [--processor] [--only-narrow] [--only-whole]
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

import gnnplace
from gnnplace.bench.suite import dataset_problem
from gnnplace.costs import profile
from gnnplace.placers import Found, SearchSpace
from gnnplace.placers.coarse_annealing import GROUPS, project_placement
from gnnplace.placers.search.coarse_problem import coarse_problem, narrow_problem
from gnnplace.policy.learned import LearnedPlacer
from gnnplace.simulation import Simulator
from gnnplace.simulation.list_scheduling import justify
from gnnplace.train.data.captured import open_shipped_store

MODELS = "two_tower,inception,seq2seq,moe,gpt2,bert,vit,small_resnet"
SIZES = (50, 100, 200, 400)


def carried_over(full, coarse, result) -> float:
    """Step time in the full graph of a placement of the grouped one."""
    member = {name: i for i, names in enumerate(coarse.members) for name in names}
    group = np.array([member[names[0]] for names in full.members])
    device = result.placement.device[group].astype(np.int32)
    order = result.simulation.order
    rank = np.empty(coarse.num_ops, dtype=np.int64)
    rank[order] = np.arange(coarse.num_ops)
    follow = np.lexsort((full.graph.position, rank[group])).astype(np.int32)
    simulator = Simulator(full)
    return min(
        simulator.step_time(device, follow),
        simulator.step_time(device, simulator.complete(device)),
    )


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--cluster", default="cpu:2")
    parser.add_argument("--budget", type=float, default=5.0)
    parser.add_argument("--microbatches", default="")
    parser.add_argument(
        "--clusters", default="nvlink-a100-8,pcie-v100-4,two-tier-h100-4x8"
    )
    parser.add_argument(
        "--processor", action="store_true", help="budgets of the processor's time"
    )
    parser.add_argument(
        "--only-narrow", action="store_true", help="rows of narrow groups"
    )
    parser.add_argument(
        "--only-whole", action="store_true", help="rows that it places whole"
    )
    arguments = parser.parse_args()
    if arguments.processor:
        time.perf_counter = time.process_time
        gnnplace.warm(["learned"])
    if arguments.microbatches:
        compare_groups(arguments)
        return
    cluster = gnnplace.resolve_cluster(arguments.cluster)
    print(f"| model | ops | {' | '.join(f'{s} groups' for s in SIZES)} |")
    print("|---|---|" + "---|" * len(SIZES))
    for name in arguments.models.split(","):
        program = gnnplace.capture(name)
        full = profile(program, cluster)
        best = place(full, arguments.budget).step_time
        cells = []
        for size in SIZES:
            coarse = profile(program, cluster, groups=size)
            result = place(coarse, arguments.budget)
            seconds = carried_over(full, coarse, result)
            cells.append(f"{seconds / best:.3f} ({coarse.num_ops})")
        print(f"| {name} | {full.num_ops} | {' | '.join(cells)} |")
        sys.stdout.flush()


def compare_groups(arguments) -> None:
    """Prints a Markdown table: a row for a graph, a cluster and a number of micro-batches."""
    print(
        "| graph | cluster | micro-batches | ops | rule | whole | groups | learned | lost |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name in arguments.models.split(","):
        for cluster in arguments.clusters.split(","):
            for count in map(int, arguments.microbatches.split(",")):
                cells = row(name, cluster, count, arguments)
                if cells:
                    print(f"| {name} | {cluster} | {count} | {cells} |", flush=True)


def row(name: str, cluster: str, count: int, arguments) -> str:
    """Milliseconds a step by each way, and what the rule's choice loses against the better one.

    Empty where only rows that the rule takes, or leaves, are wanted and this is none.
    """
    resolved = gnnplace.resolve_cluster(cluster)
    graph = open_shipped_store().graph(name)
    problem = dataset_problem(graph, resolved, microbatches=count, groups=None)
    space = SearchSpace(problem)
    rule = "whole" if narrow_problem(space) is None else "narrow"
    if (rule == "whole" and arguments.only_narrow) or (
        rule == "narrow" and arguments.only_whole
    ):
        return ""
    whole, groups, found = (
        way(space, arguments.budget) for way in (on_ops, on_groups, by_rule)
    )
    lost = found / min(whole, groups) - 1
    cells = " | ".join(f"{1e3 * seconds:.3f}" for seconds in (whole, groups, found))
    return f"{problem.num_ops} | {rule} | {cells} | {lost:+.1%}"


def on_ops(space: SearchSpace, budget: float) -> float:
    """Step time that the learned placer finds on the whole graph."""
    learned = LearnedPlacer(on_groups=False)
    return learned.place(space.problem, budget=budget, space=space).step_time


def on_groups(space: SearchSpace, budget: float) -> float:
    """Step time that it finds on the groups of ``coarse-annealing``, carried over."""
    begin = time.perf_counter()
    coarse = coarse_problem(
        space.problem, int(GROUPS * space.problem.microbatches**0.5)
    )
    if coarse is None:
        return on_ops(space, budget)
    left = max(0.1, budget - (time.perf_counter() - begin))
    result = LearnedPlacer(on_groups=False).place(coarse.problem, budget=left)
    found = Found(result.placement.device.astype(np.int32), result.simulation.order)
    fine = project_placement(space, coarse, found, 0.0)
    listed = justify(space.compiled, space.reversed, fine.device, fine.order)
    return min(space.score(fine.device, order) for order in (fine.order, listed))


def by_rule(space: SearchSpace, budget: float) -> float:
    """Step time that the learned placer finds by its own rule."""
    return LearnedPlacer().place(space.problem, budget=budget, space=space).step_time


def place(problem, budget):
    """The portfolio with annealing within ``budget`` seconds."""
    space = SearchSpace(problem)
    return gnnplace.place(problem, placer="portfolio", budget=budget, space=space)


if __name__ == "__main__":
    main()
