"""Problems from captured training graphs: a store of graphs, and draws from it.

A draw takes one graph, groups its ops or not, cuts the batch into micro-batches, puts it on a
drawn cluster and gives the devices ample or tight memory; the same arguments give the same problem.

**Costs** of a share 1/M of the batch: ``launch + work / M`` for forward and backward ops (updates
do not depend on the batch), a tensor's bytes over M unless only updates take it (gradients have
the parameter's size). An approximation: what an op does beside the batch is divided as well.

**Links** are drawn from real ones: of a CPU's workers or of GPUs (``LINKS``), from slow to fast.

**Tight memory**: a device holds ``TIGHT`` times a fair share of what all ops need on one device
with all micro-batches in flight, but never less than what contiguous chunks of equal need take at
their peak, so that something fits.

What the store of captured graphs is made of: models, sizes; the split by family of all graphs.

Sizes follow the models' own papers and cards ("base", "large") and smaller ones beside them; the
batch is what one device would take. All of a family is in one part of the split, so that a policy
trained on the training part has never seen any graph of a held-out family.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml

from gnnplace.arrays import IntArray
from gnnplace.errors import InputError
from gnnplace.files import MOST
from gnnplace.graph import ComputationGraph
from gnnplace.placers import SearchSpace
from gnnplace.problem import UPDATE, Cluster, Problem, build_problem, with_microbatches
from gnnplace.train.data.captured_graph import CapturedGraph, read_captured
from gnnplace.train.data.random_clusters import CLUSTERS, check_cluster, make_cluster

TRAIN = "train"
VALIDATION = "validation"
TEST = "test"
PARTS = (TRAIN, VALIDATION, TEST)


@cache
def read_model_list() -> dict[str, Any]:
    """Return the contents of ``models.yaml``: recipes, the split of families, models by recipe."""
    text = Path(__file__).with_name("models.yaml").read_text(encoding="utf-8")
    contents: dict[str, Any] = yaml.safe_load(text)
    return contents


def _split(which: str) -> dict[str, str]:
    parts = read_model_list()["split"][which]
    return {family: part for part in PARTS for family in parts[part]}


SPLIT, MORE_SPLIT = _split("store"), _split("others")
"""Part of each family: of the store's, and of those of the datasets beside it (``recipes``)."""


@dataclass(frozen=True)
class CapturedModel:
    """One graph of the store.

    Attributes:
        name: The name of the graph and its file.
        family: A key of ``SPLIT`` or of ``MORE_SPLIT``.
        spec: The model as ``gnnplace capture`` takes it.
        optimizer: What the training step updates with.
        fake: Captured without memory; False where the model's code asks for real numbers.
    """

    name: str
    family: str
    spec: str
    optimizer: str = "adamw"
    fake: bool = True

    @property
    def part(self) -> str:
        """Return the part of the split that the graph is in."""
        return SPLIT.get(self.family) or MORE_SPLIT[self.family]


def list_recipe_models(recipe: str) -> tuple[CapturedModel, ...]:
    """Return the models of a recipe that ``models.yaml`` lists."""
    return tuple(CapturedModel(**row) for row in read_model_list()[recipe])


__all__ = [
    "TEST",
    "TRAIN",
    "VALIDATION",
    "CapturedStore",
    "draw_captured_problem",
    "open_shipped_store",
]

Generator = np.random.Generator
Link = tuple[str, str, float, float]
T = TypeVar("T")
AMPLE = "ample"
TIGHT_MEMORY = "tight"
MEMORY = (AMPLE, TIGHT_MEMORY)
MICROBATCHES = (1, 4, 8)
MOST_OPS = 10_000
TIGHT = 1.3  # fair shares that a device holds
MARGIN = 1.1  # Relative to the peak of the chunks that must fit
# A faster kind, a slower one, and how fast their links are, bytes/s from slow to fast: processes
# of a CPU (loopback to shared memory), GPUs (25 Gbit/s network to NVLink).
LINKS: tuple[Link, ...] = (
    ("cpu", "cpu", 1e9, 1.2e10),
    ("v100", "t4", 3e9, 1.5e11),
    ("a100", "v100", 3e9, 3e11),
    ("h100", "a100", 3e9, 4.5e11),
)
LATENCY = (2e-6, 3e-5)  # seconds: NVLink or shared memory, to a network
SLOWER = 2.5  # times of the slow devices where both are of one kind


