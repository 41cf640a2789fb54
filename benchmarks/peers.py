"""Peers: their published figures as a table, and a public package's placements side by side.

    python benchmarks/peers.py table > benchmarks/peers.md     from peers.yaml
    python benchmarks/peers.py accelerate gpt2 bert --cluster pcie-a100-4 [--budget 1]

``accelerate`` places modules as Hugging Face accelerate's ``device_map="balanced"`` does and scores
that with our simulator beside our placers; it needs ``pip install 'gnnplace[peers]'``, and
``gnnplace compare MODEL`` has the same row. ``pymetis`` is a peer that is always there: the placer
``min-cut``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import yaml

from gnnplace import api
from gnnplace.execution.devicemap.rival import NAME, accelerate_result

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


def accelerate(models: list[str], cluster: str, budget: float) -> None:
    """Prints step times over the best of each model, a line a placer."""
    for model in models:
        problem = api.profile(model, cluster)
        rival = accelerate_result(model, problem)
        times = {NAME: np.inf if isinstance(rival, tuple) else rival.step_time}
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
