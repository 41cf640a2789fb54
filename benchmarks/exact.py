"""``exact`` on 100 to 300 groups at a minute: against every heuristic and annealing as long.

Run from the root of the tree: ``python benchmarks/exact.py RESULTS.jsonl [SECONDS]``. One JSON line
a problem is appended; problems that are there already are left out, so it resumes.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import gnnplace
from gnnplace.bench.suite import read_suite
from gnnplace.errors import GnnplaceError
from gnnplace.placers import SearchSpace
from gnnplace.problem import Problem

CHOSEN = (
    ("small", 0),
    ("small", 20),
    ("small", 40),
    ("small", 42),
    ("small", 43),
    ("small", 45),
    ("real", 1),
    ("real", 9),
)
HEURISTICS = [
    "single",
    "contiguous",
    "interleaved",
    "expert",
    "heft",
    "heft-contention",
    "etf",
    "m-topo",
    "m-sct",
    "min-cut",
    "round-robin",
]
WHOLE = 5.0  # seconds that a construction may go on improving


def row(key: str, problem: Problem, seconds: float) -> dict[str, object]:
    space = SearchSpace(problem)
    found = {name: _step(problem, name, WHOLE, space) for name in HEURISTICS}
    best = min(found, key=lambda name: found[name])
    begin = time.perf_counter()
    exact = gnnplace.place(problem, placer="exact", budget=seconds, space=space)
    return {
        "problem": key,
        "ops": problem.num_ops,
        "units": problem.num_units,
        "devices": problem.num_devices,
        "heuristic": best,
        "heuristic_step": found[best],
        "annealing_step": _step(problem, "annealing", seconds, space),
        "exact_step": exact.step_time,
        "exact_bound": exact.lower_bound,
        "exact_gap": exact.gap,
        "exact_note": exact.note,
        "exact_seconds": exact.seconds,
        "budget": seconds,
        "wall": time.perf_counter() - begin,
    }


def _step(problem: Problem, name: str, budget: float, space: SearchSpace) -> float:
    try:
        return gnnplace.place(
            problem, placer=name, budget=budget, space=space
        ).step_time
    except GnnplaceError:
        return float("inf")


def main(path: str, seconds: str = "60") -> None:
    file = Path(path)
    text = file.read_text() if file.exists() else ""
    done = {json.loads(line)["problem"] for line in text.splitlines()}
    gnnplace.warm([*HEURISTICS, "annealing", "exact"])
    for suite, index in CHOSEN:
        entry = read_suite(f"benchmarks/suites/{suite}.yaml").problems[index]
        if entry.key not in done:
            line = json.dumps(row(entry.key, entry.load(), float(seconds)))
            with file.open("a") as out:
                out.write(line + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
