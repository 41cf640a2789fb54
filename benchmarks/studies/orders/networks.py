"""The order study with a network that decides: one GNN trained under each traversal order.

The question of Wang et al. (2022, arXiv 2201.09676), asked of ``--placer gnn``'s network and
training: the same network, the same problems, as many steps, another order of the walk. Theirs
improves a placement of one graph; this one constructs them. Their three families of graphs are
placed on four GPUs by one greedy decode each.

* ``pretrained``: trained on the training families of the package (none of the three), evaluated on
  every graph.
* ``own``: the same networks, trained further on the graphs of even number of one family; evaluated
  on its graphs of odd number.

Rows, append-only JSON Lines in ``networks.jsonl``: of a part (``problem``), an order or a rival
(``placer``) and a seed, ``one``: predicted seconds of each problem. ``budget`` is the number of
steps of the first training. Networks are in ``networks/``. What is there is not run again.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import LightningDataModule, Trainer

from benchmarks.studies.orders.folder import rows_of_folder
from benchmarks.studies.orders.networks_report import (
    OWN,
    PRETRAINED,
    RIVALS,
    Table,
    networks_report,
)
from benchmarks.studies.orders.problems import DATASETS, SEARCHED
from gnnplace.bench.rows import append, format_now, identity, provenance
from gnnplace.errors import InputError
from gnnplace.files import write_text
from gnnplace.graph.orders import FIXED_ORDERS, LEARNED
from gnnplace.placers import SearchSpace
from gnnplace.placing.roster import place
from gnnplace.policy.gnn.network import GnnPolicy, read_gnn
from gnnplace.policy.gnn.placer import GnnPlacer
from gnnplace.problem import Problem
from gnnplace.problem.cluster.presets import make_preset
from gnnplace.train.data.datasets import dataset_problem, find_dataset
from gnnplace.train.data_module import ProblemDataModule
from gnnplace.train.learner import save_whole
from gnnplace.train.one_problem import FewProblems
from gnnplace.train.reinforce import Reinforce

Say = Callable[[str], None]
FILE, REPORT = "networks.jsonl", "networks.md"
STUDIED = (
    "topological",
    "reverse-topological",
    "breadth-first",
    "depth-first-pre",
    "depth-first-post",
    "lexicographic",
    "upward-rank",
    LEARNED,
    "random",
)
KNOWN = (*FIXED_ORDERS, LEARNED)
CLUSTER, GROUPS = "nvlink-v100-4", 200  # the machine, and ops of a graph on it
OWN_GROUPS = (120, 160, 200, 240)  # of the graphs that a family is learned from
OWN_SHARE = 8  # first training over that on one family, in steps
SMALL: dict[str, Any] = {"samples": 24, "kept": 6}  # draws of each problem
BATCH = 4  # problems a step: many small steps
CLUSTERS = (
    "nvlink-v100-4",
    "pcie-v100-4",
    "nvlink-a100-4",
    "pcie-t4-4",
    "mixed-v100-t4-4",
)


@dataclass
class NetworkStudy:
    """A study in a folder: what is there, what is to be added.

    Attributes:
        folder: the folder of rows, networks and the report; made if it is not there.
        steps: training steps of each order.
        say: called with a line of progress.
        rows: that are there.
    """

    folder: Path
    steps: int
    say: Say
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = rows_of_folder(self.folder, FILE)

    def run(self, orders: Sequence[str], seeds: int) -> None:
        """Trains and evaluates what is missing, seed by seed."""
        for name in RIVALS:
            self._add_once(PRETRAINED, name, 0, partial(_by_placer, name))
        for seed, order in product(range(seeds), orders):
            self._add_once(
                PRETRAINED, order, seed, partial(self._pretrained, order, seed)
            )
        for seed, order in product(range(seeds), orders):
            self._add_once(OWN, order, seed, partial(self._own, order, seed))

    def _pretrained(self, order: str, seed: int) -> list[float]:
        graphs = every_graph()
        return _by_network([self._trained(order, seed)] * len(graphs), graphs)

    def _own(self, order: str, seed: int) -> list[float]:
        networks = [self._trained(order, seed, family) for family in DATASETS[SEARCHED]]
        return _by_network(networks, [graphs[1::2] for graphs in every_graph()])

    def _trained(self, order: str, seed: int, family: str | None = None) -> GnnPolicy:
        """The network of an order and a seed, trained further on a family if one is given."""
        folder = (
            self.folder / "networks" / f"{order}-{seed}{f'-{family}' if family else ''}"
        )
        if not (folder / "config.json").exists():
            begin = time.perf_counter()
            module, data, steps = self._training(order, seed, family)
            save_whole(fitted(module, data, steps, seed), folder)
            self.say(
                f"{folder.name}: {steps} steps in {time.perf_counter() - begin:.0f} s"
            )
        return read_gnn(folder)

    def _training(
        self, order: str, seed: int, family: str | None
    ) -> tuple[Reinforce, LightningDataModule, int]:
        torch.manual_seed(seed)
        if family is None:
            return (
                Reinforce(order=order, steps=self.steps, **SMALL),
                training_data(seed),
                self.steps,
            )
        steps = max(1, self.steps // OWN_SHARE)
        start = str(self.folder / "networks" / f"{order}-{seed}")
        module = Reinforce(
            order=order, steps=steps, start=start, learning_rate=5e-4, **SMALL
        )
        return module, FewProblems(own_problems(family), steps, BATCH), steps

    def _add_once(
        self, part: str, placer: str, seed: int, seconds: Callable[[], list[float]]
    ) -> None:
        cell = {"problem": part, "placer": placer, "seed": seed, "budget": self.steps}
        if any(identity(row) == identity(cell) for row in self.rows):
            return
        row = {
            "study": "orders",
            **cell,
            "when": format_now(),
            "one": seconds(),
            **provenance(),
        }
        append(self.folder / FILE, row)
        self.rows.append(row)
        self.say(f"{part}, {placer}, seed {seed}: done")


def study_network_orders(
    folder: str | Path,
    *,
    orders: str = "",
    seeds: int = 1,
    steps: int = 1200,
    run: bool = True,
    progress: Say = lambda line: None,
) -> None:
    """Trains a network under each traversal order, evaluates them, and writes the table.

    Args:
        folder: the folder of rows, networks and the table; what is there is not run again.
        orders: traversal orders, separated by commas; those of ``STUDIED`` by default.
        seeds: trainings of each order.
        steps: steps of each training.
        run: whether anything is run; otherwise what is there is reported.
        progress: called with a line of progress.

    Raises:
        InputError: an unknown order, a number below 1, or nothing to report.
    """
    names = tuple(name for name in orders.split(",") if name) or STUDIED
    for name in names:
        if name not in KNOWN:
            raise InputError(f"order {name!r}: unknown; orders: {', '.join(KNOWN)}")
    if seeds < 1 or steps < 1:
        raise InputError("study: one seed, one step: give no less")
    study = NetworkStudy(Path(folder), steps, progress)
    if run:
        study.run(names, seeds)
    families = [name for name in DATASETS[SEARCHED] for _ in range(_graphs_of(name))]
    table = Table(study.rows, families, steps)
    write_text(study.folder / REPORT, networks_report(table))
    progress(f"{study.folder / REPORT}: written")


def fitted(
    module: Reinforce, data: LightningDataModule, steps: int, seed: int
) -> GnnPolicy:
    """The moving average of a network after so many steps."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=-1,
            max_steps=steps,
            limit_val_batches=0,
            gradient_clip_val=1.0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(module, datamodule=data)
    return module.average


