"""What benchmarks of learned parts share: kept lines, paired intervals, networks to compare."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnnplace.policy.gnn.network import GNN_CHECKPOINT, GnnPolicy, read_gnn

DRAWS = 2000  # of the bootstrap
TWINS = {
    "twin with messages": "messages",
    "twin without": "none",
}  # in trainers/gnn/twins
Line = dict[str, Any]


def known(path: Path) -> list[Line]:
    """Lines of a file, none where there is no file."""
    return (
        [json.loads(line) for line in path.read_text().splitlines()]
        if path.exists()
        else []
    )


def interval(pairs: list[tuple[Line, Line]], seconds: Callable[[Line], Any]) -> str:
    """Mean of the logarithm of the ratio in percent, its interval, and the worst problem's.

    Args:
        pairs: two lines of one problem and seed each; those without seconds are left out.
        seconds: what is compared.
    """
    by_problem: dict[str, list[float]] = {}
    for one, other in pairs:
        if seconds(one) and seconds(other):
            ratio = float(np.log(seconds(one) / seconds(other)))
            by_problem.setdefault(one["problem"], []).append(ratio)
    if not by_problem:
        return "–"
    means = 100 * np.array([np.mean(values) for values in by_problem.values()])
    rng = np.random.default_rng(0)
    drawn = [rng.choice(means, len(means)).mean() for _ in range(DRAWS)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return (
        f"{means.mean():+.2f} % ({low:+.2f} to {high:+.2f}; worst {means.max():+.1f})"
    )


def twin(name: str) -> GnnPolicy:
    """One of two networks trained alike, with three rounds of messages and with none."""
    return read_gnn(
        Path(__file__).parents[1] / "trainers" / "gnn" / "twins" / TWINS[name]
    )


def shuffled(folder: Path = GNN_CHECKPOINT) -> GnnPolicy:
    """The network of a folder with the weights of each array in another order."""
    network = read_gnn(folder)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            flat = parameter.flatten()
            parameter.copy_(flat[torch.randperm(len(flat))].view_as(parameter))
    return network
