"""``GraphDataset``: a folder of captured graphs as a PyTorch Geometric ``InMemoryDataset``.

PyG keeps what a dataset was processed to and, where data, ``pre_transform`` or code have changed
since, goes on reading it (it only warns, and only where the transform's text differs). Here the
processed file's name carries a hash of all of that: the graphs' bytes, the code that makes a graph
into ``Data``, the code and settings of ``pre_transform`` and ``pre_filter``, and PyG's version.
Whatever changes gives another name, and another name is processed anew. Processed files are ``npz``
arrays, not pickled objects.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_geometric
from torch_geometric.data import Data, InMemoryDataset

from gnnplace.errors import FormatError, InputError
from gnnplace.files import write_arrays
from gnnplace.placers import SearchSpace
from gnnplace.policy import (
    FEATURE_VERSION,
    ProblemData,
    WalkGraph,
    build_clusters,
    make_tensors,
)
from gnnplace.problem import Problem, make_preset
from gnnplace.train.data.captured import CapturedStore
from gnnplace.train.data.captured_graph import CapturedGraph
from gnnplace.train.data.datasets import checksums, dataset_problem, find_dataset
from gnnplace.train.data.release import ReleaseStore

Transform = Callable[[Data], Data]
Filter = Callable[[Data], bool]


class GraphDataset(InMemoryDataset):  # type: ignore[misc]
    """Captured training graphs for learning with PyG.

    With a cluster, a graph on it is ``ProblemData``, what the policy's encoder takes (fields of
    ``GraphBatch``, which batch as the policy's training does), and ``unit`` [m], placement unit of
    each visited op; ``problem`` is what it is of, to simulate placements with. Without one, a
    graph's ``Data``: ``x`` [n, 2 K + 1], seconds of work and of launches on each of K kinds and
    bytes of state; ``edge_index`` [2, edges] from producer to consumer; ``edge_attr`` [edges, 1],
    bytes; ``phase`` [n], 0 forward, 1 backward, 2 update; ``unit`` [n], class of ops that share a
    device or -1. Both have ``graph`` [1], index in ``names``, and ``part`` [1], 0 train, 1
    validation, 2 test.

    Of a split of a release without a cluster, graphs also have ``placement`` [n, P], the devices of
    P placements, and ``step_time`` and ``measured`` [1, P], their seconds.

    Args:
        dataset: Name of a dataset (``find_dataset``), a folder of graphs, or the file of a split of
            a release (``release``), such as ``train.npz``.
        root: The folder of processed files.
        start: Folder that the dataset is asked for from.
        cluster: A preset's name, whose kinds the graphs have costs for.
        microbatches: Shares of the batch, on a cluster.
        groups: Ops to aim at before micro-batches, on a cluster; None: as captured.
        transform: The transform of every graph that is taken.
        pre_transform: The transform of every graph before it is kept.
        pre_filter: Which graphs are kept.

    Raises:
        InputError: No such dataset or cluster, or a graph has no costs for a kind of device.
        FormatError: A graph's file is damaged.
    """

    def __init__(
        self,
        dataset: str,
        root: str | Path,
        *,
        start: str | Path = ".",
        cluster: str | None = None,
        microbatches: int = 1,
        groups: int | None = None,
        transform: Transform | None = None,
        pre_transform: Transform | None = None,
        pre_filter: Filter | None = None,
    ) -> None:
        is_split = dataset.endswith(".npz")
        self.store = ReleaseStore(dataset) if is_split else find_dataset(dataset, start)
        self.cluster, self.microbatches, self.groups = cluster, microbatches, groups
        sums = _hash_files(self.store)
        if cluster is not None:
            sums |= {
                "on": f"{cluster} {make_preset(cluster)} {microbatches} {groups} {FEATURE_VERSION}"
            }
        self.key = content_key(sums, pre_transform, pre_filter)
        super().__init__(str(root), transform, pre_transform, pre_filter)
        self._read(Path(self.processed_paths[0]))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the store's graphs; ``graph`` is an index of this."""
        return self.store.names

    @property
    def processed_file_names(self) -> list[str]:
        """Return the name of the one processed file, which carries the hash."""
        return [f"{self.store.folder.stem}-{self.key}.npz"]

    def problem(self, index: int) -> Problem:
        """Return the graph with this index in ``names`` on the cluster.

        Raises:
            InputError: There is no cluster, or the graph has no costs for one of its kinds.
        """
        if self.cluster is None:
            raise InputError(
                "GraphDataset: give cluster, such as 'nvlink-v100-4', for problems"
            )
        return dataset_problem(
            self.store.graph(self.names[index]),
            make_preset(self.cluster),
            microbatches=self.microbatches,
            groups=self.groups,
        )

    def _made(self, index: int) -> Data:
        name = self.names[index]
        data = to_data(self.store.graph(name), index)
        if isinstance(self.store, ReleaseStore):
            data.placement = torch.from_numpy(self.store.device[name].astype(np.int64))
            data.step_time = torch.from_numpy(self.store.step_time[name])[None]
            data.measured = torch.from_numpy(self.store.measured[name])[None]
        if self.cluster is None:
            return data
        walked = WalkGraph(SearchSpace(self.problem(index)))
        fields = make_tensors(walked, build_clusters(walked))._asdict()
        unit = torch.from_numpy(walked.unit.astype(np.int64))
        return ProblemData(**fields, unit=unit, graph=data.graph, part=data.part)

    def process(self) -> None:
        """Make the graphs, filtered and transformed, and write them."""
        graphs = [self._made(i) for i in range(len(self.names))]
        filtered = [
            data for data in graphs if self.pre_filter is None or self.pre_filter(data)
        ]
        if self.pre_transform is not None:
            filtered = [self.pre_transform(data) for data in filtered]
        if not filtered:
            raise FormatError(f"{self.store.folder}: pre_filter keeps no graph")
        data, slices = self.collate(filtered)
        arrays = {f"data {key}": value.numpy() for key, value in data.to_dict().items()}
        if slices is not None:  # one graph has none
            arrays |= {
                f"slices {key}": np.asarray(value) for key, value in slices.items()
            }
        write_arrays(self.processed_paths[0], arrays)

    def _read(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: torch.from_numpy(file[key]) for key in file.files}
        parts: dict[str, dict[str, Any]] = {"data": {}, "slices": {}}
        for key, value in arrays.items():
            part, _, name = key.partition(" ")
            parts[part][name] = value
        if self.cluster is None:
            kind = Data
        else:
            kind = ProblemData
        self.data = kind.from_dict(parts["data"])
        self.slices = parts["slices"] or None


