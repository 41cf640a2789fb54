"""Do learned starts pay in the search on narrow groups? The suite ``whole``, anytime curves.

A row is one way to begin the search, which is the same: ``narrow`` from constructions alone (its
bandit over kinds of moves is the row without learning), ``decodes`` from these and the decodes of
the policy. Rows ``network``, ``mlp`` and ``shuffled`` of stored results are those of a network that
proposed starts and is gone (docs/learned.md). Seconds are the processor's, grouping, inference and
all included; each run is one trajectory, so that what it has found by each mark is what that budget
finds. Runs are kept as lines of a file and are not repeated (where one lacked a mark, the later
line counts); the table says geometric means over problems and 95 % intervals of paired differences
to ``narrow``, by a bootstrap over problems.

    python benchmarks/whole.py run results.jsonl [--rows narrow,decodes] [--seeds 0,1,2]
        [--marks 1,3,10] [--every 3]
    python benchmarks/whole.py table results.jsonl
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from paired import interval, known

import gnnplace
from gnnplace.bench.suite import read_suite
from gnnplace.placers import SearchSpace
from gnnplace.placers.narrow import NarrowSearch
from gnnplace.placers.search.coarse_problem import narrow_problem
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.learned import load_policy
from gnnplace.problem import Problem

SUITE = Path(__file__).parent / "suites" / "whole.yaml"


def main() -> None:
    """Runs what is missing, or prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=("run", "table"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", default="narrow,decodes")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--marks", default="1")
    parser.add_argument(
        "--every", type=int, default=1, help="only every so many problems"
    )
    arguments = parser.parse_args()
    if arguments.action == "run":
        run(arguments)
    else:
        table(known(arguments.file))


def run(arguments: argparse.Namespace) -> None:
    """Adds a line for each problem, seed and row that the file lacks."""
    time.perf_counter = time.process_time
    gnnplace.warm(["learned"])
    marks = [float(mark) for mark in arguments.marks.split(",")]
    done = {
        (r["problem"], r["seed"], r["row"])
        for r in known(arguments.file)
        if covers(r, marks)
    }
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    for seed in map(int, arguments.seeds.split(",")):
        for name, problem in problems(arguments.every):
            for row in arguments.rows.split(","):
                if (name, seed, row) not in done:
                    result = searched(problem, row, seed, marks)
                    line = {
                        "problem": name,
                        "ops": problem.num_ops,
                        "seed": seed,
                        "row": row,
                    }
                    line |= {"commit": commit.stdout.strip(), **result}
                    with open(arguments.file, "a") as file:
                        file.write(json.dumps(line) + "\n")


def covers(line: dict[str, Any], marks: list[float]) -> bool:
    """Whether a line has all marks, or needs none."""
    return line["first"] is None or all(str(mark) in line["marks"] for mark in marks)


def problems(every: int = 1) -> Iterator[tuple[str, Problem]]:
    """The problems of the suite by name, or every so many of them."""
    for entry in read_suite(SUITE).problems[::every]:
        problem = entry.load()
        yield f"{entry.graph} {entry.cluster} x{entry.microbatches}", problem


def searched(
    problem: Problem, row: str, seed: int, marks: list[float]
) -> dict[str, Any]:
    """Seconds a step at the first choice and at each mark; None where the graph is placed whole."""
    begin = time.process_time()
    space = SearchSpace(problem)
    narrow = narrow_problem(space)
    if narrow is None:
        return {"first": None, "first_seconds": None, "marks": {}}
    coarse = SearchSpace(narrow.problem)
    decodes = Rollouts(coarse, load_policy()).greedy() if row == "decodes" else []
    extra = [one.unit_device for one in decodes]
    search = NarrowSearch(space, narrow, coarse, extra, np.random.default_rng(seed))
    search.first_round()
    first, took = search.expansion.score, time.process_time() - begin
    found: dict[str, float] = {}
    for mark in sorted(marks):
        while search.has_time(begin + mark):
            search.lap()
        found[str(mark)] = search.expansion.score
    return {"first": first, "first_seconds": took, "marks": found}


def table(lines: list[dict[str, Any]]) -> None:
    """Prints seconds of each row over those of ``narrow``, problem by problem in the mean."""
    lines = [line for line in lines if line["first"] is not None]
    marks = sorted({mark for line in lines for mark in line["marks"]}, key=float)
    told = " | ".join(f"{mark} s" for mark in marks)
    print(f"| row | problems x seeds | first choice after | first choice | {told} |")
    print("|---|---|---|" + "---|" * (1 + len(marks)))
    base = {(r["problem"], r["seed"]): r for r in lines if r["row"] == "narrow"}
    for row in dict.fromkeys(line["row"] for line in lines):
        own = {(r["problem"], r["seed"]): r for r in lines if r["row"] == row}
        pairs = [(own[key], base[key]) for key in own if key in base]
        if not pairs:
            continue
        took = np.mean([one["first_seconds"] for one, _ in pairs])
        cells = [interval(pairs, lambda r: r["first"])]
        for mark in marks:
            have = [
                (a, b) for a, b in pairs if mark in a["marks"] and mark in b["marks"]
            ]
            cells.append(interval(have, lambda r, m=mark: r["marks"][m]))
        print(f"| {row} | {len(pairs)} | {took:.2f} s | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
