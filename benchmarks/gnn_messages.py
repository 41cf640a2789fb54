"""Do rounds of messages pay? Networks trained alike, with and without them, in a family and out.

Each network, given as ``name=folder``, gives the graphs of odd number of each of the paper's three
families one greedy decode (200 groups and whole, on NVLink and on one bus): as it is, and trained
further on the family's graphs of even number, on the same clusters (``--steps`` steps of four
problems). Predicted step times; lines are kept and not repeated. The table has them over one
device's and over the first network's, with 95 % bootstrap intervals over graphs.

    python benchmarks/gnn_messages.py run results.jsonl NAME=FOLDER... [--seeds 0] [--steps 400]
    python benchmarks/gnn_messages.py table results.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from paired import Line, known

from benchmarks.studies.orders.networks import BATCH, OWN_GROUPS, SMALL, fitted
from gnnplace.bench.rows import provenance
from gnnplace.bench.statistics import geometric_interval
from gnnplace.placers import Placer, SearchSpace
from gnnplace.placing.roster import make_placer
from gnnplace.policy.gnn.network import read_gnn
from gnnplace.policy.gnn.placer import GnnPlacer
from gnnplace.problem import Problem
from gnnplace.problem.cluster.presets import make_preset
from gnnplace.train.data.datasets import dataset_problem, find_dataset
from gnnplace.train.one_problem import FewProblems
from gnnplace.train.reinforce import Reinforce

FAMILIES = ("searched-cnn", "searched-rnn", "nmt")
CLUSTERS, WHOLE = ("nvlink-v100-4", "pcie-v100-4"), 0
AS_IT_IS, OWN = "as it is", "trained on the family"
RIVALS = ("single", "min-cut", "heft", "portfolio", "learned")


def problems(family: str, first: int, sizes: tuple[int, ...]) -> dict[str, Problem]:
    """Every second graph of a family from the first on, in some sizes, on both clusters."""
    store = find_dataset(family, Path(__file__).parents[1])
    return {
        f"{name} {groups or 'whole'} {cluster}": dataset_problem(
            store.graph(name), make_preset(cluster), groups=groups or None
        )
        for cluster in CLUSTERS
        for groups in sizes
        for name in store.names[first::2]
    }


def as_it_is(folder: str) -> Placer:
    """A network."""
    return GnnPlacer(read_gnn(folder))


def trained(folder: str, family: str, steps: int, seed: int) -> Placer:
    """A network after more steps on a family's graphs of even number."""
    layers, start = len(read_gnn(folder).encoder.layers), folder
    module = Reinforce(
        layers=layers, steps=steps, start=start, learning_rate=5e-4, **SMALL
    )
    learned_from = list(problems(family, 0, OWN_GROUPS).values())
    np.random.default_rng(seed).shuffle(learned_from)
    return GnnPlacer(
        fitted(module, FewProblems(learned_from, steps, BATCH), steps, seed)
    )


def run(path: Path, networks: dict[str, str], seeds: list[int], steps: int) -> None:
    """Adds a line for each network, family, part and seed that the file lacks."""
    torch.set_num_threads(1)
    done = {
        (line["network"], line["family"], line["part"], line["seed"])
        for line in known(path)
    }
    for family in FAMILIES:
        spaces = {
            k: SearchSpace(p) for k, p in problems(family, 1, (200, WHOLE)).items()
        }
        placers: dict[tuple[str, str, int], Callable[[], Placer]] = {
            (name, AS_IT_IS, 0): partial(make_placer, name) for name in RIVALS
        }
        for name, folder in networks.items():
            placers[name, AS_IT_IS, 0] = partial(as_it_is, folder)
            for seed in seeds:
                placers[name, OWN, seed] = partial(trained, folder, family, steps, seed)
        for (name, part, seed), make in placers.items():
            if (name, family, part, seed) in done:
                continue
            placer = make()
            found = {
                key: float(f"{placer.place(space.problem, space=space).step_time:.6g}")
                for key, space in spaces.items()
            }
            line: Line = {"network": name, "family": family, "part": part, "seed": seed}
            line |= {"steps": steps if part == OWN else 0, "found": found}
            with open(path, "a") as file:
                file.write(json.dumps(line | provenance()) + "\n")


def table(lines: list[Line]) -> None:
    """Prints step times over one device's and over the first network's, by cluster and size."""
    names = list(dict.fromkeys(line["network"] for line in lines))
    first = next(name for name in names if name not in RIVALS)
    single = _seconds(lines, "single", AS_IT_IS)
    for cluster in CLUSTERS:
        for size in ("200", "whole"):
            keys = [key for key in single if key.endswith(f"{size} {cluster}")]
            print(f"\n{cluster}, {size}: {len(keys)} graphs\n")
            print(
                "| network | part |",
                " | ".join((*FAMILIES, "all")),
                f"| over {first} |",
            )
            print("|---|---|" + "---:|" * (len(FAMILIES) + 2))
            for part in (AS_IT_IS, OWN):
                base = _seconds(lines, first, part)
                for name in names:
                    mine = _seconds(lines, name, part)
                    if mine:
                        _print(name, part, keys, mine, single, base)


def _print(
    name: str,
    part: str,
    keys: list[str],
    mine: dict[str, float],
    single: dict[str, float],
    base: dict[str, float],
) -> None:
    cells = [
        np.exp(
            np.mean([np.log(mine[k] / single[k]) for k in keys if k.startswith(family)])
        )
        for family in (*FAMILIES, "")
    ]
    interval = geometric_interval([mine[k] / base[k] for k in keys])
    assert interval is not None
    said = f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
    print(
        f"| {name} | {part} |",
        " | ".join(f"{cell:.3f}" for cell in cells),
        f"| {said} |",
    )


def _seconds(lines: list[Line], name: str, part: str) -> dict[str, float]:
    """Seconds of each problem, the geometric mean over seeds."""
    mine = [
        line["found"]
        for line in lines
        if (line["network"], line["part"]) == (name, part)
    ]
    keys = dict.fromkeys(key for found in mine for key in found)
    return {
        key: float(
            np.exp(np.mean([np.log(found[key]) for found in mine if key in found]))
        )
        for key in keys
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("file", type=Path)
    parser.add_argument("networks", nargs="*", help="name=folder")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    if args.command == "table":
        table(known(args.file))
        return
    networks = dict(given.split("=", 1) for given in args.networks)
    run(args.file, networks, [int(seed) for seed in args.seeds.split(",")], args.steps)


if __name__ == "__main__":
    main()
