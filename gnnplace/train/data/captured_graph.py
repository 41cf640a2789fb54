"""``CapturedGraph``: a model's training step as a graph with costs on several kinds, and its file.

Costs are kept in two parts, so that a share of the batch can be priced: what an op takes at least
(launches) and what it takes beyond that for the whole batch (work). Both are estimates from the
kinds' published peaks, never measured: the same file comes out on every machine. Views and copies
into buffers are already part of the op that they must not be parted from. Names are dropped.

A file is an ``.npz`` without pickled objects. Indices are kept as differences, which compress well.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.errors import FormatError
from gnnplace.files import within, write_arrays
from gnnplace.graph import ComputationGraph, coarsen, quotient, unite_groups

FORMAT = "gnnplace-captured"
VERSION = 1
# What reading a broken archive raises; of RuntimeErrors, an unknown compression or nesting.
BROKEN = (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error, RuntimeError)
COSTS = ("work", "launch", "state")
INDICES = ("producer", "consumer", "consumer_offset", "unit")


@dataclass(frozen=True, eq=False)
class CapturedGraph:
    """A captured training step.

    Attributes:
        origin: What it was captured from: at least ``name``, ``family``, ``part``, ``spec``,
            ``optimizer`` and ``versions``.
        graph: Ops and tensors; bytes are those of the whole batch.
        kinds: Device kinds that costs are known for.
        work: Seconds of each op on each kind for the whole batch, without launches.
            [num_kinds, num_ops]
        launch: Seconds that launching it takes, whatever the batch. [num_kinds, num_ops]
        state: Bytes that stay for the whole step. [num_ops]
        phase: FORWARD, BACKWARD or UPDATE, as in a problem. [num_ops]
        unit: Class of ops that share a device, -1 if none. [num_ops]
    """

    origin: dict[str, Any]
    graph: ComputationGraph
    kinds: tuple[str, ...]
    work: FloatArray
    launch: FloatArray
    state: FloatArray
    phase: NDArray[np.int8]
    unit: IntArray

    @property
    def name(self) -> str:
        """Return the name of the graph."""
        return str(self.origin["name"])

    @property
    def num_ops(self) -> int:
        """Return the number of ops n."""
        return self.graph.num_ops

    @cached_property
    def colocate(self) -> tuple[str | None, ...]:
        """Return the class of each op as in a problem, or None. [num_ops]"""
        return tuple(None if unit < 0 else f"unit{unit}" for unit in self.unit.tolist())

    def coarsened(self, target: int) -> CapturedGraph:
        """Return the graph with about ``target`` groups as its ops.

        It is the graph itself if that has no more ops.

        Groups depend on structure and the costs on the first kind alone.
        """
        if target >= self.num_ops:
            return self
        cost = self.work[0] + self.launch[0]
        group = coarsen(
            self.graph, cost, target=target, unit=self.colocate, phase=self.phase
        )
        count = int(group.max()) + 1
        first = np.full(count, self.num_ops)
        np.minimum.at(first, group, np.arange(self.num_ops))
        return CapturedGraph(
            self.origin,
            quotient(self.graph, group, op_names(count)),
            self.kinds,
            _sum_groups(self.work, group, count),
            _sum_groups(self.launch, group, count),
            np.bincount(group, self.state, count).astype(np.float64),
            self.phase[first],
            unite_groups(self.unit, group, count),
        )


def _sum_groups(costs: FloatArray, group: IntArray, count: int) -> FloatArray:
    return np.stack([np.bincount(group, row, count) for row in costs])


def op_names(count: int) -> list[str]:
    """Return numbered names for ops whose own names are unknown."""
    return [f"op{i}" for i in range(count)]


def write_captured(path: str | Path, captured: CapturedGraph) -> None:
    """Write a graph's file: to a temporary file beside ``path`` that is renamed over it.

    Raises:
        InputError: The folder does not exist or cannot be written to.
    """
    graph = captured.graph
    header = {
        "format": FORMAT,
        "version": VERSION,
        "kinds": captured.kinds,
        **captured.origin,
    }
    arrays: dict[str, Any] = {
        "producer": graph.producer,
        "consumer": graph.consumer,
        "consumer_offset": graph.consumer_offset,
        "unit": captured.unit,
    }
    arrays = {
        key: np.diff(value, prepend=0).astype(np.int32) for key, value in arrays.items()
    }
    arrays["header"] = np.array(json.dumps(header, sort_keys=True))
    arrays["phase"], arrays["size"] = captured.phase, graph.size
    for key in COSTS:
        arrays[key] = getattr(captured, key).astype(np.float32)
    write_arrays(path, arrays)


def read_captured(path: str | Path) -> CapturedGraph:
    """Read a graph's file.

    Raises:
        FormatError: The file is missing, is not one of ours, or of another version.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        header = json.loads(str(arrays["header"]))
    except BROKEN as error:
        raise FormatError(f"{path}: not a captured graph: {error}") from None
    is_mapping = isinstance(header, dict)
    if not is_mapping or (header.pop("format", None), header.pop("version", None)) != (
        FORMAT,
        VERSION,
    ):
        raise FormatError(
            f"{path}: not a {FORMAT} file of version {VERSION}; build the store anew"
        )
    fault = _header_fault(header) or _array_fault(arrays, len(header["kinds"]))
    if fault:
        raise FormatError(f"{path}: {fault}")
    with within(path):
        return _assemble(header, arrays)


