"""Ways to split networks, compared in one cost model: rows, and a table of them.

For every network, number of devices and machine: data parallelism, the experts' schemes, greedy,
FlexFlow's random search with a time budget of its own, the exact search, and the same tables as an
integer programme. Rows are appended to ``results/sharding.jsonl`` and say commit,
versions, machine, seed and seconds; what is there is not run again. A way that beats the exact
search would be a fault of it: the script stops.

    python -m benchmarks.pase.comparison [--networks alexnet,gpt] [--devices 4,8] [--only greedy]
                                         [--table]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pase.costs import (
    Machine,
    Setting,
    edge_costs,
    layer_costs,
    layouts,
    sharding_problem,
)
from benchmarks.pase.integer_programme import solve_programme
from benchmarks.pase.layers import configurations
from benchmarks.pase.markov_chain import random_search
from benchmarks.pase.networks.registry import build_network
from benchmarks.pase.rivals import expert, greedy
from gnnplace.bench.rows import append, format_now, identity, provenance, read_rows
from gnnplace.errors import GnnplaceError
from gnnplace.files import write_text
from gnnplace.sharding import (
    ShardingProblem,
    ShardingResult,
    best_strategy,
    read_sharding,
    warm,
)

RESULTS = Path(__file__).parents[1] / "results"
ROWS, TABLE = RESULTS / "sharding.jsonl", RESULTS / "sharding.md"
NETWORKS = (
    "alexnet,inception_v3,resnet101,wide_resnet50,densenet121,"
    "rnnlm,biglstm,gnmt,transformer,gpt,moe"
)
# The PaSE authors' model: 10 TFLOP/s, 16 GB/s. Slow links: the same devices, an eighth of it, as
# where cards exchange data through the host.
MACHINES = {"fast links": Machine(10e12, 16e9), "slow links": Machine(10e12, 2e9)}
DEVICES = "4,8,16,32,64"
BUDGET = 2.0  # Seconds (CPU) of the random search: more than the exact search ever takes here.
TOLERANCE = 1e-5  # Relative: the solver's own is 1e-6 of all constraints.
LIMIT = 60.0  # Seconds (wall clock) of the integer programme.
PROGRAMMES = ("alexnet", "inception_v3", "rnnlm", "transformer", "moe")
LARGE = (
    ("inception_v3", 128),
    ("transformer", 256),
    ("gpt3_100", 64),
    ("gpt3_100", 256),
)
BEST, DATA, PROGRAMME = "exact search", "data parallelism", "integer programme"
RANDOM = "random search"
Found = ShardingResult | tuple[int, ...] | None
Solve = Callable[[Setting, ShardingProblem], Found]


@dataclass(frozen=True)
class Cell:
    """One thing to run."""

    network: str
    devices: int
    machine: str
    way: str

    def identity(self) -> dict[str, Any]:
        """What tells its row from all others."""
        return {
            "problem": f"{self.network} p={self.devices}, {self.machine}",
            "placer": self.way,
            "seed": 0,
            "budget": BUDGET
            if self.way == RANDOM
            else LIMIT
            if self.way == PROGRAMME
            else 0.0,
        }


WAYS: dict[str, Solve] = {
    BEST: lambda setting, problem: best_strategy(problem),
    DATA: lambda setting, problem: setting.data_parallel(),
    "expert": expert,
    "greedy": lambda setting, problem: greedy(problem),
    RANDOM: lambda setting, problem: random_search(
        problem, setting.data_parallel(), seed=0, proposals=10**12, seconds=BUDGET
    ),
    PROGRAMME: lambda setting, problem: solve_programme(problem, LIMIT),
}


FILE_WAYS: dict[str, Callable[[ShardingProblem], Found]] = {
    BEST: best_strategy,
    "greedy": greedy,
    PROGRAMME: lambda problem: solve_programme(problem, LIMIT),
}


def main() -> None:
    """Runs what is missing and writes the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--networks", default=NETWORKS)
    parser.add_argument("--devices", default=DEVICES)
    parser.add_argument("--only", default="", help="this way alone")
    parser.add_argument(
        "--files", default="", help="tables of files, comma-separated, alone"
    )
    parser.add_argument("--table", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    if not arguments.table:
        run(arguments)
    rows = read_rows(ROWS)
    check(rows)
    write_text(TABLE, table(rows))


def run(arguments: argparse.Namespace) -> None:
    """Appends the rows that are missing."""
    warm()
    if arguments.files:
        run_files(arguments.files.split(","))
        return
    done = {identity(row) for row in read_rows(ROWS)}
    devices = [int(count) for count in arguments.devices.split(",")]
    for cell in cells(arguments.networks.split(","), devices):
        if arguments.only in ("", cell.way) and identity(cell.identity()) not in done:
            row = run_cell(cell)
            append(ROWS, row)
            sys.stdout.write(
                f"{cell}: {row['cost']} in {row['cpu_seconds']:.3g} s {row['error']}\n"
            )
            sys.stdout.flush()


def run_files(paths: list[str]) -> None:
    """Rows of tables of one's own: the exact search, greedy and the integer programme."""
    for path in paths:
        problem = read_sharding(path)
        for way in (BEST, "greedy", PROGRAMME):
            cell = Cell(problem.name, problem.devices, "of the file", way)
            row = cell.identity() | {"network": cell.network, "devices": cell.devices}
            row |= {"links": cell.machine, "when": format_now(), "table_seconds": None}
            append(ROWS, row | solved(problem, partial(FILE_WAYS[way], problem)))


def cells(networks: list[str], devices: list[int]) -> Iterator[Cell]:
    """All that there is to run."""
    for network in networks:
        for count in devices:
            for machine in MACHINES:
                for way in WAYS:
                    fast = machine == "fast links"
                    if way != PROGRAMME or (network in PROGRAMMES and fast):
                        yield Cell(network, count, machine, way)
    for network, count in LARGE:
        yield from (Cell(network, count, "fast links", way) for way in (DATA, BEST))


def run_cell(cell: Cell) -> dict[str, Any]:
    """One row."""
    machine = MACHINES[cell.machine]
    setting = Setting(build_network(cell.network), cell.devices, machine)
    for cached in (configurations, layer_costs, edge_costs, layouts):
        cached.cache_clear()
    begin = time.process_time()
    problem = sharding_problem(setting.network, cell.devices, machine)
    row = cell.identity() | {"network": cell.network, "devices": cell.devices}
    row |= {
        "links": cell.machine,
        "when": format_now(),
        "table_seconds": time.process_time() - begin,
    }
    return row | solved(problem, lambda: WAYS[cell.way](setting, problem))


def solved(problem: ShardingProblem, solve: Callable[[], Found]) -> dict[str, Any]:
    """What a way has found, and how long it took."""
    row: dict[str, Any] = {"cost": None, "memory": None, "exact": False, "error": ""}
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        row |= outcome(problem, solve())
    except GnnplaceError as error:
        row["error"] = str(error)
    row |= {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
    }
    return row | provenance()


def outcome(problem: ShardingProblem, found: Found) -> dict[str, Any]:
    """What a way has found."""
    if found is None:
        return {"error": f"nothing found in {LIMIT:g} s"}
    if isinstance(found, ShardingResult):
        late = "" if found.exact else "timed out"
        return {
            "cost": found.cost,
            "memory": found.memory,
            "exact": found.exact,
            "error": late,
        }
    return {"cost": problem.value(found), "memory": problem.bytes(found)}


Key = tuple[str, int, str]


def by_problem(rows: list[dict[str, Any]]) -> dict[Key, dict[str, dict[str, Any]]]:
    """Rows of each way, by network, devices and machine."""
    found: dict[Key, dict[str, dict[str, Any]]] = {}
    for row in rows:
        key = (row["network"], row["devices"], row["links"])
        found.setdefault(key, {})[row["placer"]] = row
    return found


def check(rows: list[dict[str, Any]]) -> None:
    """Stops if anything is better than the exact search, or a proven optimum is another one."""
    for key, ways in by_problem(rows).items():
        best = ways[BEST]["cost"]
        for way, row in ways.items():
            if row["cost"] is not None and row["cost"] < best * (1 - 1e-6):
                raise SystemExit(
                    f"{key}: {way} costs {row['cost']}, the exact search {best}"
                )
            if (
                way == PROGRAMME
                and row["exact"]
                and row["cost"] > best * (1 + TOLERANCE)
            ):
                raise SystemExit(
                    f"{key}: the programme proves {row['cost']}, not {best}"
                )


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    found = by_problem(rows)
    last = rows[-1]
    parts = [
        "# Ways to split networks, in one cost model",
        f"`python -m benchmarks.pase.comparison`; {last['machine']['processor']}, one core; "
        "commits and versions of every row in `sharding.jsonl`. Costs are predicted by the cost "
        "model of `benchmarks/pase`; nothing here is measured on devices. The exact search is "
        "never beaten (the script stops if it is).",
    ]
    for machine in MACHINES:
        parts += [
            f"## Times as fast as data parallelism: {machine}",
            *speeds(found, machine),
        ]
    parts += ["## Above the optimum (exact gaps)", *gaps(found)]
    parts += ["## Seconds of search (CPU)", *search_seconds(found)]
    parts += ["## The same tables as an integer programme (HiGHS)", *programmes(found)]
    return "\n\n".join(parts) + "\n"


def speeds(found: dict[Key, dict[str, dict[str, Any]]], machine: str) -> Iterator[str]:
    """Cost of data parallelism over that of every way."""
    ways = [way for way in WAYS if way not in (DATA, PROGRAMME)]
    lines = [
        "| network | p | " + " | ".join(ways) + " |",
        "|---|---|" + "---|" * len(ways),
    ]
    for (network, devices, where), mine in found.items():
        if where == machine and "greedy" in mine:
            base = mine[DATA]["cost"]
            ratios = [
                f"{base / mine[way]['cost']:.2f}" if way in mine else "" for way in ways
            ]
            lines.append(f"| {network} | {devices} | " + " | ".join(ratios) + " |")
    yield "\n".join(lines)


def gaps(found: dict[Key, dict[str, dict[str, Any]]]) -> Iterator[str]:
    """Mean and largest gap of every way over all problems where all have run."""
    ways = [way for way in WAYS if way not in (BEST, PROGRAMME)]
    whole = [mine for mine in found.values() if all(way in mine for way in ways)]
    lines = [
        "| way | mean | largest | optimal | mean seconds |",
        "|---|---|---|---|---|",
    ]
    for way in ways:
        above = np.array(
            [mine[way]["cost"] / mine[BEST]["cost"] - 1.0 for mine in whole]
        )
        seconds = np.mean([mine[way]["cpu_seconds"] for mine in whole])
        share = f"{(above < 1e-9).sum()} of {len(above)}"
        figures = f"{100 * above.mean():.3g} % | {100 * above.max():.3g} % | {share}"
        lines.append(f"| {way} | {figures} | {seconds:.3g} |")
    yield "\n".join(lines)


def search_seconds(found: dict[Key, dict[str, dict[str, Any]]]) -> Iterator[str]:
    """Of the exact search and of the tables before it."""
    lines = ["| network | p | tables | search |", "|---|---|---|---|"]
    for (network, devices, where), mine in found.items():
        if where == "fast links" and devices >= 16:
            row = mine[BEST]
            times = f"{row['table_seconds']:.3f} s | {row['cpu_seconds']:.3f} s"
            lines.append(f"| {network} | {devices} | {times} |")
    yield "\n".join(lines)


def programmes(found: dict[Key, dict[str, dict[str, Any]]]) -> Iterator[str]:
    """Seconds (CPU) of the programme over those of the exact search."""
    lines = [
        "| network | p | programme | slower by | its answer |",
        "|---|---|---|---|---|",
    ]
    for (network, devices, _), mine in found.items():
        if PROGRAMME not in mine:
            continue
        row, best = mine[PROGRAMME], mine[BEST]
        has_answer = row["cost"] is not None
        slower = (
            f"{row['cpu_seconds'] / best['cpu_seconds']:.0f}x" if has_answer else "-"
        )
        answer = "the same optimum" if row["exact"] else row["error"]
        if row["cost"] is not None and not row["exact"]:
            answer += f", {100 * (row['cost'] / best['cost'] - 1):.2g} % above"
        took = f"{row['cpu_seconds']:.2f} s" if has_answer else "-"
        lines.append(f"| {network} | {devices} | {took} | {slower} | {answer} |")
    yield "\n".join(lines)


if __name__ == "__main__":
    main()
