"""Where ``--placer gnn`` stands: one greedy decode on the three families it was not trained on.

Every graph of ``searched-cnn``, ``searched-rnn`` and ``nmt`` on four GPUs, grouped to 200 ops (as
suites have them) and whole; placers without a budget; predicted step times. Rows are kept, and a
run that was stopped goes on where it was.

    python benchmarks/gnn.py --rows benchmarks/results/gnn.jsonl -o benchmarks/results/gnn.md
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from paired import TWINS, shuffled, twin

from gnnplace.bench.rows import append, format_now, provenance, read_rows
from gnnplace.bench.statistics import Interval, geometric_interval
from gnnplace.files import write_text
from gnnplace.placers import Placer, SearchSpace
from gnnplace.placing.roster import make_placer
from gnnplace.policy.gnn.placer import GnnPlacer
from gnnplace.problem.cluster.presets import make_preset
from gnnplace.train.data.datasets import dataset_problem, find_dataset

FAMILIES = ("searched-cnn", "searched-rnn", "nmt")
CLUSTERS, GROUPS = ("nvlink-v100-4", "pcie-v100-4"), (200, 0)  # 0: whole
GNN, SHUFFLED = "gnn", "gnn, weights shuffled"
RIVALS = (
    "single",
    "round-robin",
    "min-cut",
    "expert",
    "etf",
    "heft",
    "portfolio",
    "learned",
)
NAMES = (*RIVALS, SHUFFLED, *TWINS, GNN)
FloatArray = NDArray[np.float64]


def placer(name: str) -> Placer:
    if name in TWINS:
        return GnnPlacer(twin(name))
    return GnnPlacer(shuffled()) if name == SHUFFLED else make_placer(name)


def row_of(family: str, graph: str, cluster: str, groups: int) -> dict[str, Any]:
    """Predicted seconds and seconds of placing of every placer on one problem."""
    captured = find_dataset(family, Path(__file__).parents[1]).graph(graph)
    problem = dataset_problem(captured, make_preset(cluster), groups=groups or None)
    space = SearchSpace(problem)
    found: dict[str, Any] = {"problem": graph, "placer": "", "seed": 0, "budget": 0.0}
    found |= {"family": family, "cluster": cluster}
    found |= {"groups": groups, "ops": problem.num_ops, "units": problem.num_units}
    for name in NAMES:
        result = placer(name).place(problem, space=space)
        found[name] = [float(f"{result.step_time:.6g}"), round(result.seconds, 4)]
    return found | {"when": format_now()} | provenance()


def run(path: Path) -> list[dict[str, Any]]:
    rows = read_rows(path)
    done = {(r["problem"], r["cluster"], r["groups"]) for r in rows}
    for cluster in CLUSTERS:
        for groups in GROUPS:
            for family in FAMILIES:
                for graph in find_dataset(family, Path(__file__).parents[1]).names:
                    if (graph, cluster, groups) not in done:
                        rows.append(row_of(family, graph, cluster, groups))
                        append(path, rows[-1])
    return rows


def seconds(rows: list[dict[str, Any]], name: str) -> FloatArray:
    return np.array([row[name][0] for row in rows])


def ratios(rows: list[dict[str, Any]], name: str, other: str) -> Interval | None:
    """Step times of one placer over another's, paired by graph."""
    return geometric_interval((seconds(rows, name) / seconds(rows, other)).tolist())


def shown(interval: Interval | None) -> str:
    assert interval is not None
    return f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def standings(rows: list[dict[str, Any]]) -> list[str]:
    """Step times over one device's, by family."""
    head = " | ".join(FAMILIES)
    lines = [
        f"| placer | {head} | all | seconds to place, median |",
        "|---|" + "---:|" * (len(FAMILIES) + 2),
    ]
    for name in NAMES:
        parts = [[r for r in rows if r["family"] == f] for f in FAMILIES] + [rows]
        cells = [shown(ratios(p, name, "single")) for p in parts]
        taken = np.median([row[name][1] for row in rows])
        lines.append(f"| `{name}` | {' | '.join(cells)} | {taken:.3f} |")
    return lines


def duels(rows: list[dict[str, Any]]) -> list[str]:
    """``gnn`` over each rival, paired by graph."""
    head = " | ".join(FAMILIES)
    lines = [
        f"| `gnn` over | {head} | all | shorter, equal, longer |",
        "|---|" + "---:|" * (len(FAMILIES) + 2),
    ]
    for name in NAMES[:-1]:
        parts = [[r for r in rows if r["family"] == f] for f in FAMILIES] + [rows]
        cells = [shown(ratios(p, GNN, name)) for p in parts]
        logs = np.log(seconds(rows, GNN) / seconds(rows, name))
        counts = [
            (logs < -1e-3).sum(),
            (np.abs(logs) <= 1e-3).sum(),
            (logs > 1e-3).sum(),
        ]
        lines.append(
            f"| `{name}` | {' | '.join(cells)} | {', '.join(map(str, counts))} |"
        )
    return lines


def report(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# The GNN placer on families that it was not trained on",
        "",
        "Written by `python benchmarks/gnn.py --rows benchmarks/results/gnn.jsonl -o "
        "benchmarks/results/gnn.md`.",
        "Predicted step times without a budget: `gnn` is one greedy decode, `learned` eight "
        "decodes and refinement,",
        "`portfolio` the best of all constructions. Geometric means with 95 % bootstrap intervals "
        "over graphs. One",
        "training of the network; seconds are of a core that others wanted too.",
    ]
    for cluster in CLUSTERS:
        for groups in GROUPS:
            mine = [r for r in rows if (r["cluster"], r["groups"]) == (cluster, groups)]
            if not mine:
                continue
            size = f"grouped to {groups} ops" if groups else "whole"
            lines += ["", f"## {cluster}, {size}: {len(mine)} graphs", ""]
            lines += ["Step time over that of one device.", "", *standings(mine)]
            lines += [
                "",
                "Paired by graph; below 1 the network is faster.",
                "",
                *duels(mine),
            ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    write_text(args.output, report(run(args.rows)))


if __name__ == "__main__":
    main()
