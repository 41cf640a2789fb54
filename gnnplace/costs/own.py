"""A user's own measurements of links and collectives, in place of the package's.

A log of nccl-tests (`nccl_tests`) on the GPUs of one server gives the times of
links inside servers; a log on several servers gives those of links between servers. A cluster's
link is between servers if its fabric is. If links name no fabric, the slowest links are between
servers, unless all links are equal. All links of a kind that was measured get the same figures:

* ``bandwidth``: what the largest message of ``sendrecv_perf`` attains; without that program, the
  bus bandwidth of the largest all-gather, reduce-scatter or all-reduce;
* ``latency``: what the smallest one took beyond its bytes, for each hop.

Channels stay as they are. The links then name the fabrics ``own-inside`` and ``own-between``, which
the table that is returned knows beside those of the package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gnnplace.costs.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    count_hops,
    share,
)
from gnnplace.costs.links import P2P, Key, LinkTable, SizeSeries, load_shipped_links
from gnnplace.costs.nccl_tests import Run, read_nccl_tests
from gnnplace.errors import InputError
from gnnplace.problem import OWN_BETWEEN, OWN_INSIDE, Cluster, Link, is_between

RELIED_ON = (P2P, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE)  # the first that was measured


@dataclass(frozen=True)
class MeasuredCluster:
    """A cluster by measurements of one's own.

    Attributes:
        cluster: The cluster, its links with the measured figures.
        table: The package's table with the measured collectives beside.
        notes: Sentences that say what was taken from what.
    """

    cluster: Cluster
    table: LinkTable
    notes: tuple[str, ...]


def with_measurements(cluster: Cluster, path: str | Path) -> MeasuredCluster:
    """Return the cluster with the links that a log of nccl-tests measured.

    Args:
        cluster: The cluster whose links were measured.
        path: The path of the log.

    Raises:
        FormatError: A line cannot be read.
        InputError: The log measured links that the cluster does not have.
    """
    runs = read_nccl_tests(path)
    table = load_shipped_links()
    notes = []
    links = list(cluster.listed_links)
    for fabric, fabric_runs in (
        (OWN_INSIDE, [run for run in runs if run.servers == 1]),
        (OWN_BETWEEN, [run for run in runs if run.servers > 1]),
    ):
        if not fabric_runs:
            continue
        link_indices = _find_links(cluster, fabric == OWN_BETWEEN)
        if not link_indices:
            if fabric == OWN_BETWEEN:
                position = "between servers"
            else:
                position = "inside a server"
            raise InputError(
                f"{path}: it measured links {position}, and the cluster has none"
            )
        op, latency, bandwidth = _figures(fabric_runs)
        table = _with(table, fabric, fabric_runs, latency, bandwidth, str(path))
        update = {"latency": latency, "bandwidth": bandwidth, "fabric": fabric}
        for i in link_indices:
            links[i] = links[i].model_copy(update=update)
        notes.append(_note(fabric, len(link_indices), op, latency, bandwidth, path))
    return MeasuredCluster(replace(cluster, links=tuple(links)), table, tuple(notes))


def _find_links(cluster: Cluster, between: bool) -> list[int]:
    """Return the indices of the links inside of servers, or of those between them."""
    slowest = min((link.bandwidth for link in cluster.links), default=0.0)
    alike = all(link.bandwidth == slowest for link in cluster.links)

    def joins_servers(link: Link) -> bool:
        if link.fabric is not None:
            return is_between(link.fabric)
        return not alike and link.bandwidth == slowest

    return [i for i, link in enumerate(cluster.links) if joins_servers(link) == between]


def _figures(runs: Iterable[Run]) -> tuple[str, float, float]:
    """Return which collective's run the figures are from, and latency and bandwidth of a link."""
    by_op: Mapping[str, Run] = {run.op: run for run in runs}
    op = next((name for name in RELIED_ON if name in by_op), None)
    if op is None:
        raise InputError(
            "an all-to-all alone does not say what a link takes: run sendrecv_perf"
        )
    run = by_op[op]
    count = run.servers * run.per_server
    part, latencies = (
        (1.0, 1.0) if op == P2P else (share(op, count), count_hops(op, count))
    )
    (small, first), (large, last) = run.rows[0], run.rows[-1]
    bandwidth = part * large / last
    return op, max(first - part * small / bandwidth, 0.0) / latencies, bandwidth


def _with(
    table: LinkTable,
    fabric: str,
    runs: Sequence[Run],
    latency: float,
    bandwidth: float,
    source: str,
) -> LinkTable:
    """Return the table with one more fabric."""
    series = {Key(run.op, run.servers, run.per_server): _series(run) for run in runs}
    return LinkTable(
        {**table.series, fabric: series},
        {**table.latency, fabric: latency},
        {**table.bandwidth, fabric: bandwidth},
        {**table.source, fabric: source},
    )


def _series(run: Run) -> SizeSeries:
    """Return the series of a run, without rows that took longer than larger ones: disturbances."""
    sizes, seconds = np.array(run.rows, dtype=np.float64).T
    return SizeSeries(sizes, np.minimum.accumulate(seconds[::-1])[::-1])


def _note(
    fabric: str, count: int, op: str, latency: float, bandwidth: float, path: str | Path
) -> str:
    if fabric == OWN_BETWEEN:
        position = "between servers"
    else:
        position = "inside of servers"
    figures = f"{latency * 1e6:.3g} us and {bandwidth / 1e9:.3g} GB/s"
    if op == P2P:
        how = "messages"
    else:
        how = f"its {op.replace('_', '-')}, as it has no sendrecv_perf"
    return f"{count} links {position} take {figures}, from {how} in {path}"
