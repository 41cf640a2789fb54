"""The throughput objective on PipeDream's profiles: contiguous splits, the search, the bound.

What the package finds is held against two programmes that prove more and are too slow to ship: the
best contiguous split over all ideals (``throughput_ideals``), and a constraint programme of all
placements (``throughput_programme``), which begins where the search ended.

Run from the root of the tree: ``python -m benchmarks.throughput PROFILES OUT.jsonl [SECONDS]``,
where PROFILES is a folder of PipeDream profiles (not part of this project). One JSON line a profile
and cluster; those that are there already are left out.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

import gnnplace
from benchmarks.throughput_ideals import ideals_of, split_ideals
from benchmarks.throughput_programme import ThroughputModel, model_size
from gnnplace.errors import InfeasibleError
from gnnplace.placers import SearchSpace
from gnnplace.placers.throughput import ThroughputResult, with_interval
from gnnplace.placers.throughput.load import interval, make_flows
from gnnplace.placers.throughput.split import make_blocks
from gnnplace.placers.throughput.stages import list_device_sorts
from gnnplace.problem import Problem

CLUSTERS = ("pcie-v100-4", "two-tier-v100-2x4")
MOST_IDEALS, MOST_PAIRS, MOST_VARIABLES = 20_000, 50_000_000, 30_000
PROVEN = 1e-6


def row(key: str, problem: Problem, seconds: float) -> dict[str, object]:
    space = SearchSpace(problem)
    begin = time.thread_time()
    split = _found(problem, space, "contiguous", seconds)
    spent = time.thread_time() - begin
    found = _found(problem, space, "best", seconds)
    count, least = _contiguous(space, split.interval)
    solved, bound = _solved(space, found, seconds)
    return {
        "problem": key,
        "units": problem.num_units,
        "ideals": count,
        "single": _interval(problem, space, "single", 0.0),
        "portfolio": _interval(problem, space, "portfolio", seconds),
        "contiguous": split.interval,
        "contiguous_cpu_seconds": spent,
        "contiguous_proven": split.interval <= least * (1 + PROVEN),
        "interval": found.interval,
        "solved": solved,
        "bound": bound,
        "budget": seconds,
    }


def _interval(
    problem: Problem, space: SearchSpace, placer: str, seconds: float
) -> float | None:
    """What the placement of a placer for step time comes to; None if it finds none."""
    try:
        found = gnnplace.place(problem, placer=placer, budget=seconds, space=space)
    except InfeasibleError:
        return None
    return with_interval(space, found).interval


def _found(
    problem: Problem, space: SearchSpace, placer: str, seconds: float
) -> ThroughputResult:
    result = gnnplace.place(
        problem,
        placer=placer,
        budget=seconds,
        objective=gnnplace.THROUGHPUT,
        space=space,
    )
    assert isinstance(result, ThroughputResult)
    return result


def _contiguous(space: SearchSpace, upper: float) -> tuple[int | None, float]:
    """Number of ideals, None if too many; seconds that no contiguous split is below, if known."""
    flows, blocks = make_flows(space), make_blocks(space)
    ideals, sorts = ideals_of(blocks, MOST_IDEALS), list_device_sorts(flows)
    if ideals is None:
        return None, 0.0
    found = (
        split_ideals(flows, sorts, blocks, ideals, upper, MOST_PAIRS)
        if sorts.equal
        else None
    )
    return len(ideals.offset) - 1, 0.0 if found is None else found.relaxed


def _solved(
    space: SearchSpace, found: ThroughputResult, seconds: float
) -> tuple[float, float]:
    """The interval and the bound after the constraint programme, where that is small enough."""
    flows, (offset, ops) = make_flows(space), space.unit_ops
    if model_size(flows) > MOST_VARIABLES:
        return found.interval, found.interval_bound
    start = found.placement.device[ops[offset[:-1]]]
    model = ThroughputModel(space, flows, start, found.interval)
    device, bound, _ = model.solve(np.random.default_rng(0), seconds)
    best = (
        found.interval
        if device is None
        else min(found.interval, interval(flows, device))
    )
    return best, max(bound, found.interval_bound)


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
                problem = gnnplace.convert(
                    profile, "pipedream", gnnplace.resolve_cluster(cluster)
                )
                line = json.dumps(row(key, problem, float(seconds)))
                with file.open("a") as lines:
                    lines.write(line + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
