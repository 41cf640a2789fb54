"""Reader of DOPPLER's compute graphs (Yao et al., ICLR 2026; github.com/xinyuyao/Doppler).

Format. Line 1 has the number of nodes, line 2 the numbers of input nodes, line 3 the node at which
each edge begins, line 4 the node at which it ends. Every other line has the costs of a node: its
work, and the size of its result. As in DOPPLER's reader (``utils.py``, ``_read_compute_graph``),
edges and costs are only of nodes that are no inputs, and these are numbered from 0.

Costs. DOPPLER's simulator (``env/cost.py``) divides work and sizes by 1e10 to get seconds. So here
work over 1e10 is seconds, sizes are bytes, and links carry 1e10 bytes a second.

Deviations. DOPPLER's simulator sends a result once for every edge between two devices, at the same
time as all others; here it is sent once to each device that needs it, and transfers over a link
follow one another. Memory has no limit. All ops are forward ops, since DOPPLER's graphs are no
training steps.

A file named ``8gpu_...`` is for eight devices, any other for four. Files of the variants
``gdp_...`` have more columns, and are refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gnnplace.errors import FormatError
from gnnplace.files import MOST, read_text, within
from gnnplace.graph import ComputationGraph
from gnnplace.problem import (
    FORWARD,
    Cluster,
    Device,
    Problem,
    build_problem,
    link_all_pairs,
)

SCALE = 1e10  # units of work in a second, and bytes that a link carries in a second
FEWEST_LINES = 5
EIGHT_DEVICES = "8gpu_"  # begins the name of a file for eight devices
FIRST_COSTS = 4  # lines before those of the nodes
COSTS = re.compile(r"\s*(\d+)\s*,\s*(\d+)\s*")
NUMBERS = re.compile(r"\s*(\d+\s*,\s*)*(\d+)?\s*")


def read_doppler(path: str | Path, cluster: Cluster | None) -> Problem:
    """Read a compute graph as a problem on a cluster; None: on equal devices.

    Raises:
        FormatError: The file is malformed; the message names the file, the line and the fault.
    """
    source = str(path)
    name = Path(path).stem
    lines = read_text(path).splitlines()
    if len(lines) < FEWEST_LINES:
        raise FormatError(
            f"{source}: has {len(lines)} lines; is it a compute graph of DOPPLER's?"
        )
    # Lines 1 and 2 say how many nodes are no inputs; each of these has a line of costs.
    counts = _parse_numbers(lines[0], f"{source}: line 1")
    inputs = _parse_numbers(lines[1], f"{source}: line 2")
    if len(counts) != 1:
        raise FormatError(f"{source}: line 1: must be the number of nodes")
    (num_nodes,) = counts
    num_ops = num_nodes - len(inputs)
    costs = []
    for number, line in enumerate(lines[FIRST_COSTS:], FIRST_COSTS + 1):
        if line:
            costs.append(_parse_costs(line, f"{source}: line {number}"))
    if num_ops < 1 or len(costs) != num_ops:
        raise FormatError(
            f"{source}: has costs of {len(costs)} nodes; {num_nodes} nodes less {len(inputs)} "
            "inputs need as many lines from line 5 on"
        )

    # Lines 3 and 4: the edges.
    sources = _parse_numbers(lines[2], f"{source}: line 3")
    targets = _parse_numbers(lines[3], f"{source}: line 4")
    if len(sources) != len(targets):
        raise FormatError(
            f"{source}: line 4: {len(targets)} edges end, and {len(sources)} begin (line 3)"
        )
    if outside := [node for node in (*sources, *targets) if node >= num_ops]:
        raise FormatError(
            f"{source}: an edge names node {outside[0]}, and there are {num_ops} (from 0)"
        )

    # On DOPPLER's own devices its costs count as measured, on others as estimated.
    is_estimated = cluster is not None
    if cluster is None:
        cluster = equal_devices(8 if name.startswith(EIGHT_DEVICES) else 4)
    work = np.array([cost for cost, _ in costs]) / SCALE
    with within(path):
        return build_problem(
            name,
            _build_graph(costs, sources, targets),
            cluster,
            {kind: work for kind in cluster.kinds},
            state=np.zeros(num_ops),
            phase=np.full(num_ops, FORWARD, dtype=np.int8),
            estimated=np.full(num_ops, is_estimated),
        )


def equal_devices(count: int) -> Cluster:
    """Return a cluster of DOPPLER's devices, which have no limit of memory, linked in all pairs."""
    devices = tuple(
        Device(name=f"gpu:{i}", kind="gpu", memory=MOST) for i in range(count)
    )
    names = [device.name for device in devices]
    return Cluster(
        devices, link_all_pairs(names, bandwidth=SCALE, latency=0.0), "doppler"
    )


def _build_graph(
    costs: Sequence[tuple[float, float]], sources: Sequence[int], targets: Sequence[int]
) -> ComputationGraph:
    """Build the graph. The result of a node is one tensor, however many nodes read it.

    Args:
        costs: Work of each node, and bytes of its result. [n]
        sources: The node at which each edge begins. [edges]
        targets: The node at which each edge ends. [edges]
    """
    # Dictionaries are ordered sets here: an edge may be listed twice.
    consumers: dict[int, dict[int, None]] = {}
    for source, target in zip(sources, targets, strict=True):
        consumers.setdefault(source, {})[target] = None
    names = [str(node) for node in range(len(costs))]
    tensors = []
    for node in sorted(consumers):
        _, result_bytes = costs[node]
        tensors.append((node, result_bytes, list(consumers[node])))
    return ComputationGraph.from_tensors(names, tensors)


def _parse_numbers(line: str, where: str) -> list[int]:
    """Parse a line of whole numbers. ``where`` names it in errors."""
    if not NUMBERS.fullmatch(line):
        raise FormatError(f"{where}: must be whole numbers with commas between them")
    return [int(number) for number in re.findall(r"\d+", line)]


def _parse_costs(line: str, where: str) -> tuple[float, float]:
    """Parse a line of a node: its work, and the bytes of its result."""
    match = COSTS.fullmatch(line)
    if match is None:
        raise FormatError(
            f"{where}: must be two whole numbers, a node's work and the size of its result; for a "
            "variant gdp_..., give the file of the same name without gdp_"
        )
    return float(match[1]), float(match[2])
