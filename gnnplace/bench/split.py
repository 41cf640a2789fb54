"""Cells that split a network's layers: seconds of the sharding cost model."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnnplace.bench.suite import Cell, ProblemEntry
from gnnplace.problem import ruled
from gnnplace.sharding import (
    Machine,
    Setting,
    ShardingProblem,
    SplitSpace,
    best_strategy,
    build_network,
    expert,
    greedy,
    random_search,
    sharding_problem,
)

Data = dict[str, Any]
PROPOSALS = (
    1_000_000  # of a random search for a split without a budget: less than a second
)


@dataclass(frozen=True)
class NetworkTables:
    """A network's sharding tables, and what they were made for."""

    setting: Setting
    tables: ShardingProblem

    def described(self, entry: ProblemEntry) -> Data:
        """Return the part of a row that tells of the problem."""
        hashed = hashlib.sha256()
        for array in (
            *self.tables.cost,
            *(np.asarray(edge.cost) for edge in self.tables.edges),
        ):
            hashed.update(np.ascontiguousarray(array).tobytes())
        return {
            "num_ops": len(self.tables.names),
            "num_devices": self.setting.devices,
            "microbatches": 1,
            "digest": ruled(f"{hashed.hexdigest()[:12]}-split"),
            "family": self.setting.network.name,
            "cluster": f"{self.setting.devices} devices",
            "clock": "modelled",
        }

    def outcome(self, cell: Cell, mode: str, keep: str = "") -> Data:
        """Return the outcome of the method; see ``kinds.Loaded``."""
        begin = time.perf_counter()
        bound = None
        if cell.placer == EXACT_SHARDER:
            strategy = best_strategy(self.tables, bounded=True)
            if strategy.exact:
                bound = strategy.cost
            else:
                bound = strategy.bound
            configuration: tuple[int, ...] = strategy.configuration
        else:
            configuration = SHARDERS[cell.placer](self, cell)
        parts = self.setting.parts(configuration)
        outcome = {"step_time": parts.total, "lower_bound": bound, "feasible": True}
        seconds = time.perf_counter() - begin
        return outcome | {"peak_memory": [parts.memory], "seconds": seconds}


def load_split(entry: ProblemEntry) -> NetworkTables:
    """Return a network and its tables.

    Raises:
        GnnplaceError: There is no such network.
    """
    setting = Setting(
        build_network(str(entry.network)), entry.ways, Machine(), SplitSpace()
    )
    tables = sharding_problem(
        setting.network, entry.ways, setting.machine, space=SplitSpace()
    )
    return NetworkTables(setting, tables)


def _random(loaded: NetworkTables, cell: Cell) -> tuple[int, ...]:
    start = loaded.setting.data_parallel()
    if cell.budget > 0:
        limit = {"seconds": cell.budget}
    else:
        limit = {}
    proposals = PROPOSALS if cell.budget <= 0 else 10**9
    return random_search(
        loaded.tables, start, seed=cell.seed, proposals=proposals, **limit
    )


Sharder = Callable[[NetworkTables, Cell], tuple[int, ...]]
EXACT_SHARDER = "elimination"
SHARDERS: dict[str, Sharder] = {
    "data-parallel": lambda loaded, cell: loaded.setting.data_parallel(),
    "expert": lambda loaded, cell: expert(loaded.setting, loaded.tables),
    "greedy": lambda loaded, cell: greedy(loaded.tables),
    "random-chain": _random,
}
