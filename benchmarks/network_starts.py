"""Do starts of the graph network pay? Large graphs that are placed op by op.

Each row begins the same search from other starts, refined alike: ``aims`` from eight decodes of the
policy, as small problems have them; ``more aims`` from twenty; ``noise`` from eight and eight more
with noise on the scores; ``network`` from four and nine decodes of the graph network, as `learned`
does; ``shuffled`` from four and nine of the network with its weights shuffled; ``twin with
messages`` and ``twin without`` from four and nine of two networks that were trained alike. Each run
is one trajectory, so that what it has found by each mark is what that budget finds. ``best`` and
``best without`` are the default placer as it is and with a `learned` that asks no network, a run
for each budget. Seconds are the processor's, encoding and all included. Runs are kept as lines of a
file and are not repeated; the table says means of the logarithm of the ratio to a row, problem by
problem, with 95 % bootstrap intervals over problems and the worst problem.

    python benchmarks/network_starts.py run results.jsonl [--rows aims,network] [--seeds 0,1]
        [--marks 1,3] [--every 3] [--suite benchmarks/suites/large.yaml]
    python benchmarks/network_starts.py table results.jsonl [--base aims]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from paired import TWINS, Line, interval, known, shuffled, twin

import gnnplace
from gnnplace.bench.rows import provenance
from gnnplace.bench.suite import read_suite
from gnnplace.placers import SearchSpace
from gnnplace.policy.best import Best
from gnnplace.policy.decode.rollouts import Decoded, Rollouts
from gnnplace.policy.gnn.network import GnnPolicy, load_gnn
from gnnplace.policy.learned import (
    FEWER_AIMS,
    FirstChoice,
    LearnedPlacer,
    load_policy,
    network_decodes,
)
from gnnplace.policy.refine.passes import RefiningPasses
from gnnplace.policy.weights import PolicyWeights
from gnnplace.problem import Problem

SUITE = Path(__file__).parent / "suites" / "by-ops.yaml"
AIMS, MORE, NOISY, TEMPERATURE = 8, 20, 8, 0.3
BEST = "best"


def noisy(rollouts: Rollouts) -> list[Decoded]:
    """Eight decodes, and as many with Gumbel noise on the scores of the first four aims."""
    found, rng = rollouts.greedy(), np.random.default_rng(0)
    for k in range(NOISY):
        noise = rollouts.noise(rng, TEMPERATURE)
        walked = rollouts.walk(rollouts.aims[k % FEWER_AIMS], noise=noise)
        found.append(rollouts.finish(found[0].aim, walked))
    return found


def with_network(network: GnnPolicy) -> Callable[[Rollouts], list[Decoded]]:
    """Fewer decodes of the policy, and those of a network."""

    def decodes(rollouts: Rollouts) -> list[Decoded]:
        found = rollouts.greedy(most=FEWER_AIMS)
        return found + network_decodes(rollouts, network, found[0].aim, np.inf)

    return decodes


def starts() -> dict[str, Callable[[Rollouts], list[Decoded]]]:
    """What each row decodes."""
    return {
        "aims": lambda rollouts: rollouts.greedy(most=AIMS),
        "more aims": lambda rollouts: rollouts.greedy(most=MORE),
        "noise": noisy,
        "shuffled": with_network(shuffled()),
        "network": with_network(load_gnn()),
        **{name: with_network(twin(name)) for name in TWINS},
    }


def searched(
    problem: Problem,
    policy: PolicyWeights,
    decode: Callable[[Rollouts], list[Decoded]],
    seed: int,
    marks: list[float],
) -> Line:
    """Seconds a step at the first choice and at each mark."""
    begin = time.process_time()
    rollouts = Rollouts(SearchSpace(problem), policy)
    ranked = sorted(decode(rollouts), key=lambda decoded: decoded.score)
    passes = RefiningPasses(rollouts)
    best = passes.best(ranked)
    took, found = time.process_time() - begin, {}
    search = FirstChoice(rollouts, passes, best, len(ranked)).search(
        np.random.default_rng(seed)
    )
    for mark in sorted(marks):
        while time.process_time() < begin + mark:
            search.cycle(begin + mark)
        found[str(mark)] = float(search.state.score[1])
    return {"first": best.score, "first_seconds": took, "marks": found}


def placed(problem: Problem, row: str, seed: int, marks: list[float]) -> Line:
    """Seconds a step of the default placer without a budget and with each."""
    placer = Best(LearnedPlacer(network=load_gnn if row == BEST else None))
    first = placer.place(problem, budget=0.0, seed=seed)
    found = {
        str(m): placer.place(problem, budget=m, seed=seed).step_time for m in marks
    }
    return {"first": first.step_time, "first_seconds": first.seconds, "marks": found}


def run(arguments: argparse.Namespace) -> None:
    """Adds a line for each problem, seed and row that the file lacks."""
    time.perf_counter = time.process_time
    torch.set_num_threads(1)
    gnnplace.warm(["best"])
    marks, policy, rows = (
        [float(m) for m in arguments.marks.split(",")],
        load_policy(),
        starts(),
    )
    done = {(r["problem"], r["seed"], r["row"]) for r in known(arguments.file)}
    for entry in read_suite(arguments.suite).problems[:: arguments.every]:
        problem = entry.load()
        name = (
            f"{problem.name} {entry.cluster or ''} x{problem.microbatches} {entry.seed}"
        )
        for seed in map(int, arguments.seeds.split(",")):
            for row in arguments.rows.split(","):
                if (name, seed, row) in done:
                    continue
                line = {
                    "problem": name,
                    "ops": problem.num_ops,
                    "seed": seed,
                    "row": row,
                }
                if row in rows:
                    line |= searched(problem, policy, rows[row], seed, marks)
                else:
                    line |= placed(problem, row, seed, marks)
                line |= provenance()
                with open(arguments.file, "a") as file:
                    file.write(json.dumps(line) + "\n")


def table(lines: list[Line], reference: str) -> None:
    """Prints step times of each row over those of a row."""
    marks = sorted({mark for line in lines for mark in line["marks"]}, key=float)
    print("| starts | problems x seeds | first choice after | first choice |", end=" ")
    print(" | ".join(f"{mark} s" for mark in marks), "|")
    print("|---|---|---|" + "---|" * (1 + len(marks)))
    base = {(r["problem"], r["seed"]): r for r in lines if r["row"] == reference}
    for row in dict.fromkeys(line["row"] for line in lines):
        pairs = [
            (r, base[r["problem"], r["seed"]])
            for r in lines
            if r["row"] == row and (r["problem"], r["seed"]) in base
        ]
        took = np.mean([one["first_seconds"] for one, _ in pairs])
        cells = [interval(pairs, lambda r: r["first"])]
        cells += [
            interval(pairs, lambda r, m=mark: r["marks"].get(m)) for mark in marks
        ]
        print(f"| {row} | {len(pairs)} | {took:.2f} s | {' | '.join(cells)} |")


def main() -> None:
    """Runs what is missing, or prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=("run", "table"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", default="aims,network")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--base", default="aims")
    parser.add_argument("--marks", default="1")
    parser.add_argument(
        "--every", type=int, default=1, help="only every so many problems"
    )
    parser.add_argument("--suite", type=Path, default=SUITE)
    arguments = parser.parse_args()
    if arguments.action == "run":
        run(arguments)
    else:
        table(known(arguments.file), arguments.base)


if __name__ == "__main__":
    main()
