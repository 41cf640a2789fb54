"""Seconds that placers take for a budget on graphs of up to a million ops.

Problems are drawn: the family ``layered``, and ``wide``, where an op takes one to three of all ops
before it, so that thousands are ready at once. Seconds are for the whole of ``gnnplace.place``:
making the space, searching, bounds, the checked placement; an asterisk says that nothing feasible
was found. ``reading`` is the problem's file to a ``Problem``. With ``--processor`` the clock is the
processor's time, budgets included, which other work on the machine does not lengthen.

    python benchmarks/budgets.py [--budget 2] [--ops 10000,30000,100000,300000,1000000]
        [--placers heft,best] [--families layered,wide] [--largest-file 100000] [--processor]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gnnplace
from gnnplace.errors import GnnplaceError
from gnnplace.graph import ComputationGraph
from gnnplace.problem import Problem, build_problem, read_problem, write_problem
from gnnplace.problem.cluster import make_preset
from gnnplace.train.data.random_families import RandomDraws, random_problem

PLACERS = (
    "single,contiguous,interleaved,expert,heft,heft-contention,etf,m-topo,min-cut,"
    "narrow,annealing,coarse-annealing,portfolio,learned,best"
)


def main() -> None:
    """Prints a Markdown table, a row a problem."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=float, default=2.0)
    parser.add_argument("--ops", default="10000,30000,100000,300000,1000000")
    parser.add_argument("--placers", default=PLACERS)
    parser.add_argument("--families", default="layered,wide")
    parser.add_argument("--largest-file", type=int, default=100_000)
    parser.add_argument(
        "--processor", action="store_true", help="the processor's time for all"
    )
    arguments = parser.parse_args()
    if arguments.processor:
        time.perf_counter = time.process_time
    names = arguments.placers.split(",")
    gnnplace.warm(names)
    print(f"| graph | ops | reading | {' | '.join(names)} |")
    print("|---|" + "---:|" * (len(names) + 2))
    for family in arguments.families.split(","):
        for ops in map(int, arguments.ops.split(",")):
            problem = drawn(family, ops)
            reading = (
                timed(lambda p=problem: read(p))
                if ops <= arguments.largest_file
                else "–"
            )
            cells = [placed(fresh(problem), name, arguments.budget) for name in names]
            print(
                f"| {family} | {problem.num_ops:,} | {reading} | {' | '.join(cells)} |",
                flush=True,
            )


def drawn(family: str, ops: int) -> Problem:
    """A problem of about so many ops on eight devices."""
    if family == "wide":
        return wide(ops)
    given: dict[str, Any] = {
        "devices": (8, 8),
        "microbatches": (1,),
        "most_ops": 10 * ops,
    }
    return random_problem(family, 0, RandomDraws(ops=(ops, ops), **given))


def wide(ops: int) -> Problem:
    """Forward ops, each with one to three inputs among all before it."""
    rng = np.random.default_rng(0)
    inputs = (rng.random((ops, 3)) * np.arange(ops)[:, None]).astype(int)
    number = rng.integers(1, 4, ops)
    consumers: list[list[int]] = [[] for _ in range(ops)]
    for op in range(1, ops):
        for other in set(inputs[op, : number[op]].tolist()):
            consumers[other].append(op)
    tensors = [(op, 1e5, consumers[op]) for op in range(ops) if consumers[op]]
    graph = ComputationGraph.from_tensors([f"op{i}" for i in range(ops)], tensors)
    cluster = make_preset("nvlink-a100-8")
    times = {kind: 1e-4 * rng.lognormal(size=ops) for kind in cluster.kinds}
    return build_problem("wide", graph, cluster, times)


def fresh(problem: Problem) -> Problem:
    """The same problem with nothing derived from it yet."""
    made = {
        key: value
        for key, value in vars(problem).items()
        if key in Problem.__match_args__
    }
    return Problem(**made)


def read(problem: Problem) -> float:
    """Writes the problem to a file and reads it; seconds of reading alone."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.json"
        write_problem(path, problem)
        begin = time.perf_counter()
        read_problem(path)
        return time.perf_counter() - begin


def timed(measure: Callable[[], float]) -> str:
    """Seconds as a cell."""
    return f"{measure():.1f}"


def placed(problem: Problem, name: str, budget: float) -> str:
    """Seconds of placing with a placer as a cell."""
    begin, mark = time.perf_counter(), ""
    try:
        gnnplace.place(problem, placer=name, budget=budget)
    except GnnplaceError:
        mark = "*"
    return f"{time.perf_counter() - begin:.1f}{mark}"


if __name__ == "__main__":
    main()
