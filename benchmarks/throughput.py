"""The throughput objective on PipeDream's profiles: contiguous splits, the search, the bound.

Run from the root of the tree: ``python benchmarks/throughput.py PROFILES OUT.jsonl [SECONDS]``,
where PROFILES is a folder of PipeDream profiles (not part of this project). One JSON line a profile
and cluster; those that are there already are left out.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import gnnplace
from gnnplace.errors import InfeasibleError
from gnnplace.placers import SearchSpace
from gnnplace.placers.throughput import ThroughputResult, with_interval
from gnnplace.placers.throughput.ideals import ideals_of, make_blocks
from gnnplace.placers.throughput.placer import MOST_IDEALS
from gnnplace.problem import Problem

CLUSTERS = ("pcie-v100-4", "two-tier-v100-2x4")


def row(key: str, problem: Problem, seconds: float) -> dict[str, object]:
    space = SearchSpace(problem)
    ideals = ideals_of(make_blocks(space), MOST_IDEALS)
    begin = time.thread_time()
    split = _found(problem, space, "contiguous", seconds)
    spent = time.thread_time() - begin
    found = _found(problem, space, "best", seconds)
    return {
        "problem": key,
        "units": problem.num_units,
        "ideals": None if ideals is None else len(ideals.offset) - 1,
        "single": _interval(problem, space, "single", 0.0),
        "portfolio": _interval(problem, space, "portfolio", seconds),
        "contiguous": split.interval,
        "contiguous_cpu_seconds": spent,
        "contiguous_proven": "proven" in split.note,
        "interval": found.interval,
        "bound": found.interval_bound,
        "budget": seconds,
    }


def _interval(problem: Problem, space: SearchSpace, placer: str, seconds: float) -> float | None:
    """What the placement of a placer for step time comes to; None if it finds none."""
    try:
        found = gnnplace.place(problem, placer=placer, budget=seconds, space=space)
    except InfeasibleError:
        return None
    return with_interval(space, found).interval


def _found(problem: Problem, space: SearchSpace, placer: str, seconds: float) -> ThroughputResult:
    result = gnnplace.place(
        problem, placer=placer, budget=seconds, objective=gnnplace.THROUGHPUT, space=space
    )
    assert isinstance(result, ThroughputResult)
    return result


def main(profiles: str, out: str, seconds: str = "10") -> None:
    file = Path(out)
    text = file.read_text() if file.exists() else ""
    done = {json.loads(line)["problem"] for line in text.splitlines()}
    gnnplace.warm(["best", "contiguous"], gnnplace.THROUGHPUT)
    gnnplace.warm(["single", "portfolio"])
    for profile in sorted(Path(profiles).glob("*.txt")):
        if profile.stem == "LICENSE":
            continue
        for cluster in CLUSTERS:
            key = f"{profile.stem} {cluster}"
            if key not in done:
                problem = gnnplace.convert(profile, "pipedream", gnnplace.resolve_cluster(cluster))
                line = json.dumps(row(key, problem, float(seconds)))
                with file.open("a") as lines:
                    lines.write(line + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
