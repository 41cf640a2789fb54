"""Networks of ``--placer gnn`` on validation families: a network is chosen by these.

Captured graphs of the validation part in 200 groups and whole, on four V100 with NVLink and on one
bus, with one and four micro-batches, and random graphs of validation families; or, to see what a
network can fit, every third graph of the training part. With tight memory a device holds 1.3 fair
shares. One greedy decode each; predicted step times over those of one device (the best construction
where memory is tight), geometric means, then over the best construction's and min-cut's.

    python benchmarks/gnn_validation.py [--part train] [--memory tight] [FOLDER...]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from gnnplace.errors import InfeasibleError
from gnnplace.placers import Placer, SearchSpace
from gnnplace.placing.roster import make_placer
from gnnplace.policy.gnn.network import GNN_CHECKPOINT, read_gnn
from gnnplace.policy.gnn.placer import GnnPlacer
from gnnplace.problem.cluster.presets import make_preset
from gnnplace.train.data.captured import (
    AMPLE,
    MEMORY,
    TRAIN,
    VALIDATION,
    open_shipped_store,
)
from gnnplace.train.data.datasets import dataset_problem, find_dataset
from gnnplace.train.data.random_families import RandomDraws, random_problem

RIVALS = ("single", "min-cut", "heft", "portfolio", "learned")
CASES = ((200, 1), (200, 4), (0, 1))  # groups, 0 for none, and micro-batches
Problems = dict[str, list[SearchSpace]]


def captured(part: str, memory: str = AMPLE) -> Problems:
    """Captured graphs by cluster, size and micro-batches."""
    step, result = 3 if part == TRAIN else 1, Problems()
    for cluster in ("nvlink-v100-4", "pcie-v100-4"):
        for groups, copies in CASES:
            spaces = result[f"{cluster}, {groups or 'whole'}, {copies}"] = []
            for store in (open_shipped_store(), find_dataset("networks")):
                for name in list(store.part(part))[::step]:
                    made = dataset_problem(
                        store.graph(name),
                        make_preset(cluster),
                        microbatches=copies,
                        groups=groups or None,
                        memory=memory,
                    )
                    spaces.append(SearchSpace(made))
    return result


def drawn() -> Problems:
    """Random graphs of validation families on four devices, by cluster."""
    shape = {"ops": (60, 300), "devices": (4, 4), "microbatches": (1,)}
    return {
        f"random, {cluster}": [
            SearchSpace(
                random_problem(
                    family, 7000 + i, RandomDraws(clusters=(cluster,), **shape)
                )
            )
            for family in ("nas", "two-tower")
            for i in range(16)
        ]
        for cluster in ("own", "shared")
    }


def seconds(placer: Placer, space: SearchSpace) -> float:
    """Seconds a step of a placer's first answer; nan where it found none."""
    try:
        return placer.place(space.problem, space=space).step_time
    except InfeasibleError:
        return float("nan")


def logs(placer: Placer, problems: Problems) -> dict[str, np.ndarray]:
    """Log seconds of a placer's first answers, nan where there is none."""
    return {
        name: np.log([seconds(placer, space) for space in spaces])
        for name, spaces in problems.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=(VALIDATION, TRAIN), default=VALIDATION)
    parser.add_argument("--memory", choices=MEMORY, default=AMPLE)
    parser.add_argument("folders", nargs="*", default=[str(GNN_CHECKPOINT)])
    args = parser.parse_args()
    torch.set_num_threads(1)
    ample = args.memory == AMPLE
    problems = captured(args.part, args.memory)
    problems |= drawn() if ample and args.part == VALIDATION else {}
    found = {
        name: logs(make_placer(name), problems)
        for name in (RIVALS if ample else RIVALS[2:])
    }
    found |= {
        folder: logs(GnnPlacer(read_gnn(folder)), problems) for folder in args.folders
    }
    base, rivals = (
        ("single", ("portfolio", "min-cut")) if ample else ("portfolio", ("portfolio",))
    )
    print("| placer |", " | ".join(problems), end="")
    print(
        " | over", " | over ".join(f"`{rival}`" for rival in rivals), "| found none |"
    )
    print("|---|" + "---:|" * (len(problems) + len(rivals) + 1))
    for name, times in found.items():
        cells = [np.nanmean(times[key] - found[base][key]) for key in problems]
        for rival in rivals:
            ratios = np.concatenate([times[k] - found[rival][k] for k in problems])
            cells.append(np.nanmean(ratios))
        none = sum(np.isnan(values).sum() for values in times.values())
        print(
            f"| {name} |", " | ".join(f"{np.exp(c):.3f}" for c in cells), f"| {none} |"
        )


if __name__ == "__main__":
    main()
