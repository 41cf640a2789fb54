"""What grouping ops costs: the best step time found with groups over the best without.

Placements of the grouped problem are carried over to the full graph (members follow their group,
groups in their order) and simulated there, so both numbers are step times of the same problem.

    python benchmarks/coarsening.py [--models ...] [--cluster cpu:2] [--budget 5] > table.md
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from gnnplace import api, profiling
from gnnplace.placers import SearchSpace
from gnnplace.simulation import Simulator

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
        simulator.step_time(device, follow), simulator.step_time(device, simulator.complete(device))
    )


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--cluster", default="cpu:2")
    parser.add_argument("--budget", type=float, default=5.0)
    arguments = parser.parse_args()
    cluster = api.resolve_cluster(arguments.cluster)
    print(f"| model | ops | {' | '.join(f'{s} groups' for s in SIZES)} |")
    print("|---|---|" + "---|" * len(SIZES))
    for name in arguments.models.split(","):
        program = api.capture(name)
        full = profiling.profile(program, cluster, coarsen=False)
        best = place(full, arguments.budget).step_time
        cells = []
        for size in SIZES:
            coarse = profiling.profile(program, cluster, groups=size)
            result = place(coarse, arguments.budget)
            seconds = carried_over(full, coarse, result)
            cells.append(f"{seconds / best:.3f} ({coarse.num_ops})")
        print(f"| {name} | {full.num_ops} | {' | '.join(cells)} |")
        sys.stdout.flush()


def place(problem, budget):
    """The portfolio with annealing within ``budget`` seconds."""
    space = SearchSpace(problem)
    return api.place(problem, placer="portfolio", budget=budget, space=space)


if __name__ == "__main__":
    main()
