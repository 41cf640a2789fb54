"""The order study on the paper's ground: improvement walks over one graph at a time.

Wang et al. (2022, arXiv 2201.09676) train a policy on one graph alone. It visits the ops in an
order and gives each a device anew, given all others; the next walk begins from the best placement
so far, and the first from one device. Ten runs of 50 walks are made for each of six orders. Here a
run is the same but for the policy and how it learns: the decoder's weighted sum of features
(``policy.decode.improving``) instead of a network over messages, and separable CMA-ES instead of a
policy gradient. A generation of ``POPULATION`` members walks from the same placement, the best one
so far; fitness is the log step time after the walk. Weights begin as the untrained policy's.

Machines: ``paper``, three T4 with the links of the paper's simulator (7.6 GB/s, 25 microseconds; a
T4 is as near to its K80 as the data sets have costs for), and ``nvlink``, three V100 with NVLink.
Graphs are those of ``searched`` and ``networks``, grouped to ``GROUPS`` ops, one micro-batch.

Rows, append-only JSON Lines in ``improvement.jsonl``: of a machine (``problem``), an order or a
rival (``placer``), a seed and a number of walks (``budget``), ``one``: predicted seconds of each
graph. What is there is not run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from cmaes import SepCMA
from numpy.typing import NDArray

from benchmarks.studies.orders.decoding import OneOrder
from benchmarks.studies.orders.evolution import STEP_SIZE, units_of
from benchmarks.studies.orders.folder import rows_of_folder
from benchmarks.studies.orders.improvement_report import (
    PAPER_ORDERS,
    Table,
    improvement_report,
)
from benchmarks.studies.orders.networks import rounded
from benchmarks.studies.orders.problems import DATASETS, NETWORKS, SEARCHED
from gnnplace.bench.rows import append, format_now, identity, provenance
from gnnplace.errors import InputError
from gnnplace.files import write_text
from gnnplace.graph.orders import FIXED_ORDERS
from gnnplace.placers import SearchSpace
from gnnplace.placing.roster import place
from gnnplace.policy.decode.aims import Aim
from gnnplace.policy.decode.improving import Improvement, ImprovingRollouts
from gnnplace.policy.decode.rollouts import Walked
from gnnplace.policy.learned import make_untrained
from gnnplace.policy.weights import PolicyWeights
from gnnplace.problem import Cluster, Device, link_all_pairs
from gnnplace.train.data.datasets import dataset_problem, find_dataset

Say = Callable[[str], None]
FloatArray = NDArray[np.float64]
FILE, REPORT = "improvement.jsonl", "improvement.md"
STUDIED = (*PAPER_ORDERS, "upward-rank", "random")
RIVALS = ("single", "min-cut", "heft", "learned")
POPULATION = 10  # walks of a generation
MARKS = (50, 200)  # walks after which a run is looked at; the paper makes 50
GROUPS, NUM_DEVICES = 200, 3
PAPER, NVLINK = "paper", "nvlink"
MEMORY = 1e12  # bytes of a device: what fits where is another question


def machines() -> dict[str, Cluster]:
    """Return the clusters of the study by name."""
    return {
        PAPER: equal_devices("t4", bandwidth=7.6e9, latency=25e-6),
        NVLINK: equal_devices("v100", bandwidth=48e9, latency=5e-6),
    }


def equal_devices(kind: str, *, bandwidth: float, latency: float) -> Cluster:
    """Return ``NUM_DEVICES`` equal devices, each linked with each other one.

    Args:
        kind: Kind of all devices.
        bandwidth: Bytes a second of a link.
        latency: Seconds of a message beside its bytes.
    """
    devices = tuple(
        Device(name=f"gpu:{index}", kind=kind, memory=MEMORY)
        for index in range(NUM_DEVICES)
    )
    names = [device.name for device in devices]
    return Cluster(
        devices, link_all_pairs(names, bandwidth=bandwidth, latency=latency), kind
    )


@cache
def graph_families() -> tuple[str, ...]:
    """Return the family of each graph of the study, in the order of rows."""
    return tuple(
        store.graph(name).origin["family"]
        for dataset in (*DATASETS[SEARCHED], *DATASETS[NETWORKS])
        for store in (find_dataset(dataset, Path(__file__).parents[1]),)
        for name in store.names
    )


@cache
def graphs_on(machine: str) -> tuple[SearchSpace, ...]:
    """Return every graph of the study on a machine, in the order of ``graph_families``."""
    cluster = machines()[machine]
    return tuple(
        SearchSpace(dataset_problem(store.graph(name), cluster, groups=GROUPS))
        for dataset in (*DATASETS[SEARCHED], *DATASETS[NETWORKS])
        for store in (find_dataset(dataset, Path(__file__).parents[1]),)
        for name in store.names
    )


class OneGraph:
    """A graph of the study, walked with one policy's weights after the other.

    Args:
        space: The graph on its machine.
        policy: Whose weights runs begin with.
    """

    def __init__(self, space: SearchSpace, policy: PolicyWeights) -> None:
        self.rollouts = ImprovingRollouts(space, policy, Improvement(1))
        self.start_weights = policy.decoder.astype(np.float64)
        # The same spreads for all orders: those of the candidates of one constructed placement.
        self.units = units_of(
            [OneOrder(space, policy)], "upward-rank", self.start_weights
        )

    def run(self, order: str, seed: int, walks: int) -> Iterator[float]:
        """Yield the step time of the best placement after each generation, in seconds.

        Args:
            order: Order of the visits.
            seed: Seed of all draws of weights.
            walks: Number of walks of the run.
        """
        aim = Aim(order, self.rollouts.space.problem.num_devices)
        search = SepCMA(
            self.start_weights * self.units,
            STEP_SIZE,
            population_size=POPULATION,
            seed=seed,
        )
        best = self.rollouts.finish(aim, Walked(self.rollouts.get_start()))
        for _ in range(walks // POPULATION):
            start, outcomes = best, []
            for _ in range(POPULATION):
                member = search.ask()
                self.rollouts.weights = np.ascontiguousarray(
                    member / self.units, np.float32
                )
                device = self.rollouts.improve_once(aim, start.unit_device)
                placement = self.rollouts.finish(aim, Walked(device))
                outcomes.append((member, float(np.log(placement.score))))
                if placement.score < best.score:
                    best = placement
            search.tell(outcomes)
            yield best.score


@dataclass
class ImprovementStudy:
    """A study in a folder: what is there, what is to be added.

    Attributes:
        folder: The folder of rows and the report; made if it is not there.
        say: Called with a line of progress.
        rows: Rows that are there.
    """

    folder: Path
    say: Say
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = rows_of_folder(self.folder, FILE)

    def run(self, orders: Sequence[str], seeds: int) -> None:
        """Run what is missing, machine by machine and seed by seed."""
        policy = make_untrained().policy
        assert policy is not None
        for machine in machines():
            for name in RIVALS:
                if not self._has(machine, name, 0, 0):
                    begin = time.thread_time()
                    self._add(machine, name, 0, 0, rival_seconds(machine, name), begin)
            graphs = [OneGraph(space, policy) for space in graphs_on(machine)]
            for seed in range(seeds):
                for order in orders:
                    if not all(self._has(machine, order, seed, mark) for mark in MARKS):
                        self._run_order(machine, order, seed, graphs)
                self.say(f"{machine}: seed {seed} of {seeds} done")

    def _run_order(
        self, machine: str, order: str, seed: int, graphs: list[OneGraph]
    ) -> None:
        """Add the rows of an order and a seed: one run of every graph."""
        begin = time.thread_time()
        curves = [list(graph.run(order, seed, max(MARKS))) for graph in graphs]
        for mark in MARKS:
            if not self._has(machine, order, seed, mark):
                seconds = [rounded(curve[mark // POPULATION - 1]) for curve in curves]
                self._add(machine, order, seed, mark, seconds, begin)

    def _has(self, machine: str, placer: str, seed: int, walks: int) -> bool:
        """Say whether a cell's row is there."""
        cell = {"problem": machine, "placer": placer, "seed": seed, "budget": walks}
        return any(identity(row) == identity(cell) for row in self.rows)

    def _add(
        self,
        machine: str,
        placer: str,
        seed: int,
        walks: int,
        one: list[float],
        begin: float,
    ) -> None:
        """Append a row; its seconds are the processor's since ``begin``, for all walks of a run."""
        cell = {"problem": machine, "placer": placer, "seed": seed, "budget": walks}
        seconds = round(time.thread_time() - begin, 2)
        told = {"when": format_now(), "one": one, "seconds": seconds}
        row = {"study": "orders", **cell, **told, **provenance()}
        append(self.folder / FILE, row)
        self.rows.append(row)