def training_data(seed: int) -> ProblemDataModule:
    """What all orders are trained on: small problems of the training families."""
    return ProblemDataModule(
        ops=(20, 150),
        captured=0.6,
        groups=(60, 250),
        datasets=("networks",),
        presets=CLUSTERS,
        on_presets=0.6,
        microbatches=(1,),
        problems=640,
        pool=640,
        batch_size=BATCH,
        seed=seed,
    )


def own_problems(family: str) -> list[Problem]:
    """The problems of a family to learn from: its graphs of even number, in several sizes."""
    store, cluster = (
        find_dataset(family, Path(__file__).parents[1]),
        make_preset(CLUSTER),
    )
    graphs = [store.graph(name) for name in store.names[::2]]
    return [
        dataset_problem(g, cluster, groups=groups)
        for groups in OWN_GROUPS
        for g in graphs
    ]


@cache
def every_graph() -> list[list[SearchSpace]]:
    """All graphs of the three families on the machine, a list a family."""
    cluster, result = make_preset(CLUSTER), []
    for family in DATASETS[SEARCHED]:
        store = find_dataset(family, Path(__file__).parents[1])
        graphs = [store.graph(name) for name in store.names]
        problems = [dataset_problem(graph, cluster, groups=GROUPS) for graph in graphs]
        result.append([SearchSpace(problem) for problem in problems])
    return result


def _graphs_of(family: str) -> int:
    return len(find_dataset(family, Path(__file__).parents[1]).names)


def _by_network(
    networks: Sequence[GnnPolicy], spaces: list[list[SearchSpace]]
) -> list[float]:
    """Predicted seconds of one greedy decode of each problem, a network a family."""
    placers = [GnnPlacer(network) for network in networks]
    return [
        rounded(placer.place(space.problem, space=space).step_time)
        for placer, family in zip(placers, spaces, strict=True)
        for space in family
    ]


def _by_placer(name: str) -> list[float]:
    """Predicted seconds of another placer's first answer on each problem."""
    return [
        rounded(place(space.problem, placer=name, budget=0.0, space=space).step_time)
        for family in every_graph()
        for space in family
    ]


def rounded(value: float) -> float:
    """``value`` to six significant digits, to keep rows short."""
    return float(np.format_float_positional(value, 6, fractional=False))
