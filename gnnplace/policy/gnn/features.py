"""What the GNN sees beside the features of ops and of partial schedules: each device and its links.

Times are in units of the mean op, bytes in units of what all ops keep, so that the network does not
depend on how fast the machine is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnplace.policy.decode.kernels import DYNAMIC
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.policy.naming import NamedRow, digest_of, named_columns, names_of
from gnnplace.policy.network.features import GLOBAL, MEANING, STATIC
from gnnplace.simulation.transfer import DELAY, PACE

SingleArray = NDArray[np.float32]


def device_features(graph: WalkGraph) -> SingleArray:
    """Features of each device, named by ``DEVICE``. [D, len(DEVICE)]"""
    out = np.empty((len(DEVICE), graph.problem.num_devices), np.float32)
    _write_device(graph, out)
    return np.ascontiguousarray(out.T)


@named_columns("out")
def _write_device(graph: WalkGraph, out: NamedRow) -> None:
    walk, problem = graph.forward, graph.problem
    pace, delay = walk.links.each(PACE), walk.links.each(DELAY)
    linked = problem.cluster.linked
    count = np.maximum(linked.sum(axis=1), 1)
    out["log slowness for all units"] = np.log(
        np.maximum(walk.device_time, 1e-300) / max(float(walk.device_time.mean()), 1e-300)
    ).clip(-4.0, 4.0)
    out["share of units allowed"] = problem.unit_allowed.mean(axis=0)
    out["state of all units, of the memory"] = np.minimum(2.0, walk.unit_state.sum() / walk.memory)
    out["log seconds of a mean tensor to the others"] = np.log1p(walk.far / walk.scale)
    out["log seconds of a mean tensor, without the latency"] = np.log1p(
        walk.mean_bytes * pace.sum(axis=1) / count / walk.scale
    )
    out["log latency to the others"] = np.log1p(delay.sum(axis=1) / count / walk.scale)
    out["share of devices linked"] = linked.mean(axis=1)
    out["one"] = 1.0


DEVICE = names_of(_write_device)
FEATURE_VERSION = f"{MEANING}-{digest_of(DYNAMIC, STATIC, GLOBAL, DEVICE)}"