def rival_seconds(machine: str, name: str) -> list[float]:
    """Return predicted seconds of another placer's first answer on each graph of a machine."""
    return [
        rounded(place(space.problem, placer=name, budget=0.0, space=space).step_time)
        for space in graphs_on(machine)
    ]


def study_improvement(
    folder: str | Path,
    *,
    orders: str = "",
    seeds: int = 10,
    run: bool = True,
    progress: Say = lambda line: None,
) -> None:
    """Run the study's missing cells, and write its tables.

    Args:
        folder: The folder of rows and tables; what is there is not run again.
        orders: Traversal orders, separated by commas; those of ``STUDIED`` by default.
        seeds: Runs of each order on each graph.
        run: Whether anything is run; otherwise what is there is reported.
        progress: Called with a line of progress.

    Raises:
        InputError: An unknown order, a number below 1, or nothing to report.
    """
    names = tuple(name for name in orders.split(",") if name) or STUDIED
    for name in names:
        if name not in FIXED_ORDERS:
            raise InputError(
                f"order {name!r}: unknown; orders: {', '.join(FIXED_ORDERS)}"
            )
    if seeds < 1:
        raise InputError("study: one seed at least")
    study = ImprovementStudy(Path(folder), progress)
    if run:
        study.run(names, seeds)
    table = Table(study.rows, graph_families(), RIVALS, MARKS)
    write_text(study.folder / REPORT, improvement_report(table, tuple(machines())))
    progress(f"{study.folder / REPORT}: written")
