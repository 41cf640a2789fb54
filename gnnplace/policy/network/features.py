"""What the policy sees: names and values of its features. A change is a new version.

Times are in units of the mean op time (``log1p``) or of the ideal share of a device (work over the
number of devices aimed at), so that the policy does not depend on how fast the machine is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnplace.graph.ranks import levels, levels_from_sinks
from gnnplace.policy.decode.kernels import DYNAMIC
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.policy.naming import NamedRow, digest_of, named_columns, names_of
from gnnplace.policy.refine.refining import REFINING
from gnnplace.policy.search.moves import MOVE_FEATURES
from gnnplace.problem import BACKWARD, FORWARD, UPDATE

FloatArray = NDArray[np.float64]
SingleArray = NDArray[np.float32]


def static_features(graph: WalkGraph) -> SingleArray:
    """Features of each visited op, named by ``STATIC``. [m, len(STATIC)]"""
    out = np.empty((len(STATIC), graph.graph.num_ops), np.float32)
    _write_static(graph, out)
    return np.ascontiguousarray(out.T)


@named_columns("out")
def _write_static(graph: WalkGraph, out: NamedRow) -> None:
    problem, walk, g = graph.problem, graph.forward, graph.graph
    source, target, _ = g.edges
    m, edge = g.num_ops, graph.edge_cost
    longest = max(float((graph.up + graph.down).max()), 1e-300)
    ahead = np.empty(m)
    by_start = np.lexsort((g.position, -graph.up, graph.down))
    ahead[by_start] = np.cumsum(graph.cost[by_start])
    depth, height = levels(g), levels_from_sinks(g)
    memory, unit = float(walk.memory.mean()), walk.unit
    out["log cost"] = np.log1p(graph.cost / walk.scale)
    out["log transfer of inputs"] = np.log1p(np.bincount(target, edge, m) / walk.scale)
    out["log transfer of outputs"] = np.log1p(np.bincount(source, edge, m) / walk.scale)
    out["level from the sources"] = depth / max(1, int(depth.max()))
    out["level from the sinks"] = height / max(1, int(height.max()))
    out["downward rank"] = graph.down / longest
    out["upward rank"] = graph.up / longest
    out["slack"] = 1.0 - (graph.up + graph.down) / longest
    out["work before"] = ahead / max(float(ahead.max()), 1e-300)
    out["place"] = graph.place[unit]
    out["log in-degree"] = np.log1p(np.bincount(target, minlength=m))
    out["log out-degree"] = np.log1p(np.bincount(source, minlength=m))
    out["work of the unit, of a device's share"] = (
        walk.unit_work[unit] * problem.num_devices / walk.work
    )
    out["log ops of the unit"] = np.log1p(np.bincount(problem.unit_of)[unit])
    out["state of the unit, of the memory"] = np.minimum(1.0, walk.unit_state[unit] / memory)
    out["bytes of the unit, of the memory"] = np.minimum(1.0, walk.unit_bytes[unit] / memory)
    out["spread of times over devices"] = _spread(
        problem.kind_times[graph.ops], np.bincount(problem.kind_of).astype(np.float64)
    )
    out["share of devices allowed"] = problem.unit_allowed.mean(axis=1)[unit]
    out["forward"] = problem.phase[graph.ops] == FORWARD
    out["backward"] = problem.phase[graph.ops] == BACKWARD
    out["update"] = problem.phase[graph.ops] == UPDATE


def global_features(graph: WalkGraph) -> SingleArray:
    """Features of the whole problem, named by ``GLOBAL``. [len(GLOBAL)]"""
    out = np.empty(len(GLOBAL), np.float32)
    _write_global(graph, out)
    return out


@named_columns("out")
def _write_global(graph: WalkGraph, out: NamedRow) -> None:
    problem, walk = graph.problem, graph.forward
    memory = float(walk.memory.sum())
    critical = float((graph.up + graph.down).max())
    linked = problem.cluster.linked
    bandwidth = problem.cluster.bandwidth[linked]
    latency = float(problem.cluster.latency[linked].mean()) if linked.any() else 0.0
    out["log devices"] = np.log(problem.num_devices)
    out["log visited ops"] = np.log(len(graph.ops)) / 4.0
    out["log micro-batches"] = np.log(problem.microbatches)
    out["communication to computation"] = np.log1p(
        graph.edge_cost.sum() / max(float(graph.cost.sum()), 1e-300)
    )
    out["critical path, of the work on all devices"] = min(
        8.0, critical * problem.num_devices * problem.microbatches / walk.work
    )
    out["spread of device speeds"] = float(
        _spread(walk.device_time[None], np.ones(problem.num_devices))[0]
    )
    out["memory needed, of all memory"] = min(
        2.0, (walk.unit_state.sum() + walk.unit_bytes.sum()) / memory
    )
    out["state needed, of all memory"] = min(2.0, walk.unit_state.sum() / memory)
    out["channels a device"] = problem.cluster.num_channels / problem.num_devices**2
    out["log latency"] = np.log1p(latency / walk.scale)
    out["spread of bandwidths"] = float(np.log(bandwidth).std()) if len(bandwidth) else 0.0


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


STATIC, GLOBAL = names_of(_write_static), names_of(_write_global)
MEANING = 4  # one more where a formula changes and its name does not
FEATURE_VERSION = f"{MEANING}-{digest_of(DYNAMIC, REFINING, MOVE_FEATURES, STATIC, GLOBAL)}"
