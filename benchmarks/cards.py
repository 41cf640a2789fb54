"""Writes the training cards of the checkpoints that come with the package, from their recipes.

    python -m benchmarks.cards

Training writes the card of a checkpoint itself (``gnnplace.train.learner``). The shipped
checkpoints are older than cards: theirs follow from ``trainers/default.yaml`` and from the stages
of ``trainers/gnn/stages.sh``. Hours are those that the checkpoints' README.md say.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from gnnplace.policy import Exposure, TrainingCard, write_card
from gnnplace.policy.gnn.network import GNN_CHECKPOINT as NETWORK
from gnnplace.policy.gnn.network import load_gnn
from gnnplace.policy.learned import load_policy
from gnnplace.policy.weights import POLICY_CHECKPOINT as POLICY
from gnnplace.train.data_module import ProblemDataModule

TRAINERS = Path(__file__).parents[1] / "trainers"
POLICY_HOURS, NETWORK_HOURS = (44 + 31) / 60, 2.5
ADDED_LATER = (
    "fractal",
    "highway",
    "speech",
    "tree_lstm",
)  # of `varied`, says stages.sh
NOTE = "Written from the recipes by benchmarks/cards.py: trained before training wrote cards."
Exposures = tuple[Exposure, Exposure]


def data_arguments(recipe: str) -> dict[str, Any]:
    """Return the arguments of the data module of a recipe in ``trainers``."""
    config = yaml.safe_load((TRAINERS / recipe).read_text(encoding="utf-8"))
    arguments: dict[str, Any] = config["data"]["init_args"]
    return arguments


def stages() -> list[dict[str, Any]]:
    """Return the data options of each stage of ``trainers/gnn/stages.sh``."""
    text = (
        (TRAINERS / "gnn" / "stages.sh")
        .read_text(encoding="utf-8")
        .replace("\\\n", " ")
    )
    result = []
    for line in text.splitlines():
        if line.startswith("stage ") and "--" in line:
            options = [
                word[7:].split("=", 1)
                for word in shlex.split(line)
                if "--data." in word
            ]
            result.append({name: yaml.safe_load(value) for name, value in options})
    return result


def exposures(arguments: Mapping[str, Any]) -> Exposures:
    """Return what a data module shows in training and in validation."""
    tuples = {k: tuple(v) if isinstance(v, list) else v for k, v in arguments.items()}
    trained, validated = ProblemDataModule(**tuples).exposures()
    return without(trained), without(validated)


def without(exposure: Exposure) -> Exposure:
    """Return an exposure without the families that were added after the training."""
    families = [family for family in exposure.families if family not in ADDED_LATER]
    graphs = {
        digest: name
        for digest, name in exposure.graphs.items()
        if not any(name.startswith(f"varied-{family}-") for family in ADDED_LATER)
    }
    return exposure.model_copy(update={"families": families, "graphs": graphs})


def main() -> int:
    """Write both cards."""
    trained, validated = exposures(data_arguments("default.yaml"))
    policy = load_policy()
    write_card(
        POLICY,
        TrainingCard(
            parameters=policy.decoder.size + policy.refiner.size,
            hours=POLICY_HOURS,
            trained=trained,
            validated=validated,
            note=NOTE,
        ),
    )
    base = data_arguments("gnn/pretrain.yaml")
    parts = [exposures(base | options) for options in stages()]
    write_card(
        NETWORK,
        TrainingCard(
            parameters=sum(p.numel() for p in load_gnn().parameters()),
            hours=NETWORK_HOURS,
            trained=reduce(Exposure.joined, (part[0] for part in parts)),
            validated=reduce(Exposure.joined, (part[1] for part in parts)),
            note=NOTE,
        ),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
