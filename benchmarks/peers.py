"""Peers: their published figures as a table, and a public package's placements side by side.

    python benchmarks/peers.py table > benchmarks/peers.md     from peers.yaml
    python benchmarks/peers.py accelerate gpt2 bert --cluster pcie-a100-4 [--budget 1]

``accelerate`` places modules by Hugging Face accelerate's ``infer_auto_device_map`` on devices that
may each hold a fair share of the parameters (what ``device_map="balanced"`` does), and scores that
with our simulator beside our placers; it needs ``pip install accelerate``. ``pymetis`` is a peer
that is always there: the placer ``min-cut``.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from gnnplace import api
from gnnplace.placers import SearchSpace
from gnnplace.problem import Problem

FILE = Path(__file__).parent / "peers.yaml"
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
HEADROOM = 1.1  # over a fair share: modules cannot be cut


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
        "Written by `python benchmarks/peers.py table` from `peers.yaml`. Figures of others, on",
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
    ]
    return "\n".join(lines) + "\n"


def device_map(module: Any, num_devices: int) -> dict[str, int]:
    """Accelerate's device of each module, by name."""
    from accelerate import infer_auto_device_map

    total = sum(p.numel() * p.element_size() for p in module.parameters())
    share = int(HEADROOM * total / num_devices)
    largest = max(_bytes(child) for child in module.modules() if not list(child.children()))
    # The last device takes what modules that cannot be cut leave over.
    room = dict.fromkeys(range(num_devices), max(share, largest)) | {num_devices - 1: 2 * total}
    found = infer_auto_device_map(module, max_memory=room)
    return {name: int(device) for name, device in found.items()}


def _bytes(module: Any) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


def on_devices(problem: Problem, by_module: dict[str, int]) -> np.ndarray:
    """Device of each op: that of the longest module name its own begins with, by units. [n]

    A unit goes where most of its ops go; ops of no module go with their unit or to device 0.
    """
    votes: list[Counter[int]] = [Counter() for _ in range(problem.num_units)]
    for unit, module in zip(problem.unit_of.tolist(), problem.module, strict=True):
        found = _device_of(module or "", by_module)
        if found is not None:
            votes[unit][found] += 1
    chosen = [vote.most_common(1)[0][0] if vote else 0 for vote in votes]
    return np.array(chosen, dtype=np.int32)[problem.unit_of]


def _device_of(module: str, by_module: dict[str, int]) -> int | None:
    parts = module.split(".")
    for length in range(len(parts), -1, -1):
        name = ".".join(parts[:length])
        if name in by_module:
            return by_module[name]
    return None


def accelerate(models: list[str], cluster: str, budget: float) -> None:
    """Prints step times over the best of each model, a line a placer."""
    from gnnplace import tracing

    for model in models:
        problem = api.profile(model, cluster)
        space = SearchSpace(problem)
        module = tracing.load(model, share=1, fake=False).model
        device = on_devices(problem, device_map(module, problem.num_devices))
        times = {"accelerate": space.sequence(device)[0]}
        for name in RIVALS:
            times[name] = api.place(problem, placer=name, budget=budget).step_time
        least = min(times.values())
        print(
            f"{model} on {cluster}, {problem.num_ops} ops; the best takes {least:.4g} s predicted"
        )
        for name, seconds in sorted(times.items(), key=lambda item: item[1]):
            print(f"  {name:12} {seconds / least:.3f}")


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
