"""The data set that is published: captured graphs with placements and their predicted step times.

``build_release`` writes one ``npz`` a split (no pickled objects), an index of all pairs as CSV, a
card, ``croissant.json`` and checksums. Splits are by model family: no two share one. Every graph
has ``PAIRS`` distinct placements on one cluster, of the placers ``PLACERS`` and then of random
draws. A predicted step time is what ``simulate`` says of the devices alone, which are ordered by
list scheduling, so that anybody can compute it anew.

``ReleaseStore`` reads a split; ``GraphDataset("train.npz", root)`` is a split for PyG.

Arrays of a split, G graphs with N ops and E edges in all, K kinds of devices, P pairs a graph:
``name`` and ``family`` [G]; ``op_offset`` and ``edge_offset`` [G + 1]; ``source``, ``target`` and
``bytes`` [E], edges by ops of their own graph; ``tensor`` [E], which output of the source it is;
``work``, ``launch`` [K, N] in seconds, ``state`` in bytes, ``phase``, ``unit`` [N]; ``cluster``
[G]; ``placer`` [G, P]; ``device`` [N, P]; ``step_time``, ``measured`` [G, P] in seconds, nan where
a placement was not measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.errors import FormatError, GnnplaceError, InputError
from gnnplace.files import csv_text, within, write_arrays, write_text
from gnnplace.graph import ComputationGraph
from gnnplace.placers import PLACERS as ROSTER
from gnnplace.problem import Placement, Problem, preset
from gnnplace.simulation import simulate
from gnnplace.train.data.captured import PARTS
from gnnplace.train.data.captured_graph import BROKEN, CapturedGraph, op_names
from gnnplace.train.data.croissant import DataSetCard, write_croissant
from gnnplace.train.data.datasets import dataset_problem, find_dataset, write_sums
from gnnplace.train.data.recipes import RECIPES

RELEASE = "release"  # name of its recipe
FORMAT, VERSION = "gnnplace-release", 1
PAIRS = 8
PLACERS = (
    "heft",
    "min-cut",
    "contiguous",
    "interleaved",
    "etf",
    "single",
    "round-robin",
)
CLUSTERS = (
    "pcie-a100-4",
    "nvlink-v100-4",
    "two-tier-a100-2x4",
    "mixed-a100-t4-4",
    "pcie-t4-4",
    "nvlink-a100-8",
)
MOST_DRAWS = 100  # of random placements of a graph
INDEX = "pairs.csv"
HEADINGS = (
    "split",
    "graph",
    "family",
    "ops",
    "cluster",
    "placer",
    "step_time_s",
    "measured_s",
)
Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class PlacedGraph:
    """A captured graph with placements on one cluster.

    Attributes:
        graph: The graph as it was captured, without groups.
        cluster: Name of a preset.
        placers: Who made each placement. [P]
        device: The device of each op by each placement. [n, P]
        step_time: Predicted seconds. [P]
    """

    graph: CapturedGraph
    cluster: str
    placers: tuple[str, ...]
    device: IntArray
    step_time: FloatArray


def build_release(
    folder: str | Path,
    names: Sequence[str] = tuple(RECIPES),
    *,
    start: str | Path = ".",
    progress: Say = lambda line: None,
) -> int:
    """Write the release of data sets into a folder.

    Args:
        folder: Made if it is not there.
        names: Names of the data sets whose graphs are released.
        start: Folder that they are asked for from.
        progress: Called with a line for each graph.

    Returns:
        How many pairs there are.

    Raises:
        InputError: A data set is missing, or the folder cannot be made.
    """
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder {str(folder)!r}: {error.strerror}") from None
    stores = [find_dataset(name, start) for name in names]
    graphs = [store.graph(name) for store in stores for name in store.names]
    placed: dict[str, list[PlacedGraph]] = {part: [] for part in PARTS}
    for number, graph in enumerate(graphs):
        progress(f"{number + 1}/{len(graphs)} {graph.name}: {graph.num_ops} ops")
        part = str(graph.origin["part"])
        placed[part].append(
            place_graph(graph, CLUSTERS[number % len(CLUSTERS)], number)
        )
    splits = {part: members for part, members in placed.items() if members}
    for part, members in splits.items():
        write_arrays(target / f"{part}.npz", split_arrays(members))
    write_text(target / INDEX, csv_text([HEADINGS, *_index_rows(splits)]))
    write_text(target / "README.md", release_card(splits))
    write_sums(target)
    files = [target / INDEX, *(target / f"{part}.npz" for part in splits)]
    write_croissant(target, files, RELEASE_CARD, records=INDEX)
    return sum(len(graph.placers) for members in splits.values() for graph in members)


def place_graph(graph: CapturedGraph, cluster: str, seed: int) -> PlacedGraph:
    """Return a graph with distinct placements: of the placers, then of random draws."""
    problem = dataset_problem(graph, preset(cluster), groups=None)
    placements: dict[bytes, tuple[str, IntArray, float]] = {}
    for name, device in _candidates(problem, seed):
        if len(placements) == PAIRS:
            break
        simulation = simulate(problem, Placement(device))
        if not simulation.faults:
            placements.setdefault(
                device.tobytes(), (name, device, simulation.step_time)
            )
    names, devices, seconds = zip(*placements.values(), strict=True)
    return PlacedGraph(
        graph=graph,
        cluster=cluster,
        placers=names,
        device=np.stack(devices, axis=1),
        step_time=np.array(seconds),
    )


def _candidates(problem: Problem, seed: int) -> Iterator[tuple[str, IntArray]]:
    """Yield devices of placers, then random ones: blocks of units in order of the graph."""
    for name in PLACERS:
        try:
            result = ROSTER[name].make().place(problem, budget=0.0, seed=seed)
        except GnnplaceError:
            continue
        yield name, result.placement.device
    rng = np.random.default_rng([seed, PAIRS])
    units = problem.unit_of
    for _ in range(MOST_DRAWS):
        blocks = int(rng.integers(2, 4 * problem.num_devices))
        bounds = np.sort(rng.integers(0, problem.num_units, blocks))
        of_block = rng.integers(0, problem.num_devices, blocks + 1)
        device = of_block[
            np.searchsorted(bounds, np.arange(problem.num_units), side="right")
        ]
        yield "random", device[units].astype(np.int32)


def split_arrays(members: Sequence[PlacedGraph]) -> dict[str, Any]:
    """Return the arrays of one split: its graphs and their placements."""
    graphs = [member.graph for member in members]
    kinds = graphs[0].kinds
    edges = [_edges(graph.graph) for graph in graphs]
    header = {"format": FORMAT, "version": VERSION, "kinds": kinds}
    arrays: dict[str, Any] = {
        "header": np.array(json.dumps(header)),
        "name": np.array([graph.name for graph in graphs]),
        "family": np.array([str(graph.origin["family"]) for graph in graphs]),
        "part": np.array([str(graph.origin["part"]) for graph in graphs]),
        "spec": np.array([str(graph.origin.get("spec", "")) for graph in graphs]),
        "cluster": np.array([member.cluster for member in members]),
        "placer": np.array([member.placers for member in members]),
        "op_offset": np.cumsum([0, *(graph.num_ops for graph in graphs)]).astype(
            np.int64
        ),
        "edge_offset": np.cumsum([0, *(len(columns[0]) for columns in edges)]).astype(
            np.int64
        ),
        "work": np.concatenate([graph.work for graph in graphs], axis=1).astype(
            np.float32
        ),
        "launch": np.concatenate([graph.launch for graph in graphs], axis=1).astype(
            np.float32
        ),
        "state": np.concatenate([graph.state for graph in graphs]).astype(np.float32),
        "phase": np.concatenate([graph.phase for graph in graphs]).astype(np.int8),
        "unit": np.concatenate([graph.unit for graph in graphs]).astype(np.int32),
        "device": np.concatenate([member.device for member in members]).astype(np.int8),
        "step_time": np.stack([member.step_time for member in members]),
        "measured": np.full((len(members), PAIRS), np.nan),
    }
    for column, key in enumerate(("source", "target", "tensor", "bytes")):
        kind = np.float64 if key == "bytes" else np.int32
        arrays[key] = np.concatenate([columns[column] for columns in edges]).astype(
            kind
        )
    return arrays


def _edges(graph: ComputationGraph) -> tuple[IntArray, IntArray, IntArray, FloatArray]:
    """Return producer, consumer, tensor and bytes of each edge; unread tensors are left out."""
    count = np.diff(graph.consumer_offset)
    tensor = np.repeat(np.arange(graph.num_tensors, dtype=np.int32), count)
    return graph.producer[tensor], graph.consumer, tensor, graph.size[tensor]


class ReleaseStore:
    """The graphs of a split, as a folder of captured graphs has them, and their placements.

    Attributes:
        names: Names of the graphs.
        device: Devices of every graph's ops by each placement, by name. [n, P]
        step_time: Predicted seconds, by name. [P]
        measured: Measured seconds, nan where there are none, by name. [P]

    Args:
        path: The file of the split.

    Raises:
        FormatError: It is missing or no split of a release.
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = Path(path)
        try:
            with np.load(path, allow_pickle=False) as file:
                self._arrays = {key: file[key] for key in file.files}
            header = json.loads(str(self._arrays["header"]))
        except BROKEN as error:
            raise FormatError(f"{path}: not a split of a release: {error}") from None
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise FormatError(f"{path}: not a {FORMAT} file")
        self.kinds = tuple(header["kinds"])
        self.names = tuple(self._arrays["name"].tolist())
        self._read: dict[str, CapturedGraph] = {}
        offsets = self._arrays["op_offset"]
        self.device = {
            name: self._arrays["device"][offsets[i] : offsets[i + 1]].astype(np.int32)
            for i, name in enumerate(self.names)
        }
        self.step_time = dict(zip(self.names, self._arrays["step_time"], strict=True))
        self.measured = dict(zip(self.names, self._arrays["measured"], strict=True))
        self.cluster = dict(
            zip(self.names, self._arrays["cluster"].tolist(), strict=True)
        )

    def graph(self, name: str) -> CapturedGraph:
        """Return the graph of that name.

        Raises:
            InputError: There is none.
        """
        if name not in self.names:
            raise InputError(f"graph {name!r}: not in {self.folder.name}")
        if name not in self._read:
            with within(self.folder):
                self._read[name] = self._graph(self.names.index(name))
        return self._read[name]

    def _graph(self, index: int) -> CapturedGraph:
        arrays = self._arrays
        ops = slice(*arrays["op_offset"][index : index + 2])
        edges = slice(*arrays["edge_offset"][index : index + 2])
        source, target = arrays["source"][edges], arrays["target"][edges]
        tensor, size = (
            arrays["tensor"][edges],
            arrays["bytes"][edges].astype(np.float64),
        )
        # Edges are ordered by tensor; the first edge of each tensor says its producer and bytes.
        _, first, count = np.unique(tensor, return_index=True, return_counts=True)
        graph = ComputationGraph(
            tuple(op_names(ops.stop - ops.start)),
            source[first],
            size[first],
            np.concatenate([[0], np.cumsum(count)]).astype(np.int32),
            target,
        )
        origin = {
            key: str(arrays[key][index]) for key in ("name", "family", "part", "spec")
        }
        return CapturedGraph(
            origin=origin,
            graph=graph,
            kinds=self.kinds,
            work=arrays["work"][:, ops].astype(np.float64),
            launch=arrays["launch"][:, ops].astype(np.float64),
            state=arrays["state"][ops].astype(np.float64),
            phase=arrays["phase"][ops],
            unit=arrays["unit"][ops],
        )

    def part(self, part: str) -> tuple[str, ...]:
        """Return the names of the graphs of a part of the split: train, validation or test."""
        return tuple(
            name for name in self.names if self.graph(name).origin["part"] == part
        )


