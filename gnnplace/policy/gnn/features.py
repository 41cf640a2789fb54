"""Features of the GNN that do not depend on the placement: of ops, clusters, messages and devices.

Times are in units of the mean op time, and bytes in units of the state of all ops, so that the
network does not depend on the speed of the machine.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import FloatArray, SingleArray
from gnnplace.graph import levels, levels_from_sinks
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.policy.gnn.clusters import CANDIDATE, NUM_LEVELS, Clusters
from gnnplace.policy.gnn.decoder import LIMIT
from gnnplace.policy.naming import (
    NamedRow,
    compute_version,
    list_feature_names,
    name_columns,
)
from gnnplace.policy.weights import GLOBAL, spread_over
from gnnplace.problem import BACKWARD, FORWARD, UPDATE
from gnnplace.simulation import DELAY, PACE


def static_features(graph: WalkGraph, clusters: Clusters) -> SingleArray:
    """Return the features of each visited op, named by ``STATIC``. [m, len(STATIC)]"""
    out = np.empty((len(STATIC), graph.graph.num_ops), np.float32)
    _write_static(graph, out)
    out[len(OWN) :] = cluster_features(graph, clusters)[:, graph.unit]
    return np.ascontiguousarray(out.T)


def cluster_features(graph: WalkGraph, clusters: Clusters) -> FloatArray:
    """Return what is known of each unit's cluster at each level, named by ``CLUSTER``. [.., U]

    The cluster's work in even shares of the devices; its transfers with the others over its work;
    the share of the unit's own transfers that stay inside.
    """
    of = clusters.of
    flow = clusters.flow
    walk = graph.forward
    num_units = of.shape[1]
    out = []
    unit = np.repeat(np.arange(num_units), np.diff(walk.flow_offset))
    unit_flow = np.bincount(unit, flow, num_units)
    for level in of:
        inside = np.bincount(
            unit, flow * (level[unit] == level[walk.flow_unit]), num_units
        )
        out.append(
            np.log1p(clusters.work[level] * graph.problem.num_devices / walk.work)
        )
        exchange = clusters.outside[level] / clusters.work[level]
        out.append(np.log1p(exchange))
        out.append(
            np.where(unit_flow > 0.0, inside / np.maximum(unit_flow, 1e-300), 1.0)
        )
    return np.stack(out)


@name_columns("out")
def _write_static(graph: WalkGraph, out: NamedRow) -> None:
    problem = graph.problem
    walk = graph.forward
    g = graph.graph
    source, target, _ = g.edges
    m = g.num_ops
    edge = graph.edge_cost
    # The floors below keep a graph of free ops from being divided by 0.
    path_through = graph.up + graph.down
    longest = max(float(path_through.max()), 1e-300)
    ahead = np.empty(m)
    by_start = np.lexsort((g.position, -graph.up, graph.down))
    ahead[by_start] = np.cumsum(graph.cost[by_start])
    depth = levels(g)
    height = levels_from_sinks(g)
    memory = float(walk.memory.mean())
    unit = walk.unit
    # Logs and shares, so that all are of the size of one whatever the machine and the model.
    out["log cost"] = np.log1p(graph.cost / walk.scale)
    input_seconds = np.bincount(target, edge, m)
    output_seconds = np.bincount(source, edge, m)
    out["log transfer of inputs"] = np.log1p(input_seconds / walk.scale)
    out["log transfer of outputs"] = np.log1p(output_seconds / walk.scale)
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
    out["state of the unit, of the memory"] = np.minimum(
        1.0, walk.unit_state[unit] / memory
    )
    out["bytes of the unit, of the memory"] = np.minimum(
        1.0, walk.unit_bytes[unit] / memory
    )
    out["spread of times over devices"] = spread_over(
        problem.kind_times[graph.ops], np.bincount(problem.kind_of).astype(np.float64)
    )
    out["share of devices allowed"] = problem.unit_allowed.mean(axis=1)[unit]
    out["forward"] = problem.phase[graph.ops] == FORWARD
    out["backward"] = problem.phase[graph.ops] == BACKWARD
    out["update"] = problem.phase[graph.ops] == UPDATE


def message_features(graph: WalkGraph) -> SingleArray:
    """Return the log transfer time of each edge in units of the mean op time. [edges, 1]"""
    relative = graph.edge_cost / graph.forward.scale
    feature = np.log1p(relative).astype(np.float32)
    return feature[:, None]


def device_features(graph: WalkGraph) -> SingleArray:
    """Return the features of each device, named by ``DEVICE``. [D, len(DEVICE)]"""
    out = np.empty((len(DEVICE), graph.problem.num_devices), np.float32)
    _write_device(graph, out)
    return np.ascontiguousarray(out.T)


@name_columns("out")
def _write_device(graph: WalkGraph, out: NamedRow) -> None:
    walk = graph.forward
    problem = graph.problem
    pace = walk.links.each(PACE)
    delay = walk.links.each(DELAY)
    linked = problem.cluster.linked
    count = np.maximum(linked.sum(axis=1), 1)
    out["log slowness for all units"] = np.log(
        np.maximum(walk.device_time, 1e-300)
        / max(float(walk.device_time.mean()), 1e-300)
    ).clip(-4.0, 4.0)
    out["share of units allowed"] = problem.unit_allowed.mean(axis=0)
    out["state of all units, of the memory"] = np.minimum(
        2.0, walk.unit_state.sum() / walk.memory
    )
    out["log seconds of a mean tensor to the others"] = np.log1p(walk.far / walk.scale)
    out["log seconds of a mean tensor, without the latency"] = np.log1p(
        walk.mean_bytes * pace.sum(axis=1) / count / walk.scale
    )
    mean_delay = delay.sum(axis=1) / count
    out["log latency to the others"] = np.log1p(mean_delay / walk.scale)
    out["share of devices linked"] = linked.mean(axis=1)
    out["one"] = 1.0


OWN = list_feature_names(_write_static)
DEVICE = list_feature_names(_write_device)
CLUSTER = tuple(
    f"{name} of the cluster, level {level}"
    for level in range(NUM_LEVELS)
    for name in (
        "log work",
        "log transfers over work",
        "share of the unit's transfers inside",
    )
)
STATIC = OWN + CLUSTER
FEATURE_VERSION = compute_version(CANDIDATE, STATIC, GLOBAL, DEVICE, LIMIT)
