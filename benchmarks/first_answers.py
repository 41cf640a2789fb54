"""First answers and short searches: the step time of a placer after little processor time.

A row is a placer and a budget in seconds of the processor (``gnn@0,learned@0.2``); budget 0 is the
placer's answer without one. ``gnn@first`` is the first answer that ``gnn`` has with a budget, all
of it whatever it takes, and ``gnn?checkpoint=FOLDER@first`` that of another network. Seconds are
those of the search alone, without lower bounds. The problems are those of a suite, or with
``validation`` and ``training`` graphs of these families on the eight clusters of ``standard``;
choices are made on those of validation. To compare two versions of the package, run the script once
with each on ``PYTHONPATH`` and a ``--label`` of its own. Runs are kept as lines of a file and are
not repeated. The table has geometric means over the best known step time of a suite, and over
another row, paired by problem, with 95 % bootstrap intervals.

    python benchmarks/first_answers.py run results.jsonl --label new --rows gnn@0,best@0.2
        [--problems standard] [--every 1]
    python benchmarks/first_answers.py table results.jsonl [--problems standard]
    python benchmarks/first_answers.py pairs results.jsonl "new gnn@0" "old gnn@0"
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

import gnnplace
from gnnplace.bench.standings import read_best_known
from gnnplace.bench.suite import FAMILY_OF, ProblemEntry, read_suite
from gnnplace.errors import GnnplaceError
from gnnplace.placers import SearchSpace
from gnnplace.placers.search.repair import repair
from gnnplace.placers.search.space import NO_BUDGET
from gnnplace.placing.roster import make_placer
from gnnplace.policy.decode.aims import Aim
from gnnplace.policy.decode.rollouts import SCORE, Rollouts
from gnnplace.policy.gnn.decodes import NetworkDecodes
from gnnplace.policy.gnn.network import load_gnn
from gnnplace.policy.gnn.placer import GnnPlacer
from gnnplace.policy.gnn.rollouts import Episodes
from gnnplace.policy.learned import load_policy
from gnnplace.policy.refine.passes import RefiningPasses
from gnnplace.problem import Problem, compute_digest
from gnnplace.train.data.captured import TRAIN, open_shipped_store
from gnnplace.train.data.captured import VALIDATION as HELD_OUT
from gnnplace.train.data.datasets import find_dataset

FOLDER = Path(__file__).parent
BEST_KNOWN = FOLDER / "best_known.json"
VALIDATION = "validation"
TRAINING = "training"
FAMILIES = ("moe", "nasnet")
EVERY = 5  # of the graphs of training families, which are many
DRAWS = 4000  # of the bootstrap
FIRST = "first"  # in place of a budget: the first answer of a graph network
Line = dict[str, Any]


def suite_entries(name: str) -> list[ProblemEntry]:
    """Return the problems of a suite, or graphs of a part of the data on `standard`'s clusters."""
    if name not in (VALIDATION, TRAINING):
        return read_suite(FOLDER / "suites" / f"{name}.yaml").problems
    clusters = {
        (entry.cluster, entry.microbatches, entry.memory): entry
        for entry in read_suite(FOLDER / "suites" / "standard.yaml").problems
    }
    entries = []
    for dataset, store in (
        ("store", open_shipped_store()),
        ("networks", find_dataset("networks")),
    ):
        if name == VALIDATION:
            graphs = [g for g in store.part(HELD_OUT) if FAMILY_OF[g] in FAMILIES]
        else:
            graphs = list(store.part(TRAIN))[::EVERY]
        entries += [
            entry.model_copy(update={"dataset": dataset, "graph": graph})
            for graph in graphs
            for entry in clusters.values()
        ]
    return entries


def clear_problem(problem: Problem) -> Problem:
    """Return the same problem with nothing derived from it yet."""
    fields = {
        key: value
        for key, value in vars(problem).items()
        if key in Problem.__match_args__
    }
    return Problem(**fields)


def time_search(
    problem: Problem, placer_name: str, budget: float
) -> tuple[float, float]:
    """Return the predicted step time, nan where nothing fits, and the seconds of the search."""
    placer, problem = make_placer(placer_name), clear_problem(problem)
    begin = time.process_time()
    space = SearchSpace(problem)
    deadline = begin + budget if budget else NO_BUDGET
    try:
        placement = placer.search(space, np.random.default_rng(0), deadline)
    except GnnplaceError:
        return float("nan"), time.process_time() - begin
    device, order = repair(space, placement.device, placement.order)
    seconds = time.process_time() - begin
    simulation = space.simulator.run(device, order)
    return simulation.step_time if simulation.feasible else float("nan"), seconds


def time_first_answer(problem: Problem, placer_name: str) -> tuple[float, float]:
    """Return the step time of the best three decodes of a graph network, refined, and seconds.

    The step time is nan where nothing fits. The decodes are greedy, one for each number of devices,
    and sixteen draws.
    """
    placer, problem = make_placer(placer_name), clear_problem(problem)
    assert isinstance(placer, GnnPlacer)
    begin = time.process_time()
    space = SearchSpace(problem)
    rollouts = Rollouts(space, load_policy())
    policy = placer.policy or load_gnn()
    episodes = Episodes(space, policy.order, rollouts.graph)
    network = episodes.network(policy)
    decodes = NetworkDecodes(
        rollouts, episodes, network, Aim(episodes.name, network.limit)
    )
    ranked = sorted(decodes.first_answers(np.inf), key=SCORE)
    best = RefiningPasses(rollouts).best(ranked, np.inf)
    device, order = repair(space, space.spread(best.unit_device), best.order)
    seconds = time.process_time() - begin
    simulation = space.simulator.run(device, order)
    return simulation.step_time if simulation.feasible else float("nan"), seconds


