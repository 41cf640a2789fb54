"""What the policy sees: names and values of its features. A change here is a new version.

Times are in units of the mean op time (``log1p``) or of the ideal share of a device (work over the
number of devices aimed at), so that the policy does not depend on how fast the machine is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnplace.graph.ranks import levels, levels_from_sinks
from gnnplace.policy.decode.kernels import NUM_DYNAMIC
from gnnplace.policy.decode.walk import WalkGraph

FloatArray = NDArray[np.float64]
SingleArray = NDArray[np.float32]

FEATURE_VERSION = 4

DYNAMIC = (
    "earliest finish above the best, out of chunks",
    "earliest start above the best",
    "data ready above the best",
    "idle gap",
    "wait for links",
    "transfers of this op's inputs",
    "transfers of the unit with its placed neighbours",
    "the same, of the ideal share",
    "earliest finish above the best, of the ideal share",
    "share of placed neighbours' bytes there",
    "share of this op's inputs there",
    "load after, of the ideal share",
    "load after, above the ideal share",
    "raise of the greatest load",
    "load above the least",
    "state after, of the memory",
    "state and tensors at the peak after, of the memory",
    "log slowness for this unit",
    "log slowness for all units",
    "device still unused",
    "device of the decision before",
    "work since the device changed, with this unit, there",
    "path through this op, of the bound",
    "link from the device before is busy",
    "mean transfer from the device before, or to all",
    "one over the number of devices aimed at",
    "devices aimed at, of all",
    "work decided, of all",
    "devices used, of those aimed at",
    "work since the device changed, with this unit",
    "the same above a chunk's share, there, in chunks",
    "one over the number of rounds aimed at",
    "another device than before, in chunks",
    "in chunks",
    "the chunk plan's device",
)

STATIC = (
    "log cost",
    "log transfer of inputs",
    "log transfer of outputs",
    "level from the sources",
    "level from the sinks",
    "downward rank",
    "upward rank",
    "slack",
    "work before",
    "place",
    "log in-degree",
    "log out-degree",
    "work of the unit, of a device's share",
    "log ops of the unit",
    "state of the unit, of the memory",
    "bytes of the unit, of the memory",
    "spread of times over devices",
    "share of devices allowed",
    "forward",
    "backward",
    "update",
)

GLOBAL = (
    "log devices",
    "log visited ops",
    "log micro-batches",
    "communication to computation",
    "critical path, of the work on all devices",
    "spread of device speeds",
    "memory needed, of all memory",
    "state needed, of all memory",
    "channels a device",
    "log latency",
    "spread of bandwidths",
)

assert len(DYNAMIC) == NUM_DYNAMIC


def static_features(graph: WalkGraph) -> SingleArray:
    """Features of each visited op, named by ``STATIC``. [m, len(STATIC)]"""
    problem, walk, g = graph.problem, graph.forward, graph.graph
    source, target, _ = g.edges
    m, edge = g.num_ops, graph.edge_cost
    longest = max(float((graph.up + graph.down).max()), 1e-300)
    ahead = np.empty(m)
    by_start = np.lexsort((g.position, -graph.up, graph.down))
    ahead[by_start] = np.cumsum(graph.cost[by_start])
    depth, height = levels(g), levels_from_sinks(g)
    memory, unit = float(walk.memory.mean()), walk.unit
    columns = [
        np.log1p(graph.cost / walk.scale),
        np.log1p(np.bincount(target, edge, m) / walk.scale),
        np.log1p(np.bincount(source, edge, m) / walk.scale),
        depth / max(1, int(depth.max())),
        height / max(1, int(height.max())),
        graph.down / longest,
        graph.up / longest,
        1.0 - (graph.up + graph.down) / longest,
        ahead / max(float(ahead.max()), 1e-300),
        graph.place[unit],
        np.log1p(np.bincount(target, minlength=m)),
        np.log1p(np.bincount(source, minlength=m)),
        walk.unit_work[unit] * problem.num_devices / walk.work,
        np.log1p(np.bincount(problem.unit_of)[unit]),
        np.minimum(1.0, walk.unit_state[unit] / memory),
        np.minimum(1.0, walk.unit_bytes[unit] / memory),
        _spread(problem.kind_times[graph.ops], np.bincount(problem.kind_of).astype(np.float64)),
        problem.unit_allowed.mean(axis=1)[unit],
        *(problem.phase[graph.ops] == phase for phase in range(3)),
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def global_features(graph: WalkGraph) -> SingleArray:
    """Features of the whole problem, named by ``GLOBAL``. [len(GLOBAL)]"""
    problem, walk = graph.problem, graph.forward
    memory = float(walk.memory.sum())
    critical = float((graph.up + graph.down).max())
    linked = problem.cluster.linked
    bandwidth = problem.cluster.bandwidth[linked]
    latency = float(problem.cluster.latency[linked].mean()) if linked.any() else 0.0
    values = [
        np.log(problem.num_devices),
        np.log(len(graph.ops)) / 4.0,
        np.log(problem.microbatches),
        np.log1p(graph.edge_cost.sum() / max(float(graph.cost.sum()), 1e-300)),
        min(8.0, critical * problem.num_devices * problem.microbatches / walk.work),
        float(_spread(walk.device_time[None], np.ones(problem.num_devices))[0]),
        min(2.0, (walk.unit_state.sum() + walk.unit_bytes.sum()) / memory),
        min(2.0, walk.unit_state.sum() / memory),
        problem.cluster.num_channels / problem.num_devices**2,
        np.log1p(latency / walk.scale),
        float(np.log(bandwidth).std()) if len(bandwidth) else 0.0,
    ]
    return np.array(values, dtype=np.float32)


def _spread(times: FloatArray, devices: FloatArray) -> FloatArray:
    """Standard deviation of the logarithm over devices that can run an op. [n]

    Args:
        times: seconds of each op on each column of devices, inf where they cannot. [n, K]
        devices: number of devices of each column. [K]
    """
    good = np.isfinite(times) & (times > 0)
    count = np.maximum(good @ devices, 1.0)
    logs = np.where(good, np.log(np.where(good, times, 1.0)), 0.0)
    mean = logs @ devices / count
    square = np.where(good, (logs - mean[:, None]) ** 2, 0.0) @ devices / count
    return np.asarray(np.sqrt(square))


def message_features(graph: WalkGraph) -> SingleArray:
    """Log transfer time of each edge in units of the mean op time. [edges, 1]"""
    return np.log1p(graph.edge_cost / graph.forward.scale).astype(np.float32)[:, None]
