"""What each part of the GNN's training is worth: short trainings that lack one of them.

Every network is trained from random weights as the order study trains one (upward rank, 1,200 steps
of four problems of training families, the same ones with the same seed), and gives the problems of
validation families one greedy decode each (``gnn_validation``). Lines are kept and not repeated.

    python benchmarks/gnn_ablations.py run results.jsonl [--seeds 0,1]
    python benchmarks/gnn_ablations.py table results.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from gnn_validation import captured, drawn, logs
from paired import Line, known

from benchmarks.studies.orders.networks import BATCH, SMALL, fitted, training_data
from gnnplace.bench.rows import provenance
from gnnplace.placing.roster import make_placer
from gnnplace.policy.decode.kernels import NUM_DYNAMIC
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.policy.gnn import decoder
from gnnplace.policy.gnn.clusters import NUM_CANDIDATE, Clusters
from gnnplace.policy.gnn.decoder import DeviceCount
from gnnplace.policy.gnn.encoder import EncoderInputs
from gnnplace.policy.gnn.features import CLUSTER, STATIC
from gnnplace.policy.gnn.network import GnnPolicy, make_tensors
from gnnplace.policy.gnn.placer import GnnPlacer
from gnnplace.train import reinforce
from gnnplace.train.data.captured import VALIDATION
from gnnplace.train.reinforce import Reinforce

STEPS = 1_200
ALL_DEVICES = "the number of devices"
BY_HAND = "features of the graph"
NEITHER = "features of the graph and messages"
MADE_BY_HAND = (  # of an op, from the whole graph
    *("level from the sources", "level from the sinks", "downward rank", "upward rank"),
    *("slack", "work before", "place"),
)
WITHOUT: dict[str, dict[str, Any]] = {
    "all parts": {},
    ALL_DEVICES: {},
    "rounds of messages": {"layers": 0},
    BY_HAND: {},
    NEITHER: {"layers": 0},
    "moves of labels": {"moves": 0},
    "draws by cluster": {"shared": 0},
    "the greedy decode's advantage": {"greedy": 0.0},
    "policy gradient": {"gradient": 0.0},
    "labels": {"label": 0.0},
}


@contextmanager
def always_all_devices() -> Iterator[None]:
    """The network uses all devices, and draws may use them as they like."""
    with (
        patch.object(DeviceCount, "choice", lambda self, states, devices: devices),
        patch.object(reinforce, "list_device_limits", lambda devices: [1, devices]),
        patch.object(decoder, "list_device_limits", lambda devices: [1, devices]),
        patch.object(reinforce.Episodes, "alike", True),
        patch.object(reinforce, "unevenness", lambda *given: 1.0),
        patch("gnnplace.train.reinforce.unevenness", lambda *given: 1.0),
    ):
        yield


def inputs_without(graph: WalkGraph, found: Clusters) -> EncoderInputs:
    """What the encoder takes, but for what takes the whole graph to compute."""
    inputs = make_tensors(graph, found)
    inputs.x[:, [STATIC.index(name) for name in (*MADE_BY_HAND, *CLUSTER)]] = 0.0
    alone = torch.arange(len(inputs.x)).expand(inputs.clusters.shape)
    return inputs._replace(clusters=alone, bucket=torch.zeros_like(inputs.bucket))


@contextmanager
def nothing_by_hand() -> Iterator[None]:
    """Neither clusters nor ranks nor places are inputs; labels and the order of the walk stay."""
    with patch("gnnplace.policy.gnn.rollouts.make_tensors", inputs_without):
        yield


def without_clusters(module: Reinforce) -> None:
    """Has the decoder see nothing of what devices hold of clusters."""
    for policy in (module.policy, module.average):
        policy.decoder.first.data[NUM_DYNAMIC:] = 0.0
    seen = (torch.arange(NUM_CANDIDATE) < NUM_DYNAMIC)[:, None]
    module.policy.decoder.first.register_hook(lambda gradient: gradient * seen)


PATCHES = {
    ALL_DEVICES: always_all_devices,
    BY_HAND: nothing_by_hand,
    NEITHER: nothing_by_hand,
}


def network(name: str, seed: int) -> GnnPolicy:
    """What a training without a part makes."""
    torch.manual_seed(seed)
    module = Reinforce(steps=STEPS, **SMALL | WITHOUT[name])
    if PATCHES.get(name) is nothing_by_hand:
        without_clusters(module)
    return fitted(module, training_data(seed), STEPS, seed)


def run(path: Path, seeds: list[int], parts: list[str]) -> None:
    """Adds a line for each part and seed that the file lacks."""
    torch.set_num_threads(1)
    problems = captured(VALIDATION) | drawn()
    best = logs(make_placer("portfolio"), problems)
    done = {(line["without"], line["seed"]) for line in known(path)}
    for seed in seeds:
        for name in parts:
            if (name, seed) in done:
                continue
            with PATCHES.get(name, nullcontext)():
                found = logs(GnnPlacer(network(name, seed)), problems)
            over = {key: [float(x) for x in found[key] - best[key]] for key in problems}
            line = {
                "without": name,
                "seed": seed,
                "steps": STEPS,
                "batch": BATCH,
                "over": over,
            }
            with open(path, "a") as file:
                file.write(json.dumps(line | provenance()) + "\n")


def table(lines: list[Line]) -> None:
    """Prints step times over the best construction's by cluster, the mean of all seeds."""
    places = {"NVLink": "nvlink", "bus": "pcie", "random": "random", "all": ""}
    print("| without | seeds |", " | ".join(places), "|")
    print("|---|---:|" + "---:|" * len(places))
    for name in WITHOUT:
        mine = [line["over"] for line in lines if line["without"] == name]
        cells = [
            np.mean([np.mean(np.concatenate(_of(over, part))) for over in mine])
            for part in places.values()
            if mine
        ]
        print(
            f"| {name} | {len(mine)} |",
            " | ".join(f"{np.exp(c):.3f}" for c in cells),
            "|",
        )


def _of(over: dict[str, list[float]], part: str) -> list[list[float]]:
    return [values for key, values in over.items() if key.startswith(part)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--parts", default=",".join(WITHOUT), help="parts to leave out")
    args = parser.parse_args()
    if args.command == "run":
        run(
            args.file,
            [int(seed) for seed in args.seeds.split(",")],
            args.parts.split(","),
        )
    else:
        table(known(args.file))


if __name__ == "__main__":
    main()
