"""The load that a placement puts on each device when steps are pipelined: the throughput objective.

Pipelined steps follow each other as closely as the busiest device allows; the seconds between two
of them are the **interval**. With ``x`` the device of each unit (PipeDream, Narayanan et al., 2019;
Tarnawski et al., 2020)::

    load[d]  = sum of work[u, d] over units u on d
             + sum of cost(k, d, e) over tensors k made on d and devices e != d with a reader of k
             + sum of cost(k, e, d) over tensors k made on e != d with a reader on d
    cost     = latency + bytes / bandwidth + overheads of sender and receiver; inf without a link
    interval = the largest load

Both ends of a transfer are charged in full, so that a channel shared by the links of one device
(its port) never has more to do than that device. Contention on a bus shared by several devices is
not modelled.

A tensor counts once for each other device. Tensors that one unit makes and the same other units
read always travel together, so they are one **flow** with a number of tensors and a sum of bytes
(``make_flows``). Complexity of ``loads``: O(U + pins + F D) for F flows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.graph import full_ints, kernel, zero_floats
from gnnplace.placers.search.space import SearchSpace
from gnnplace.simulation import DELAY, PACE, SENDS, with_messages


class Flows(NamedTuple):
    """Units, and what travels between them, as arrays for kernels.

    Attributes:
        work: seconds of each unit on each device, inf where it may not be. [U, D]
        state: bytes of each unit that stay. [U]
        memory: bytes of each device. [D]
        latency: seconds a message beside its bytes, row to column, inf without a link. [D, D]
        pace: seconds a byte from row to column, 0 without a link. [D, D]
        producer: unit that makes each flow. [F]
        offset: Index where each flow's readers start in ``reader``. [F + 1]
        reader: units that read, without the producer.
        tensors: number of tensors of each flow. [F]
        size: bytes of each flow. [F]
        unit_offset: Index where each unit's flows start in ``unit_flow``. [U + 1]
        unit_flow: flows that a unit makes or reads.
    """

    work: FloatArray
    state: FloatArray
    memory: FloatArray
    latency: FloatArray
    pace: FloatArray
    producer: IntArray
    offset: IntArray
    reader: IntArray
    tensors: FloatArray
    size: FloatArray
    unit_offset: IntArray
    unit_flow: IntArray


def make_flows(space: SearchSpace) -> Flows:
    """Return the flows of a problem."""
    problem = space.problem
    cluster = space.problem.cluster
    grouped = _group_tensors(space)
    producer = np.array([p for p, _ in grouped], dtype=np.int32)
    sizes = [len(readers) for _, readers in grouped]
    reader = np.array([u for _, readers in grouped for u in readers], dtype=np.int32)
    values = list(grouped.values())
    totals = np.array(values, dtype=np.float64).reshape(-1, 2)
    links = space.compiled.links
    touched = np.concatenate([producer, reader])
    flow = np.concatenate(
        [np.arange(len(producer)), np.repeat(np.arange(len(producer)), sizes)]
    )
    return Flows(
        work=space.work,
        state=problem.unit_state,
        memory=cluster.memory,
        latency=links.each(DELAY) + links.each(SENDS),
        pace=links.each(PACE),
        producer=producer,
        offset=np.concatenate(([0], np.cumsum(sizes))).astype(np.int32),
        reader=reader,
        tensors=totals[:, 0].copy(),
        size=totals[:, 1].copy(),
        unit_offset=np.concatenate(
            ([0], np.cumsum(np.bincount(touched, minlength=problem.num_units)))
        ).astype(np.int32),
        unit_flow=flow[np.argsort(touched, kind="stable")].astype(np.int32),
    )


def _group_tensors(
    space: SearchSpace,
) -> dict[tuple[int, tuple[int, ...]], list[float]]:
    """Return number and bytes of the tensors by their unit and the other units that read them."""
    graph = space.problem.graph
    unit_of = space.problem.unit_of
    flows: dict[tuple[int, tuple[int, ...]], list[float]] = {}
    for tensor, producer in enumerate(unit_of[graph.producer].tolist()):
        readers = np.unique(unit_of[graph.consumers(tensor)])
        away = tuple(readers[readers != producer].tolist())
        if away:
            total = flows.setdefault((producer, away), [0.0, 0.0])
            total[0] += 1.0
            total[1] += float(graph.size[tensor])
    return flows


def restrict_to_devices(flows: Flows, devices: IntArray) -> Flows:
    """Return the same units on some of the devices alone, renumbered in the order given."""
    pairs = np.ix_(devices, devices)
    return flows._replace(
        work=np.ascontiguousarray(flows.work[:, devices]),
        memory=flows.memory[devices],
        latency=np.ascontiguousarray(flows.latency[pairs]),
        pace=np.ascontiguousarray(flows.pace[pairs]),
    )


@kernel
def loads(flows: Flows, device: IntArray) -> FloatArray:
    """Return the seconds of each device for the device of each unit; inf where that is impossible.
    [D]
    """
    load = zero_floats(len(flows.memory))
    for u in range(len(device)):
        load[device[u]] += flows.work[u, device[u]]
    last_flow = full_ints(len(load), -1)
    for k in range(len(flows.producer)):
        source = device[flows.producer[k]]
        last_flow[source] = k
        for j in range(flows.offset[k], flows.offset[k + 1]):
            target = device[flows.reader[j]]
            if last_flow[target] != k:
                last_flow[target] = k
                latency = flows.latency[source, target]
                pace = flows.pace[source, target]
                cost = with_messages(
                    0.0, flows.tensors[k], flows.size[k], latency, pace
                )
                load[source] += cost
                load[target] += cost
    return load


def interval(flows: Flows, device: IntArray) -> float:
    """Return the largest load; inf where a unit may not be, or a link is missing."""
    return float(loads(flows, np.asarray(device, dtype=np.int32)).max())


def state_excess(flows: Flows, device: IntArray) -> float:
    """Return the bytes of state above the devices' memory, all devices together."""
    resident = np.bincount(device, flows.state, len(flows.memory))
    return float(np.maximum(resident - flows.memory, 0.0).sum())