def _header_fault(header: dict[str, Any]) -> str:
    """Return the fault of a header, or an empty text without one."""
    for key in ("name", "family", "part"):
        if not isinstance(header.get(key), str):
            return f"header.{key}: must be text"
    kinds = header.get("kinds")
    if (
        not isinstance(kinds, list)
        or not kinds
        or not all(isinstance(k, str) for k in kinds)
    ):
        return "header.kinds: must be a list of names"
    return ""


def _array_fault(arrays: dict[str, Any], num_kinds: int) -> str:
    """Return the fault in types, shapes and ranges of a file's arrays; empty without one."""
    for key in (*INDICES, "phase", *COSTS, "size"):
        if key in (*INDICES, "phase"):
            kinds = "iu"
        else:
            kinds = "iuf"
        if key not in arrays or arrays[key].dtype.kind not in kinds:
            return f"{key}: must be there and hold numbers"
    n = arrays["phase"].size
    tensors = arrays["producer"].size
    shapes = {
        "phase": (n,),
        "unit": (n,),
        "state": (n,),
        "work": (num_kinds, n),
        "launch": (num_kinds, n),
        "producer": (tensors,),
        "size": (tensors,),
        "consumer_offset": (tensors + 1,),
        "consumer": (arrays["consumer"].size,),
    }
    for key, shape in shapes.items():
        if arrays[key].shape != shape or not n:
            return f"{key}: its shape is {arrays[key].shape}, not {shape}"
    for key in COSTS:
        if not (np.isfinite(arrays[key]) & (arrays[key] >= 0)).all():
            return f"{key}: must be finite and not negative"
    if not np.isin(arrays["phase"], (0, 1, 2)).all():
        return "phase: must be 0, 1 or 2"
    steps = arrays["consumer_offset"].astype(np.int64)
    if steps[0] != 0 or (steps < 0).any() or steps.sum() != arrays["consumer"].size:
        return "consumer_offset: must count up to the number of consumers"
    return ""


def _assemble(header: dict[str, Any], arrays: dict[str, Any]) -> CapturedGraph:
    indices = {key: np.cumsum(arrays[key]).astype(np.int32) for key in INDICES}
    names = op_names(len(arrays["phase"]))
    size = arrays["size"].astype(np.float64)
    graph = ComputationGraph(
        tuple(names),
        indices["producer"],
        size,
        indices["consumer_offset"],
        indices["consumer"],
    )
    costs = {key: arrays[key].astype(np.float64) for key in COSTS}
    kinds = tuple(header.pop("kinds"))
    return CapturedGraph(
        header, graph, kinds, phase=arrays["phase"], unit=indices["unit"], **costs
    )