def _hash_files(store: CapturedStore | ReleaseStore) -> dict[str, str]:
    """Return the SHA-256 of the files that graphs are read from, by name."""
    if isinstance(store, CapturedStore):
        return checksums(store.folder)
    return {store.folder.name: hashlib.sha256(store.folder.read_bytes()).hexdigest()}


def to_data(captured: CapturedGraph, index: int) -> Data:
    """Return a graph as PyG's ``Data``, see ``GraphDataset``."""
    source, target, size = captured.graph.edges
    columns = np.concatenate([captured.work, captured.launch, captured.state[None]]).T
    parts = ("train", "validation", "test")
    return Data(
        x=torch.from_numpy(columns.astype(np.float32)),
        edge_index=torch.from_numpy(np.stack([source, target]).astype(np.int64)),
        edge_attr=torch.from_numpy(size.astype(np.float32)[:, None]),
        phase=torch.from_numpy(captured.phase.astype(np.int64)),
        unit=torch.from_numpy(captured.unit.astype(np.int64)),
        graph=torch.tensor([index]),
        part=torch.tensor([parts.index(captured.origin["part"])]),
    )


def content_key(
    sums: dict[str, str],
    pre_transform: Transform | None = None,
    pre_filter: Filter | None = None,
) -> str:
    """Return a hash of all that a processed file depends on, 16 hexadecimal digits."""
    hashed = hashlib.sha256(repr(sorted(sums.items())).encode())
    for part in (to_data, GraphDataset.process, pre_transform, pre_filter):
        hashed.update(_describe(part).encode() + b"\0")
    hashed.update(torch_geometric.__version__.encode())
    return hashed.hexdigest()[:16]


def _describe(part: object) -> str:
    """Return code and settings of a function or of an object that is called.

    What a function has from around it counts too, and so do the parts of a composition; where the
    code cannot be read, the object's text stands for it, which at worst processes anew.
    """
    if part is None:
        return "none"
    code = part if inspect.isroutine(part) else type(part)
    try:
        text = inspect.getsource(code)
    except (OSError, TypeError):
        text = repr(part)
    cells = [cell.cell_contents for cell in getattr(part, "__closure__", None) or ()]
    defaults = getattr(part, "__defaults__", None)
    settings = (
        {}
        if inspect.isroutine(part)
        else vars(part)
        if hasattr(part, "__dict__")
        else {}
    )
    inner = [(key, _setting(value)) for key, value in sorted(settings.items())]
    return f"{text}{[_setting(cell) for cell in cells]}{defaults!r}{inner}"


def _setting(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_setting(one) for one in value)}]"
    if isinstance(value, torch.Tensor | np.ndarray):
        return hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    if callable(value):
        return _describe(value)
    return repr(value)
