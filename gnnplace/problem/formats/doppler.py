"""Reader of DOPPLER's compute graphs (Yao et al., ICLR 2026; github.com/xinyuyao/Doppler).

Line 1 has the number of nodes, line 2 the numbers of input nodes, lines 3 and 4 where each edge
begins and ends, and every further line what a node costs: its own work, then what it takes to send
its result. As in their reader (``utils.py``, ``_read_compute_graph``), edges and costs are of the
nodes that are no inputs, numbered from 0.

Their simulator (``env/cost.py``) divides all times by 1e10 and sends a result once for every edge
between two devices, whatever else is sent. Here the costs over 1e10 are seconds, links carry
1e10 bytes a second, and two things differ: a result is sent once to each device that needs it, and
transfers over one link follow one another. Memory is without limit. All ops are forward ops: a
graph of DOPPLER's is no training step. A file named ``8gpu_...`` is for eight devices, any other
for four. The variants ``gdp_...`` have further columns, and are refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gnnplace.errors import FormatError
from gnnplace.files import MOST, read_text, within
from gnnplace.graph import ComputationGraph
from gnnplace.problem import FORWARD, Cluster, Device, Problem, all_pairs, build_problem

SCALE = 1e10  # Their costs in units a second, and bytes a second of a link
FEWEST_LINES = 5
COSTS = re.compile(r"\s*(\d+)\s*,\s*(\d+)\s*")
NUMBERS = re.compile(r"\s*(\d+\s*,\s*)*(\d+)?\s*")


def read_doppler(path: str | Path, cluster: Cluster | None) -> Problem:
    """Read a compute graph as a problem on equal devices, or on the cluster that is given.

    Raises:
        FormatError: Naming the file, the line and the fault.
    """
    source = str(path)
    name = Path(path).stem
    lines = read_text(path).splitlines()
    if len(lines) < FEWEST_LINES:
        raise FormatError(
            f"{source}: has {len(lines)} lines; is it a compute graph of DOPPLER's?"
        )
    # Lines 1 to 4: nodes, inputs, where edges begin, where they end. Then a line a node that is
    # no input.
    count = _numbers(lines[0], f"{source}: line 1")
    inputs = _numbers(lines[1], f"{source}: line 2")
    if len(count) != 1:
        raise FormatError(f"{source}: line 1: must be the number of nodes")
    num_ops = count[0] - len(inputs)
    costs = [
        _costs(line, f"{source}: line {k}")
        for k, line in enumerate(lines[4:], 5)
        if line
    ]
    if num_ops < 1 or len(costs) != num_ops:
        raise FormatError(
            f"{source}: has costs of {len(costs)} nodes, and {count[0]} nodes less {len(inputs)} "
            "inputs are expected"
        )
    sources = _numbers(lines[2], f"{source}: line 3")
    targets = _numbers(lines[3], f"{source}: line 4")
    if len(sources) != len(targets):
        raise FormatError(
            f"{source}: line 4: {len(targets)} edges end, and {len(sources)} begin (line 3)"
        )
    if outside := [node for node in (*sources, *targets) if node >= num_ops]:
        raise FormatError(
            f"{source}: an edge names node {outside[0]}, and there are {num_ops}"
        )
    has_own_cluster = cluster is None
    cluster = cluster or equal_devices(8 if name.startswith("8gpu_") else 4)
    work = np.array([cost for cost, _ in costs]) / SCALE
    with within(path):
        return build_problem(
            name,
            _graph(costs, sources, targets),
            cluster,
            {kind: work for kind in cluster.kinds},
            state=np.zeros(num_ops),
            phase=np.full(num_ops, FORWARD, dtype=np.int8),
            estimated=np.full(num_ops, not has_own_cluster),
        )


def equal_devices(count: int) -> Cluster:
    """Return devices without a limit of memory, each linked with each other one."""
    devices = tuple(
        Device(name=f"gpu:{i}", kind="gpu", memory=MOST) for i in range(count)
    )
    names = [device.name for device in devices]
    return Cluster(devices, all_pairs(names, bandwidth=SCALE, latency=0.0), "doppler")


def _graph(
    costs: Sequence[tuple[float, float]], sources: Sequence[int], targets: Sequence[int]
) -> ComputationGraph:
    """Return the graph; a node's result is one tensor, whoever reads it."""
    readers: dict[int, dict[int, None]] = {}
    for source, target in zip(sources, targets, strict=True):
        readers.setdefault(source, {})[target] = None
    return ComputationGraph.from_tensors(
        [str(node) for node in range(len(costs))],
        [(node, costs[node][1], list(readers[node])) for node in sorted(readers)],
    )


def _numbers(line: str, where: str) -> list[int]:
    """Return the whole numbers of a line."""
    if not NUMBERS.fullmatch(line):
        raise FormatError(f"{where}: must be whole numbers with commas between them")
    return [int(number) for number in re.findall(r"\d+", line)]


def _costs(line: str, where: str) -> tuple[float, float]:
    """Return a node's work, and what it takes to send its result."""
    match = COSTS.fullmatch(line)
    if match is None:
        raise FormatError(
            f"{where}: must be two whole numbers, a node's work and its message; of the variants "
            "gdp_... give the file without that in its name"
        )
    return float(match[1]), float(match[2])
