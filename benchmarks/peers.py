"""Peers: their published figures as a table, and a public package's placements side by side.

    python benchmarks/peers.py table > benchmarks/peers.md     from peers.yaml and rivals/tried.md
    python benchmarks/peers.py accelerate gpt2 bert --cluster pcie-a100-4 [--budget 1]

``accelerate`` places modules as Hugging Face accelerate's ``device_map="balanced"`` does and scores
that with our simulator beside our placers; it needs ``pip install 'gnnplace[peers]'``. What it
balances is memory for inference: bytes of parameters, in the order of the modules. Its map is not
repaired where it does not fit. ``pymetis`` is a peer that is always there: the placer ``min-cut``.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from torch import nn

import gnnplace
from gnnplace.errors import InfeasibleError
from gnnplace.placers.search.space import SearchSpace
from gnnplace.problem import Problem
from gnnplace.tracing.loading import load

FILE = Path(__file__).parent / "peers.yaml"
RIVALS_BY_THEIR_CODE = Path(__file__).parent / "rivals" / "tried.md"
KEYS = ("who", "what", "figure", "source")
RIVALS = (
    "single",
    "contiguous",
    "expert",
    "min-cut",
    "heft",
    "etf",
    "portfolio",
    "learned",
    "best",
)


def figures(path: Path = FILE) -> list[dict[str, str]]:
    """The published figures: each says who, what, the figure and where it stands."""
    rows = yaml.safe_load(path.read_text(encoding="utf-8"))
    for number, row in enumerate(rows, 1):
        if set(row) != set(KEYS) or not all(isinstance(row[key], str) for key in KEYS):
            raise ValueError(f"{path}: row {number}: give {', '.join(KEYS)} as text")
    return rows


def table(rows: list[dict[str, str]]) -> str:
    """The figures as Markdown."""
    lines = [
        "# What peers published",
        "",
        "Written by `python benchmarks/peers.py table` from `peers.yaml` and, at the",
        "end, `rivals/tried.md`. Figures of others, on",
        "their machines, with their graphs and cost models: they stand apart from our tables and",
        "are not comparable with them, or with each other.",
        "",
        f"| {' | '.join(KEYS)} |",
        "|" + "---|" * len(KEYS),
        *(f"| {' | '.join(row[key] for key in KEYS)} |" for row in rows),
        "",
        "Peers that run here, on our problems and in our simulator: `pymetis` as the placer",
        "`min-cut`, in every suite; Hugging Face accelerate's device maps by",
        "`python benchmarks/peers.py accelerate gpt2 bert --cluster pcie-a100-4`.",
        "",
    ]
    return "\n".join(lines) + "\n" + RIVALS_BY_THEIR_CODE.read_text(encoding="utf-8")


def accelerate(models: list[str], cluster: str, budget: float) -> None:
    """Prints step times over the best of each model, a line a placer."""
    for model in models:
        problem = gnnplace.profile(model, cluster)
        times = {"accelerate": balanced_time(load(model, fake=True).model, problem)}
        for name in RIVALS:
            times[name] = gnnplace.place(problem, placer=name, budget=budget).step_time
        least = min(times.values())
        print(
            f"{model} on {cluster}, {problem.num_ops} ops; the best takes {least:.4g} s predicted"
        )
        for name, seconds in sorted(times.items(), key=lambda item: item[1]):
            print(f"  {name:12} {seconds / least:.3f}")


def balanced_time(module: nn.Module, problem: Problem) -> float:
    """Predicted seconds of a step on accelerate's map of the model; inf where it does not fit."""
    room = {
        i: device.memory - device.reserve
        for i, device in enumerate(problem.cluster.devices)
    }
    try:
        device = on_devices(problem, balanced_map(module, room))
    except InfeasibleError:
        return np.inf
    space = SearchSpace(problem)
    simulation = space.simulator.run(device, space.sequence(device)[1])
    return simulation.step_time if simulation.feasible else np.inf


def balanced_map(module: nn.Module, room: Mapping[int, float]) -> dict[str, int]:
    """Accelerate's device of each module, by name; devices are as GPUs with ``room`` bytes each.

    Raises:
        InfeasibleError: accelerate would keep modules on disk; names one.
    """
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    whole: Any = list(getattr(module, "_no_split_modules", None) or [])
    most: Any = {index: int(size) for index, size in room.items()}
    most = get_balanced_memory(module, max_memory=most, no_split_module_classes=whole)
    found = infer_auto_device_map(
        module, max_memory=most, no_split_module_classes=whole
    )
    for name, device in found.items():
        if not isinstance(device, int):
            raise InfeasibleError(f"accelerate would keep module {name!r} on {device}")
    return {name: int(device) for name, device in found.items()}


def on_devices(problem: Problem, by_module: Mapping[str, int]) -> NDArray[np.int32]:
    """Device of each op: that of the longest module name its own begins with, by units. [n]

    An op of no such module runs where its first input is made, as under accelerate's hooks. A unit
    goes where most of its ops go.
    """
    graph = problem.graph
    chosen = [_device_of(module or "", by_module) for module in problem.module]
    votes: list[Counter[int]] = [Counter() for _ in range(problem.num_units)]
    for op in graph.topological_order.tolist():
        if chosen[op] is None:
            before = (chosen[p] for p in graph.predecessors(op).tolist())
            chosen[op] = next((device for device in before if device is not None), None)
        if (device := chosen[op]) is not None:
            votes[problem.unit_of[op]][device] += 1
    most = [vote.most_common(1)[0][0] if vote else 0 for vote in votes]
    return np.array(most, dtype=np.int32)[problem.unit_of]


def _device_of(module: str, by_module: Mapping[str, int]) -> int | None:
    parts = module.split(".")
    around = (".".join(parts[:length]) for length in range(len(parts), -1, -1))
    return next((by_module[name] for name in around if name in by_module), None)


def main() -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("table", "accelerate"))
    parser.add_argument("models", nargs="*", default=["gpt2", "bert"])
    parser.add_argument("--cluster", default="pcie-a100-4")
    parser.add_argument("--budget", type=float, default=1.0)
    arguments = parser.parse_args()
    if arguments.what == "table":
        sys.stdout.write(table(figures()))
    else:
        accelerate(arguments.models, arguments.cluster, arguments.budget)


if __name__ == "__main__":
    main()
