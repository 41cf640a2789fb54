"""Encoders of the GNN placer against each other: one family, the same processor seconds, seeds.

Each encoder is trained from random weights for ``--seconds`` processor seconds on the graphs of
even number of a family, in two sizes on two clusters, and gives the graphs of odd number one greedy
decode each. The learning rate falls with the seconds that are used. Lines are kept and not
repeated; the table has step times over one device's (geometric means over graphs and seeds), and
over the package's encoder's, with 95 % bootstrap intervals over seeds and graphs.

    python benchmarks/gnn_encoders.py run results.jsonl [--seconds 60] [--seeds 3]
    python benchmarks/gnn_encoders.py table results.jsonl
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from gnn_messages import problems
from lightning import Callback, Trainer
from paired import DRAWS, known
from torch import nn
from torch_geometric.nn import GATv2Conv

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.bench.rows import provenance
from gnnplace.placers import SearchSpace
from gnnplace.placing.roster import make_placer
from gnnplace.policy.gnn.encoder import NullEncoder
from gnnplace.policy.gnn.placer import GnnPlacer
from gnnplace.policy.gnn.pyg import BothWays, Gine, Gps
from gnnplace.train.one_problem import FewProblems
from gnnplace.train.reinforce import Reinforce

FAMILY, SIZES = "searched-cnn", (120, 200)
ENCODERS: dict[str, Callable[[int], nn.Module] | None] = {
    "own": None,
    "GATv2": partial(BothWays, conv=partial(GATv2Conv, edge_dim=1)),
    "GINE": partial(BothWays, conv=Gine),
    "GPS": Gps,
    "null": NullEncoder,
}
RIVALS = ("single", "min-cut", "heft", "portfolio")
ENDLESS = 1_000_000  # steps of an epoch that only the time ends


class Timed(Reinforce):
    """``Reinforce`` whose learning rate falls with processor seconds."""

    allowed, begin = 60.0, 0.0

    def _share(self, step: int) -> float:
        used = (time.process_time() - self.begin) / self.allowed if step else 0.0
        return 0.1 + 0.45 * (1.0 + float(np.cos(np.pi * min(1.0, used))))


class Until(Callback):
    """Ends a training when its processor seconds are used."""

    def on_train_batch_end(
        self, trainer: Trainer, module: Timed, *given: object
    ) -> None:
        used = time.process_time() - module.begin
        trainer.should_stop = trainer.should_stop or used >= module.allowed


def trained(name: str, seed: int, seconds: float) -> tuple[GnnPlacer, int]:
    """A network of an encoder after so many processor seconds, and the steps that it had."""
    torch.manual_seed(seed)
    module = Timed(encoder=ENCODERS[name], samples=16, kept=6)
    module.allowed = seconds
    learned_from = list(problems(FAMILY, 0, SIZES).values())
    np.random.default_rng(seed).shuffle(learned_from)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=1,
            limit_val_batches=0,
            gradient_clip_val=1.0,
            logger=False,
            callbacks=[Until()],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        data = FewProblems(learned_from, ENDLESS, 4)
        data.setup("fit")
        module.begin = time.process_time()
        trainer.fit(module, datamodule=data)
    return GnnPlacer(module.average.eval()), trainer.global_step


def run(path: Path, seeds: int, seconds: float) -> None:
    """Adds a line for each encoder and seed that the file lacks, and one a rival."""
    torch.set_num_threads(1)
    done = {(line["encoder"], line["seed"]) for line in known(path)}
    spaces = {k: SearchSpace(p) for k, p in problems(FAMILY, 1, SIZES).items()}
    cells = [(name, 0) for name in RIVALS] + [
        (name, seed) for seed, name in product(range(seeds), ENCODERS)
    ]
    for name, seed in cells:
        if (name, seed) in done:
            continue
        trains = name in ENCODERS
        placer, steps = (
            trained(name, seed, seconds) if trains else (make_placer(name), 0)
        )
        found = {
            key: float(f"{placer.place(space.problem, space=space).step_time:.6g}")
            for key, space in spaces.items()
        }
        line = {"encoder": name, "family": FAMILY, "seed": seed, "steps": steps}
        line |= {"seconds": seconds if trains else 0.0, "found": found}
        with open(path, "a") as file:
            file.write(json.dumps(line | provenance()) + "\n")


def table(path: Path) -> None:
    """Prints step times over one device's and over the package's encoder's."""
    lines = known(path)
    keys = list(lines[0]["found"])
    names = list(dict.fromkeys(line["encoder"] for line in lines))
    logs = {
        name: np.array(
            [
                [np.log(x["found"][k]) for k in keys]
                for x in lines
                if x["encoder"] == name
            ]
        )
        for name in names
    }
    seeds = min(len(logs[name]) for name in ENCODERS)
    graph = np.unique([key.split()[0] for key in keys], return_inverse=True)[1]
    print("| encoder | steps | over one device | each seed | over the package's |")
    print("|---|---:|---:|---:|---:|")
    for name in names:
        rows, steps = (
            logs[name][:seeds],
            [x["steps"] for x in lines if x["encoder"] == name],
        )
        over = (rows - logs["single"]).mean(axis=1)
        mean, low, high = interval(rows - logs["own"][:seeds], graph)
        each = (
            ", ".join(f"{np.exp(one):.3f}" for one in over) if name in ENCODERS else ""
        )
        print(
            f"| {name} | {np.mean(steps):.0f} | {np.exp(over.mean()):.3f} | {each} | "
            f"{mean:.3f} [{low:.3f}, {high:.3f}] |"
        )


def interval(logs: FloatArray, graph: IntArray) -> tuple[float, float, float]:
    """Geometric mean, and 95 % bootstrap bounds over seeds and graphs, both drawn anew.

    Args:
        logs: logarithm of a ratio. [seeds, problems]
        graph: of each problem. [problems]
    """
    rng, (seeds, _) = np.random.default_rng(0), logs.shape
    means = np.stack(
        [logs[:, graph == g].mean(axis=1) for g in range(graph.max() + 1)], axis=1
    )
    rows = rng.integers(seeds, size=(DRAWS, seeds, 1))
    columns = rng.integers(means.shape[1], size=(DRAWS, 1, means.shape[1]))
    low, high = np.percentile(means[rows, columns].mean(axis=(1, 2)), [2.5, 97.5])
    return float(np.exp(means.mean())), float(np.exp(low)), float(np.exp(high))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    if args.command == "table":
        table(args.file)
    else:
        run(args.file, args.seeds, args.seconds)


if __name__ == "__main__":
    main()