def _index_rows(splits: dict[str, list[PlacedGraph]]) -> Iterator[tuple[Any, ...]]:
    for part, members in splits.items():
        for member in members:
            origin, ops = member.graph.origin, member.graph.num_ops
            for placer, seconds in zip(member.placers, member.step_time, strict=True):
                about = (
                    part,
                    member.graph.name,
                    origin["family"],
                    ops,
                    member.cluster,
                    placer,
                )
                yield (*about, repr(float(seconds)), "")


RELEASE_CARD = DataSetCard(
    name="gnnplace-placements",
    description=(
        "Training steps of neural networks as graphs of ops, with placements of their ops on the "
        "devices of a cluster and the predicted time of a step."
    ),
    collection=(
        "Training steps (forward, backward, update) of public model architectures with random "
        "weights and inputs were captured by gnnplace on a CPU. Placements were made by published "
        "heuristics and by random draws."
    ),
    limitations=(
        "Costs are roofline estimates from published peaks of five kinds of devices; step times "
        "are predictions of a simulator and not measurements. Dense models of the years 2014 to "
        "2024; no reinforcement learning, no diffusion."
    ),
    use_cases="Learning and testing of device placement, cost models and graph partitioning.",
)


def release_card(splits: dict[str, list[PlacedGraph]]) -> str:
    """Return the text of the release's card."""
    lines = [
        "# Placements of captured training steps",
        "",
        RELEASE_CARD.description,
        "",
        "| split | graphs | ops | pairs | families |",
        "|---|---:|---:|---:|---|",
    ]
    for part, members in splits.items():
        ops = sum(member.graph.num_ops for member in members)
        families = ", ".join(
            sorted({str(member.graph.origin["family"]) for member in members})
        )
        pairs = sum(len(member.placers) for member in members)
        lines.append(f"| {part} | {len(members)} | {ops:,} | {pairs:,} | {families} |")
    lines += [
        "",
        "No two splits share a family. A pair is a graph, a device for each op, and the predicted",
        "seconds of a step with these devices; ops are ordered by list scheduling. The column for",
        "measured seconds is there and empty: no pair is measured yet.",
        "",
        "```python",
        "from gnnplace.train.data.graph_dataset import GraphDataset",
        "",
        'train = GraphDataset("train.npz", root="cache")    # graphs of PyTorch Geometric',
        "train[0].placement, train[0].step_time              # [n, 8] devices, [1, 8] seconds",
        "```",
        "",
        f"* **Collection**: {RELEASE_CARD.collection}",
        f"* **Limits**: {RELEASE_CARD.limitations}",
        "* **Format**: one `npz` a split without pickled objects; the docstring of",
        "  `gnnplace/train/data/release.py` names the arrays. `pairs.csv` lists all pairs.",
        "* **Licence**: CC-BY-4.0. Random weights and inputs; nothing of persons is in it.",
        "* **Made by** `gnnplace data build FOLDER --recipe release`; checked against `SHA256SUMS`",
        "  by `gnnplace data verify FOLDER`; described for tools in `croissant.json`.",
    ]
    return "\n".join(lines) + "\n"
