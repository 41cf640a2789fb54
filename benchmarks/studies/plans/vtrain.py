"""vTrain's single-node file: GPT on 2 to 8 A100 under Megatron-DeepSpeed.

VIA-Research/vTrain (MIT), data/ground_truth_single.csv, commit f8dda847: 796 rows of hidden sizes
1024 and 2048, 12 to 24 layers, 1,024 tokens, in half precision. **The file is composed, not
measured row by row**: in all its cells time is linear in the number of micro-batches to rounding,
and the same for every number of replicas, so that some 32 measured cells (hidden size, micro-batch,
shards) make all of it. It says nothing of overlap, contention or jitter, and a random split holds
nothing out: what is fitted here is fitted on one hidden size and tested on the other.

`unfitted` predicts every row as a plan that is given, with constants from elsewhere (`megatron`);
`fitted` has five constants (`megatron.Host`) by least squares of log errors on hidden size 1024.
Nothing is recomputed, as the largest rows say, and attention is in products, softmax and dropout.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from scipy.optimize import minimize

from benchmarks.studies.plans.megatron import HOST, Host, Megatron, gpt
from benchmarks.studies.plans.runs import Run
from gnnplace.plans.answers import price_given_plan
from gnnplace.plans.given import find_layer_bounds
from gnnplace.plans.segments.chain import Chain
from gnnplace.plans.spec import EQUAL
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.cluster.presets import make_preset

BATCH = 128  # the largest of the file: all others divide it
FITTED, TESTED = 1024, 2048


@dataclass(frozen=True)
class Row:
    """A row of the file; seconds."""

    devices: int
    batch: int
    size: int
    hidden: int
    layers: int
    shards: int
    replicas: int
    stages: int
    seconds: float

    @property
    def question(self) -> str:
        """What could have been chosen between."""
        return f"GPT {self.hidden} x {self.layers}, {self.devices} A100, batch {self.batch}"

    @property
    def words(self) -> str:
        """As a given plan."""
        split = f"dp={self.replicas},tp={self.shards},pp={self.stages},layers=equal"
        return f"{split},microbatch_size={self.size}"


@cache
def rows() -> tuple[Row, ...]:
    """The file's rows."""
    data = (files("benchmarks.studies.plans") / "vtrain.csv.gz").read_bytes()
    found = []
    for line in list(csv.reader(io.StringIO(gzip.decompress(data).decode())))[1:]:
        devices, batch, size, hidden, _, layers, _, t, d, p = (
            int(x) for x in line[:10]
        )
        found.append(
            Row(devices, batch, size, hidden, layers, t, d, p, float(line[10]) / 1e3)
        )
    return tuple(found)


@cache
def machine() -> Cluster:
    """Eight A100; memory is no matter, since all rows were run."""
    return make_preset("nvswitch-a100-80-8")


@cache
def captured(hidden: int, layers: int) -> Chain:
    """A model of the file."""
    return gpt(machine(), hidden, 16, layers, 1024, BATCH, attention="eager")


def capture_chain(row: Row, host: Host) -> Chain:
    """The model of a row, at its batch."""
    chain = captured(row.hidden, row.layers)
    assert isinstance(chain.source, Megatron)
    return replace(
        chain, batch=row.batch, source=replace(chain.source, host=host), _known={}
    )


def runs(given: Sequence[Row], host: Host = HOST) -> list[Run]:
    """Rows as plans that are given."""
    known: dict[tuple[int, int, int], Chain] = {}
    found = []
    for row in given:
        key = (row.hidden, row.layers, row.batch)
        chain = known.setdefault(key, capture_chain(row, host))
        plan = price_given_plan(chain, machine(), row.words)
        found.append(Run(row.question, row.words, plan.step_time, row.seconds))
    return found


def unfitted() -> list[Run]:
    """All rows with constants from elsewhere."""
    return runs(rows())


def fitted() -> tuple[Host, list[Run]]:
    """Constants fitted on the rows of one hidden size, and those of the other predicted by them."""
    known = [row for row in rows() if row.hidden == FITTED]
    start = np.array([1.0, 1.0, 0.2, 1.0, 5.0])
    options = {"maxiter": 250, "xatol": 1e-2, "fatol": 1e-5}
    found: Any = minimize(
        lambda x: _missed(_host(x), known), start, method="Nelder-Mead", options=options
    )  # type: ignore[call-overload]
    host = _host(found.x)
    return host, runs([row for row in rows() if row.hidden == TESTED], host)


def _host(x: np.ndarray) -> Host:
    """Two factors of floors from elsewhere, two of milliseconds, one of seconds a PFLOP."""
    forward, backward, waiting, outside, head = (float(value) for value in np.abs(x))
    floors = HOST.forward * forward, HOST.backward * backward
    return Host(*floors, 1e-3 * waiting, 1e-3 * outside, 1e-15 * head)


def _missed(host: Host, known: Sequence[Row]) -> float:
    """Mean square of log errors, by the formula of 1F1B."""
    costs: dict[tuple[int, int, int, int], tuple[np.ndarray, np.ndarray]] = {}
    errors = []
    for row in known:
        key = (row.hidden, row.layers, row.shards, row.size)
        if key not in costs:
            costs[key] = _sums(row, host)
        seconds, update = costs[key]
        cuts = find_layer_bounds(captured(row.hidden, row.layers), EQUAL, row.stages)
        stages = np.add.reduceat(seconds, cuts[:-1])
        count = row.batch / row.size / row.replicas
        total = stages.sum() + (count - 1) * stages.max()
        ends = np.add.reduceat(update, cuts[:-1])
        errors.append(np.log((total + ends.max()) / row.seconds))
    return float(np.mean(np.square(errors)))


def _sums(row: Row, host: Host) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of every segment of a micro-batch, and of its update."""
    found = capture_chain(row, host).costs(["a100-80"], (row.shards,), row.size)
    assert found is not None
    return found.forward + found.backward + found.weights, found.update
