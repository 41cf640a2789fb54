"""What the policy knows of a whole problem: names and values of its features.

Times are in units of the mean op time (``log1p``) or of all work, so that the policy does not
depend on how fast the machine is. A change of any feature is a new version.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import FloatArray, SingleArray
from gnnplace.policy.decode.kernels import DYNAMIC
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.policy.naming import NamedRow, named_columns, names_of, version_of
from gnnplace.policy.refine.refining import REFINING


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
        spread_over(walk.device_time[None], np.ones(problem.num_devices))[0]
    )
    out["memory needed, of all memory"] = min(
        2.0, (walk.unit_state.sum() + walk.unit_bytes.sum()) / memory
    )
    out["state needed, of all memory"] = min(2.0, walk.unit_state.sum() / memory)
    out["channels a device"] = problem.cluster.num_channels / problem.num_devices**2
    out["log latency"] = np.log1p(latency / walk.scale)
    out["spread of bandwidths"] = float(np.log(bandwidth).std()) if len(bandwidth) else 0.0


def spread_over(times: FloatArray, devices: FloatArray) -> FloatArray:
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


GLOBAL = names_of(_write_global)
FEATURE_VERSION = version_of(DYNAMIC, REFINING, GLOBAL)