def read_lines(path: Path) -> list[Line]:
    """Return the lines of a file, none where there is no file."""
    return (
        [json.loads(line) for line in path.read_text().splitlines()]
        if path.exists()
        else []
    )


def run(arguments: argparse.Namespace) -> None:
    """Add a line for each problem and row that the file lacks."""
    rows = [tuple(row.rsplit("@", 1)) for row in arguments.rows.split(",")]
    gnnplace.warm([name.partition("?")[0] for name, _ in rows])
    time.perf_counter = time.process_time
    torch.set_num_threads(1)
    finished = {(line["problem"], line["row"]) for line in read_lines(arguments.file)}
    for entry in suite_entries(arguments.problems)[:: arguments.every]:
        problem = entry.load()
        for name, budget in rows:
            row = f"{arguments.label} {name}@{budget}"
            if (entry.key, row) in finished:
                continue
            if budget == FIRST:
                step_time, seconds = time_first_answer(problem, name)
            else:
                time_search(
                    problem, name, min(0.02, float(budget))
                )  # the first run warms caches
                step_time, seconds = time_search(problem, name, float(budget))
            line = {
                "suite": arguments.problems,
                "problem": entry.key,
                "digest": compute_digest(problem),
            }
            line |= {"row": row, "step_time": step_time, "seconds": seconds}
            with open(arguments.file, "a") as file:
                file.write(json.dumps(line) + "\n")


def format_ratio(ratios: ArrayLike) -> str:
    """Return the geometric mean of ratios with its 95 % bootstrap interval."""
    logs, rng = np.log(np.asarray(ratios, float)), np.random.default_rng(0)
    means = [rng.choice(logs, len(logs)).mean() for _ in range(DRAWS)]
    low, high = np.exp(np.percentile(means, [2.5, 97.5]))
    return f"{np.exp(logs.mean()):.3f} [{low:.3f}, {high:.3f}]"


def by_row(lines: Sequence[Line]) -> dict[str, dict[str, Line]]:
    """Return lines by row and problem."""
    rows: dict[str, dict[str, Line]] = defaultdict(dict)
    for line in lines:
        rows[str(line["row"])][str(line["problem"])] = line
    return rows


def table(lines: Sequence[Line]) -> Iterator[str]:
    """Yield each row's geometric mean over the best known step time."""
    best = {
        key: found.step_time for (key, _), found in read_best_known(BEST_KNOWN).items()
    }
    yield "| row | problems | without an answer | over best known | processor ms, mean |"
    yield "|---|---:|---:|---:|---:|"
    for row, found in by_row(lines).items():
        ratios = [
            line["step_time"] / best.get(key, np.nan) for key, line in found.items()
        ]
        solved = [ratio for ratio in ratios if np.isfinite(ratio)]
        missing = sum(not np.isfinite(line["step_time"]) for line in found.values())
        seconds = 1e3 * np.mean([line["seconds"] for line in found.values()])
        over = format_ratio(solved) if solved else "–"
        yield f"| {row} | {len(found)} | {missing} | {over} | {seconds:.0f} |"


def pairs(lines: Sequence[Line], one: str, other: str) -> Iterator[str]:
    """Yield one row's step times over another's, problem by problem."""
    rows = by_row(lines)
    ratios = {
        key: line["step_time"] / rows[other][key]["step_time"]
        for key, line in rows[one].items()
        if key in rows[other]
    }
    ratios = {key: ratio for key, ratio in ratios.items() if np.isfinite(ratio)}
    values = np.array(list(ratios.values()))
    counts = (
        f"better by 1 % on {(values < 0.99).sum()}, worse on {(values > 1.01).sum()}"
    )
    yield f"{one} over {other}: {format_ratio(values)}, {counts} of {len(values)}"
    for key, ratio in sorted(ratios.items(), key=lambda item: -item[1])[:5]:
        yield f"  {ratio:.3f} {key}"


def main() -> None:
    """Run what is missing, or print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("run", "table", "pairs"))
    parser.add_argument("file", type=Path)
    parser.add_argument("compared", nargs="*", help="two rows, for pairs")
    parser.add_argument("--label", default="new")
    parser.add_argument("--rows", default="gnn@0,learned@0,best@0.2,best@0.5")
    parser.add_argument(
        "--problems", default="standard", help="a suite, validation or training"
    )
    parser.add_argument(
        "--every", type=int, default=1, help="only every so many problems"
    )
    arguments = parser.parse_args()
    if arguments.action == "run":
        run(arguments)
        return
    lines = [x for x in read_lines(arguments.file) if x["suite"] == arguments.problems]
    printed = (
        table(lines)
        if arguments.action == "table"
        else pairs(lines, *arguments.compared)
    )
    print("\n".join(printed))


if __name__ == "__main__":
    main()
