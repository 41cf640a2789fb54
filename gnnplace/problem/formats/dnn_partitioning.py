"""Reader of the JSON format of Tarnawski et al. (NeurIPS 2020), "dnn-partitioning".

``nodes`` with ``id``, ``cpuLatency``, ``fpgaLatency``, ``supportedOnFpga``, ``isBackwardNode``,
``size`` (bytes on an accelerator) and an optional ``colorClass`` (nodes that share a device);
``edges`` with ``sourceId``, ``destId`` and ``cost``: the time to move the source's output between
an accelerator and CPU memory; ``maxFPGAs``, ``maxCPUs``, ``maxSizePerFPGA``. "FPGA" means any
accelerator.

Latencies and costs are taken as milliseconds. A source's output is one tensor; its bytes are cost x
12 GB/s, so that over a 12 GB/s link the move takes what the file says. Without a cluster the
file's own is built: ``maxFPGAs`` accelerators and ``maxCPUs`` CPUs, 12 GB/s between CPU memory and
an accelerator, half of that between accelerators (out to CPU memory and in again), nothing to pay
between CPUs. With a cluster, devices of kind ``cpu`` take ``cpuLatency``, all others
``fpgaLatency``; times are marked estimated then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from gnnplace.errors import InputError
from gnnplace.files import parse, read_json, within
from gnnplace.graph import ComputationGraph
from gnnplace.problem import BACKWARD, FORWARD, Problem, build_problem
from gnnplace.problem.cluster import Cluster, Device, Link

BANDWIDTH = 12e9
FREE = 1e18  # Bytes per second between CPU cores that share their memory.
CPU_MEMORY = 1e15  # The format gives CPUs no limit.
MILLISECOND = 1e-3
NonNegative = Annotated[float, Field(ge=0)]


class _Loose(BaseModel):
    """Files of this format carry debugging keys of their own."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class OperatorNode(_Loose):
    """A layer or operator."""

    id: int
    cpuLatency: NonNegative
    fpgaLatency: NonNegative
    supportedOnFpga: bool = True
    isBackwardNode: bool = False
    colorClass: int | None = None
    size: NonNegative = 0.0
    name: str | None = None


class OperatorEdge(_Loose):
    """A dependency."""

    sourceId: int
    destId: int
    cost: NonNegative


class PartitioningFile(_Loose):
    """The keys of a file."""

    maxSizePerFPGA: NonNegative
    maxFPGAs: Annotated[int, Field(ge=0)]
    maxCPUs: Annotated[int, Field(ge=0)] = 0
    nodes: Annotated[list[OperatorNode], Field(min_length=1)]
    edges: list[OperatorEdge]


def read_dnn_partitioning(path: str | Path, cluster: Cluster | None) -> Problem:
    """Read a file as a problem on its own cluster, or on the one given.

    Raises:
        FormatError: naming the file, the key path and the fault.
    """
    file = parse(PartitioningFile, read_json(path), str(path))
    with within(path):
        return _problem(Path(path).stem, file, cluster)


def make_own_cluster(file: PartitioningFile) -> Cluster:
    """Return the accelerators and CPUs that the file speaks of."""
    memory = file.maxSizePerFPGA
    devices = [
        Device(name=f"acc:{i}", kind="acc", memory=memory) for i in range(file.maxFPGAs)
    ]
    devices += [
        Device(name=f"cpu:{i}", kind="cpu", memory=CPU_MEMORY)
        for i in range(file.maxCPUs)
    ]
    speed = {2: BANDWIDTH / 2, 1: BANDWIDTH, 0: FREE}
    links = []
    for a in devices:
        for b in devices:
            if a.name != b.name:
                links.append(
                    Link(
                        source=a.name,
                        target=b.name,
                        latency=0.0,
                        bandwidth=speed[(a.kind == "acc") + (b.kind == "acc")],
                    )
                )
    return Cluster(tuple(devices), tuple(links))


def _problem(name: str, file: PartitioningFile, cluster: Cluster | None) -> Problem:
    nodes = file.nodes
    has_own_cluster = cluster is None
    cluster = cluster or make_own_cluster(file)
    cpu = [node.cpuLatency * MILLISECOND for node in nodes]
    accelerator = [
        node.fpgaLatency * MILLISECOND if node.supportedOnFpga else np.inf
        for node in nodes
    ]
    phases = [BACKWARD if node.isBackwardNode else FORWARD for node in nodes]
    return build_problem(
        name,
        _graph(file),
        cluster,
        {kind: cpu if kind == "cpu" else accelerator for kind in cluster.kinds},
        state=np.array([node.size for node in nodes], dtype=np.float64),
        phase=np.array(phases, dtype=np.int8),
        colocate=tuple(
            None if node.colorClass is None else f"color:{node.colorClass}"
            for node in nodes
        ),
        module=tuple(node.name for node in nodes),
        estimated=np.full(len(nodes), not has_own_cluster),
    )


def _graph(file: PartitioningFile) -> ComputationGraph:
    index: dict[int, int] = {}
    for k, node in enumerate(file.nodes):
        if node.id in index:
            raise InputError(f"nodes[{k}].id: {node.id} is repeated")
        index[node.id] = k
    outputs: dict[int, dict[str, Any]] = {}
    for k, edge in enumerate(file.edges):
        for key, end in (("sourceId", edge.sourceId), ("destId", edge.destId)):
            if end not in index:
                raise InputError(f"edges[{k}].{key}: no node has the id {end}")
        output = outputs.setdefault(index[edge.sourceId], {"cost": 0.0, "targets": {}})
        output["cost"] = max(output["cost"], edge.cost)
        output["targets"][index[edge.destId]] = None
    return ComputationGraph.from_tensors(
        [str(node.id) for node in file.nodes],
        [
            (source, output["cost"] * MILLISECOND * BANDWIDTH, list(output["targets"]))
            for source, output in outputs.items()
        ],
    )
