"""The data set that is published: captured graphs with placements and their predicted step times.

``build_release`` writes one ``npz`` a split (no pickled objects), an index of all pairs as CSV, a
card, ``croissant.json`` and checksums. Splits are by model family: no two share one. Every graph
has ``PAIRS`` distinct placements on one cluster, of heuristics and then of random draws. A
predicted step time is what ``simulate`` says of the devices alone, which are ordered by list
scheduling, so that anybody can compute it anew (``ReleaseStore.problem``).

Graphs of the data set ``measured`` have their placements on two CPU workers. Their predictions are
by op times and links that were profiled on the machine that measured them.

``ReleaseStore`` reads a split; ``GraphDataset("train.npz", root)`` is a split for PyG.

Arrays of a split, G graphs with N ops and E edges in all, K kinds of devices, P pairs a graph:
``name`` and ``family`` [G]; ``op_offset`` and ``edge_offset`` [G + 1]; ``source``, ``target`` and
``bytes`` [E], edges by ops of their own graph; ``tensor`` [E], which output of the source it is;
``work``, ``launch`` [K, N] in seconds, ``state`` in bytes, ``phase``, ``unit`` [N]; ``cluster``
[G], the name of a preset or ``cpu:2``; ``placer`` [G, P]; ``device`` [N, P]; ``step_time``,
``measured`` [G, P] in seconds, nan where a placement was not measured; ``clock`` [G, P], of the
measurement: ``wall``, ``virtual`` (the workers' own processor time) or empty; ``profiled`` [N] in
seconds, nan where ops were not profiled; ``machine`` [G], the devices and links of a cluster that
is no preset, as JSON.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.errors import FormatError, InputError
from gnnplace.files import csv_text, within, write_arrays, write_text
from gnnplace.graph import ComputationGraph
from gnnplace.measurements import FEWEST, agreement
from gnnplace.problem import Problem, cluster_from_data, cluster_to_data, make_preset
from gnnplace.train.data.captured import PARTS
from gnnplace.train.data.captured_graph import BROKEN, CapturedGraph, op_names
from gnnplace.train.data.croissant import DataSetCard, write_croissant
from gnnplace.train.data.datasets import dataset_problem, find_dataset, write_sums
from gnnplace.train.data.measured_pairs import (
    MeasuredGraph,
    MeasuredProfile,
    profile_problem,
    read_pairs,
)
from gnnplace.train.data.placements import (
    PAIRS,
    DistinctPlacements,
    distinct_placements,
)
from gnnplace.train.data.recipes import RECIPES

RELEASE = "release"  # name of its recipe
FORMAT, VERSION = "gnnplace-release", 1
CLUSTERS = (
    "pcie-a100-4",
    "nvlink-v100-4",
    "two-tier-a100-2x4",
    "mixed-a100-t4-4",
    "pcie-t4-4",
    "nvlink-a100-8",
)
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
    "clock",
)
Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class PlacedGraph:
    """A captured graph with placements on one cluster.

    Attributes:
        graph: The graph as it was captured, without groups.
        cluster: Name of a preset, or of the workers that it was measured on.
        placers: The placer of each placement. [P]
        device: The device of each op by each placement. [n, P]
        step_time: Predicted seconds. [P]
        measured: Measured seconds, nan where there are none. [P]
        clocks: The clock of each measurement, empty where there is none. [P]
        profile: The costs that it was predicted with; None: estimates on a preset.
    """

    graph: CapturedGraph
    cluster: str
    placers: tuple[str, ...]
    device: IntArray
    step_time: FloatArray
    measured: FloatArray
    clocks: tuple[str, ...]
    profile: MeasuredProfile | None = None


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
    measured = {
        name: pairs
        for store in stores
        for name, pairs in read_pairs(store.folder).items()
    }
    placed: dict[str, list[PlacedGraph]] = {part: [] for part in PARTS}
    for number, graph in enumerate(graphs):
        progress(f"{number + 1}/{len(graphs)} {graph.name}: {graph.num_ops} ops")
        part = str(graph.origin["part"])
        if graph.name in measured:
            member = with_measurements(graph, measured[graph.name])
        else:
            cluster = CLUSTERS[number % len(CLUSTERS)]
            problem = dataset_problem(graph, make_preset(cluster), groups=None)
            placements = distinct_placements(problem, number)
            member = with_placements(graph, cluster, placements)
        placed[part].append(member)
    splits = {part: members for part, members in placed.items() if members}
    for part, members in splits.items():
        write_arrays(target / f"{part}.npz", split_arrays(members))
    write_text(target / INDEX, csv_text([HEADINGS, *_index_rows(splits)]))
    write_text(target / "README.md", release_card(splits))
    write_sums(target)
    files = [target / INDEX, *(target / f"{part}.npz" for part in splits)]
    write_croissant(target, files, RELEASE_CARD, records=INDEX)
    return sum(len(graph.placers) for members in splits.values() for graph in members)


def with_placements(
    graph: CapturedGraph, cluster: str, placements: DistinctPlacements
) -> PlacedGraph:
    """Return a graph with placements on a preset, none of which was measured."""
    return PlacedGraph(
        graph=graph,
        cluster=cluster,
        placers=placements.placers,
        device=placements.device,
        step_time=placements.step_time,
        measured=np.full(PAIRS, np.nan),
        clocks=("",) * PAIRS,
    )


def with_measurements(graph: CapturedGraph, pairs: MeasuredGraph) -> PlacedGraph:
    """Return a graph with its placements that were measured.

    Raises:
        MismatchError: They are of another graph.
    """
    profile_problem(graph, pairs.profile)
    return PlacedGraph(
        graph=graph,
        cluster=pairs.profile.cluster.name,
        placers=pairs.placers,
        device=pairs.device,
        step_time=pairs.step_time,
        measured=pairs.measured,
        clocks=pairs.clocks,
        profile=pairs.profile,
    )


def split_arrays(members: Sequence[PlacedGraph]) -> dict[str, Any]:
    """Return the arrays of one split: its graphs and their placements."""
    graphs = [member.graph for member in members]
    kinds = graphs[0].kinds
    edges = [_edges(graph.graph) for graph in graphs]
    # Ops and edges of all graphs stand behind one another; the offsets part them again.
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
        "measured": np.stack([member.measured for member in members]),
        "clock": np.array([member.clocks for member in members]),
        "profiled": np.concatenate(
            [_read_profiled_seconds(member) for member in members]
        ),
        "machine": np.array([_machine(member) for member in members]),
    }
    for column, key in enumerate(("source", "target", "tensor", "bytes")):
        kind = np.float64 if key == "bytes" else np.int32
        arrays[key] = np.concatenate([columns[column] for columns in edges]).astype(
            kind
        )
    return arrays


def _read_profiled_seconds(member: PlacedGraph) -> FloatArray:
    """Return the profiled seconds of each op of a graph, nan without a profile. [n]"""
    if member.profile is None:
        return np.full(member.graph.num_ops, np.nan)
    return member.profile.time


def _machine(member: PlacedGraph) -> str:
    """Return the devices and links of a graph's workers as JSON; empty for a preset."""
    if member.profile is None:
        return ""
    return json.dumps(cluster_to_data(member.profile.cluster))


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

    def problem(self, name: str) -> Problem:
        """Return a graph on its cluster, with the costs that its step times are predicted by.

        Raises:
            InputError: There is no such graph.
        """
        graph, index = self.graph(name), self.names.index(name)
        machine = str(self._arrays["machine"][index])
        if not machine:
            return dataset_problem(graph, make_preset(self.cluster[name]), groups=None)
        ops = slice(*self._arrays["op_offset"][index : index + 2])
        cluster = cluster_from_data(json.loads(machine), str(self.folder))
        return profile_problem(
            graph, MeasuredProfile(self._arrays["profiled"][ops], cluster, began="")
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
            about = (part, member.graph.name, origin["family"], ops, member.cluster)
            columns = (
                member.placers,
                member.step_time,
                member.measured,
                member.clocks,
            )
            for placer, seconds, measured, clock in zip(*columns, strict=True):
                shown = "" if np.isnan(measured) else repr(float(measured))
                yield (*about, placer, repr(float(seconds)), shown, clock)


RELEASE_CARD = DataSetCard(
    name="gnnplace-placements",
    description=(
        "Training steps of neural networks as graphs of ops, with placements of their ops on the "
        "devices of a cluster and the predicted time of a step."
    ),
    collection=(
        "Training steps (forward, backward, update) of public model architectures with random "
        "weights and inputs were captured by gnnplace on a CPU. Placements were made by published "
        "heuristics and by random draws. Some graphs' placements were run on two CPU workers of "
        "one machine, checked against one process; the shortest of ten steps counts."
    ),
    limitations=(
        "Costs are roofline estimates from published peaks of five kinds of devices, except those "
        "of measured graphs, which were profiled; step times are predictions of a simulator, "
        "with a measured one beside where the column says so. Measured pairs are of small models "
        "on one machine and no GPU. Dense models of the years 2014 to 2024; no reinforcement "
        "learning, no diffusion."
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
        "seconds of a step with these devices; ops are ordered by list scheduling.",
        "",
        *_format_measured([member for part in splits.values() for member in part]),
        "```python",
        "from gnnplace.train.data.graph_dataset import GraphDataset",
        "",
        'train = GraphDataset("train.npz", root="cache")    # graphs of PyTorch Geometric',
        "train[0].placement, train[0].step_time              # [n, 8] devices, [1, 8] seconds",
        "train[0].measured                                   # [1, 8] seconds, nan where not run",
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


def _format_measured(members: Sequence[PlacedGraph]) -> list[str]:
    """Return how many pairs were measured and how far the predictions are from them."""
    clocks = Counter(clock for member in members for clock in member.clocks if clock)
    ran = [(member, ~np.isnan(member.measured)) for member in members]
    pairs = [
        (member.step_time[measured].tolist(), member.measured[measured].tolist())
        for member, measured in ran
        if measured.sum() >= FEWEST
    ]
    if not pairs:
        return ["No pair is measured.", ""]
    every = ([x for pair in pairs for x in pair[side]] for side in (0, 1))
    fit = agreement(*every)
    rank = median(
        agreement(predicted, seconds).spearman for predicted, seconds in pairs
    )
    by_clock = (f"{count} by the {clock} clock" for clock, count in clocks.items())
    return [
        f"**{sum(clocks.values())} pairs of {len(pairs)} graphs were measured** on two CPU workers",
        f"of one machine, {' and '.join(by_clock)}. Their predicted times are by op times and",
        f"links that were profiled on that machine; they are off by {fit.mape:.1%} (mean; bias",
        f"{fit.bias:+.1%}), and the rank correlation of predicted and measured times of the",
        f"placements of a graph is {rank:.2f} (median over graphs). `pairs.csv` has both times.",
        "",
    ]
