"""Digests: what tells two problems, or two graphs, apart that have one name."""

from __future__ import annotations

import hashlib

import numpy as np

from gnnplace.graph import ComputationGraph
from gnnplace.problem.problem import Problem

RULE = 1  # version of `compute_digest`
ALWAYS = frozenset(
    (
        "name",
        "kind",
        "memory",
        "source",
        "target",
        "latency",
        "bandwidth",
        "channel",
        "sender_busy",
        "send_overhead",
        "receive_overhead",
    )
)


def compute_digest(problem: Problem) -> str:
    """Return what tells two problems apart that have one key: structure, costs, links and memory.

    It hashes what a problem says. A field of a device or a link that is not among ``ALWAYS`` counts
    where it differs from its default alone, so that a field more moves no digest. Written with the
    version of this rule before it, which is not hashed, as ``1:0123456789ab``.
    """
    hashed = hashlib.sha256(problem.fingerprint.encode())
    barred = () if problem.forbid is None else (problem.forbid,)
    for array in (problem.times, problem.state, problem.phase, problem.pin, *barred):
        hashed.update(np.ascontiguousarray(array).tobytes())
    cluster = problem.cluster
    for entry in (*cluster.devices, *cluster.links):
        fields = {*ALWAYS, *entry.model_dump(exclude_defaults=True)}
        hashed.update(entry.model_dump_json(include=fields).encode())
    return prefix_rule_version(hashed.hexdigest()[:12])


def prefix_rule_version(hexadecimal: str) -> str:
    """Return a digest with the version of its rule before it."""
    return f"{RULE}:{hexadecimal}"


def compute_graph_digest(graph: ComputationGraph) -> str:
    """Return a hash of the edges of a graph and of the bytes of its tensors, without names."""
    hashed = hashlib.sha256()
    for array in (graph.producer, graph.consumer_offset, graph.consumer, graph.size):
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()[:12]