class CapturedStore:
    """The graphs of a folder that ``gnnplace data build`` made; each is read once.

    Args:
        folder: The folder of the graphs' files.

    Raises:
        InputError: There are none.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.names = tuple(sorted(path.stem for path in self.folder.glob("*.npz")))
        if not self.names:
            raise InputError(
                f"store {str(folder)!r}: no captured graphs; make them: gnnplace data build FOLDER"
            )
        self._read: dict[str, CapturedGraph] = {}

    def graph(self, name: str) -> CapturedGraph:
        """Return the graph of that name, as it was captured.

        Raises:
            InputError: There is none.
            FormatError: Its file is damaged.
        """
        if name not in self.names:
            raise InputError(
                f"captured graph {name!r}: unknown; graphs: {', '.join(self.names)}"
            )
        if name not in self._read:
            self._read[name] = read_captured(self.folder / f"{name}.npz")
        return self._read[name]

    def part(self, part: str) -> tuple[str, ...]:
        """Return the names of the graphs of a part of the split: train, validation or test."""
        return tuple(
            name for name in self.names if self.graph(name).origin["part"] == part
        )


@cache
def open_shipped_store() -> CapturedStore:
    """Return the store that comes with the package."""
    return CapturedStore(Path(__file__).parent / "store")


@dataclass(frozen=True)
class CapturedDraws:
    """The distribution of problems of a captured graph.

    Attributes:
        groups: Least and most groups; None: the graph as captured.
        clusters: Types of clusters to draw from.
        devices: Least and most devices.
        microbatches: Numbers of micro-batches to draw from.
        memory: ``ample``, ``tight`` or both to draw from.
        batch: Least and most of the captured batch, to vary how much work there is a launch.
        most_ops: No number of micro-batches is drawn that makes more ops than this.
    """

    groups: tuple[int, int] | None = (60, 400)
    clusters: tuple[str, ...] = CLUSTERS
    devices: tuple[int, int] = (2, 8)
    microbatches: tuple[int, ...] = MICROBATCHES
    memory: tuple[str, ...] = MEMORY
    batch: tuple[float, float] = (1.0, 1.0)
    most_ops: int = MOST_OPS


def draw_captured_problem(
    store: CapturedStore, name: str, seed: int, draws: CapturedDraws | None = None
) -> Problem:
    """Return a problem drawn from one graph of a store.

    Args:
        store: Where the graph is.
        name: The name of the graph.
        seed: The seed of everything that is drawn; a draw does not depend on other draws' choices.
        draws: What it is drawn from; the defaults of ``CapturedDraws`` without it.

    Raises:
        InputError: There is no such graph, cluster or memory.
    """
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    graph = store.graph(name)
    draws = draws or CapturedDraws()
    target = int(_between(draws.groups or (1, 1), rng))
    if draws.groups is not None:
        graph = graph.coarsened(target)
    counts = draws.microbatches
    fitting = [m for m in counts if m * graph.num_ops <= draws.most_ops] or [
        min(counts)
    ]
    draw = Draw(
        devices=int(rng.integers(draws.devices[0], draws.devices[1] + 1)),
        cluster=_pick(draws.clusters, rng),
        microbatches=_pick(fitting, rng),
        memory=_pick(draws.memory, rng),
        scale=_between(draws.batch, rng),
    )
    link = _pick(LINKS, rng)
    costs = {
        "fast": (link[0], 1.0),
        "slow": (link[1], SLOWER if link[0] == link[1] else 1.0),
    }
    cluster = _cluster(draw, link, rng)
    share = draw.scale / draw.microbatches
    one = make_share_problem(graph, f"{graph.name}-{seed}", cluster, share, costs)
    problem = with_microbatches(one, draw.microbatches, profiled=True)
    return with_memory(
        problem,
        tight_memory(problem) if draw.memory == TIGHT_MEMORY else ample_memory(problem),
    )


@dataclass(frozen=True)
class Draw:
    """The draws for one problem.

    Attributes:
        devices: The number of devices.
        cluster: The type of the cluster, one of ``CLUSTERS``.
        microbatches: Shares of the batch, M.
        memory: How much memory devices have, ``ample`` or ``tight``.
        scale: The batch over the captured one.
    """

    devices: int
    cluster: str
    microbatches: int
    memory: str
    scale: float

    def __post_init__(self) -> None:
        check_cluster(self.cluster)
        if self.memory not in MEMORY:
            raise InputError(f"memory {self.memory!r}: unknown; {' or '.join(MEMORY)}")


def _pick(options: Sequence[T], rng: Generator) -> T:
    """Return one of ``options``, drawing one random number however many there are."""
    return options[int(rng.random() * len(options))]


def _between(ends: tuple[float, float], rng: Generator) -> float:
    """Return a number between both ends, evenly in its logarithm."""
    return float(np.exp(rng.uniform(*np.log(ends))))


def _cluster(draw: Draw, link: Link, rng: Generator) -> Cluster:
    bandwidth = _between(link[2:], rng)
    latency = _between(LATENCY, rng)
    return make_cluster(draw.cluster, draw.devices, bandwidth, latency, MOST, rng)


def make_share_problem(
    graph: CapturedGraph,
    name: str,
    cluster: Cluster,
    share: float,
    costs: Mapping[str, tuple[str, float]],
) -> Problem:
    """Return the problem of a share of the batch.

    Args:
        graph: The captured graph.
        name: The name of the problem.
        cluster: Its devices.
        share: The part of the captured batch.
        costs: For each kind of device, the kind whose costs of the graph it has, and their factor.
    """
    of_op = np.where(graph.phase == UPDATE, 1.0, share)
    time = {}
    for kind in cluster.kinds:
        row = graph.kinds.index(costs[kind][0])
        factor = costs[kind][1]
        time[kind] = factor * (graph.launch[row] + graph.work[row] * of_op)
    return build_problem(
        name,
        resize_graph(graph, share),
        cluster,
        time,
        state=graph.state,
        phase=graph.phase,
        colocate=graph.colocate,
        estimated=np.ones(graph.num_ops, dtype=bool),
    )


def resize_graph(captured: CapturedGraph, share: float) -> ComputationGraph:
    """Return the graph with the tensors of a share of the batch.

    Gradients of parameters stay whole.
    """
    graph = captured.graph
    taken = np.zeros(graph.num_tensors, dtype=bool)
    np.logical_or.at(
        taken, graph.consumption_tensor, captured.phase[graph.consumer] != UPDATE
    )
    return replace(graph, size=np.where(taken, graph.size * share, graph.size))


def with_memory(problem: Problem, memory: float) -> Problem:
    """Return the problem on devices of that many bytes each."""
    return replace(problem, cluster=problem.cluster.each_device(memory=memory))


def ample_memory(problem: Problem) -> float:
    """Return the bytes of each device such that everything fits twice on one."""
    return 2.0 * float(problem.state.sum() + problem.graph.size.sum())


def tight_memory(problem: Problem) -> float:
    """Return the bytes of each device that chunks fit into and everything on one does not.

    See the module.
    """
    space = SearchSpace(problem)
    on_one = np.zeros(problem.num_ops, dtype=np.int32)
    needed = space.simulator.run(on_one, space.turn_order).peak_memory.max()
    chunks = space.spread(_chunks(space))
    peak = space.simulator.run(chunks, space.turn_order).peak_memory.max()
    return float(max(TIGHT * needed / problem.num_devices, MARGIN * peak))


def _chunks(space: SearchSpace) -> IntArray:
    """Return contiguous chunks of units with equal bytes of state and outputs. [U]"""
    problem = space.problem
    count = space.problem.num_devices
    output_bytes = np.bincount(
        problem.graph.producer, problem.graph.size, problem.num_ops
    )
    need = np.bincount(
        problem.unit_of, problem.state + output_bytes, problem.num_units
    )[space.unit_order]
    middle = np.cumsum(need) - need / 2
    result = np.empty(problem.num_units, dtype=np.int32)
    result[space.unit_order] = np.minimum(
        count - 1, count * middle / max(need.sum(), 1.0)
    )
    return result
