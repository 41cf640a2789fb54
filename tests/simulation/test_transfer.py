from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnplace.graph import ComputationGraph
from gnnplace.problem import build_problem
from gnnplace.problem.cluster import Cluster, Device, Link, make_preset
from gnnplace.problem.placement import Placement
from gnnplace.simulation import simulate, transfer
from gnnplace.simulation.transfer import BANDWIDTH, BUSY, LATENCY, RECEIVES, SENDS
from tests.random_problems import random_cluster, seeds

COPIER = {"sender_busy": True, "send_overhead": 0.5, "receive_overhead": 0.25}


def star(**costs: object) -> Cluster:
    """Three devices; d0 sends to both others, at 4 bytes a second and 1 s latency."""
    devices = tuple(Device(name=f"d{i}", kind="k", memory=1e9) for i in range(3))
    links = tuple(
        Link(source="d0", target=t, latency=1.0, bandwidth=4.0, **costs)
        for t in ("d1", "d2")
    )
    return Cluster(devices, links)


def queues(links: transfer.Links) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Free channels and devices, and nothing sent by ten ops that all finish at 2 s."""
    return np.zeros(links.num_channels), np.full(3, 2.0), np.full(10, 0.0)


def test_a_message_holds_its_channel_and_nothing_else():
    links = transfer.make_links(star())
    channel_free, free, _ = queues(links)
    assert transfer.send(links, channel_free, free, 0, 1, 8.0, 2.0) == (2.0, 4.0)
    assert transfer.send(links, channel_free, free, 0, 1, 4.0, 3.0) == (4.0, 5.0)
    assert transfer.send(links, channel_free, free, 0, 2, 4.0, 3.0) == (3.0, 4.0)
    assert free.tolist() == [2.0, 2.0, 2.0]
    assert transfer.seconds_between(links, 0, 1, 8.0) == 3.0


def test_a_port_is_shared_by_all_peers():
    devices = star().devices
    links = transfer.make_links(
        Cluster(
            devices,
            tuple(
                Link(
                    source=a.name,
                    target=b.name,
                    latency=0.0,
                    bandwidth=1.0,
                    channel=[f"{a.name} out", f"{b.name} in"],
                )
                for a in devices
                for b in devices
                if a != b
            ),
        )
    )
    channel_free, free, _ = queues(links)
    assert transfer.send(links, channel_free, free, 0, 1, 3.0, 0.0) == (0.0, 3.0)
    # Full duplex.
    assert transfer.send(links, channel_free, free, 1, 0, 1.0, 0.0) == (0.0, 1.0)
    # Out of d0.
    assert transfer.send(links, channel_free, free, 0, 2, 1.0, 0.0) == (3.0, 4.0)
    # Into d1.
    assert transfer.send(links, channel_free, free, 2, 1, 1.0, 0.0) == (3.0, 4.0)
    # What waits for d1's port has d2's already: first come, first served on each channel.
    assert transfer.send(links, channel_free, free, 2, 0, 1.0, 0.0) == (4.0, 5.0)


def test_the_sender_copies_one_after_the_other():
    links = transfer.make_links(star(**COPIER))
    channel_free, free, _ = queues(links)
    assert transfer.send(links, channel_free, free, 0, 1, 8.0, 2.0) == (2.0, 4.0)
    assert transfer.send(links, channel_free, free, 0, 2, 8.0, 2.0) == (4.0, 6.0)
    assert free.tolist() == [6.0, 2.0, 2.0]
    assert transfer.receive_time(links, 0, 1, 8.0) == 0.25


def test_a_late_booking_of_the_last_op_is_what_the_simulator_does():
    """Two copies of one op, then the overheads: the sender is busy until 2 + 2 + 2 + 0.5 + 0.5."""
    links = transfer.make_links(star(**COPIER))
    channel_free, free, sent = queues(links)
    arrivals = [
        transfer.fetch(
            links, transfer.SendQueues(channel_free, free, sent), 0, 0, t, 8.0, 2.0
        )
        for t in (1, 2)
    ]
    assert arrivals == [5.0, 7.0]
    assert free.tolist() == [7.0, 2.0, 2.0]
    graph = ComputationGraph.from_tensors(["a", "b", "c", "d"], [(0, 8.0, [1, 2])])
    problem = build_problem("p", graph, star(**COPIER), {"k": [2.0, 1.0, 1.0, 1.0]})
    sequence = (np.array([0, 3]), np.array([1]), np.array([2]))
    result = simulate(problem, Placement(np.array([0, 1, 2, 0]), sequence))
    assert result.start.tolist() == [0.0, arrivals[0] + 0.25, arrivals[1] + 0.25, 7.0]


def test_a_late_booking_delays_what_the_sender_does_next():
    """The sender has gone on to 10 s: the copy was made at 2 s, all else moves by its length."""
    links = transfer.make_links(star(**COPIER))
    channel_free, free, sent = queues(links)
    free[0] = 10.0
    assert (
        transfer.fetch(
            links, transfer.SendQueues(channel_free, free, sent), 0, 0, 1, 8.0, 2.0
        )
        == 5.0
    )
    assert free[0] == 12.5


@settings(max_examples=50, deadline=None)
@given(seed=seeds, size=st.sampled_from([0.0, 1.0, 3.0, 100.0]))
def test_what_would_be_booked_is_what_is_booked(seed, size):
    rng = np.random.default_rng(seed)
    links = transfer.make_links(random_cluster(rng, 3))
    channel_free = rng.integers(0, 9, links.num_channels).astype(float)
    free, sent = np.full(3, 20.0), rng.integers(0, 9, 4).astype(float)
    begin = transfer.fetch_begin(links, channel_free, sent, 1, 0, 2, 4.0)
    assert begin >= 4.0
    arrival = transfer.fetch(
        links, transfer.SendQueues(channel_free, free, sent), 1, 0, 2, size, 4.0
    )
    assert arrival == pytest.approx(
        begin + size / links.costs[0, 2, BANDWIDTH] + links.costs[0, 2, LATENCY]
    )
    assert transfer.find_free_time(links, channel_free, 0, 2) == pytest.approx(
        begin + size / links.costs[0, 2, BANDWIDTH]
    )
    copy = size / links.costs[0, 2, BANDWIDTH] if links.costs[0, 2, BUSY] else 0.0
    spent = links.costs[0, 2, SENDS] + copy
    assert free[0] == pytest.approx(20.0 + spent)
    assert transfer.send_time(links, 0, 2, size) == pytest.approx(spent)
    assert free[[1, 2]].tolist() == [20.0, 20.0]


@settings(max_examples=50, deadline=None)
@given(seed=seeds, size=st.sampled_from([0.0, 3.0, 100.0]))
def test_backwards_a_message_takes_as_long_and_costs_the_other_side(seed, size):
    links = transfer.make_links(random_cluster(np.random.default_rng(seed), 3))
    back = transfer.reverse_links(links)
    forth = links.costs[0, 1, LATENCY] + size / links.costs[0, 1, BANDWIDTH]
    assert transfer.seconds_between(links, 0, 1, size) == pytest.approx(
        forth + links.costs[0, 1, RECEIVES]
    )
    assert transfer.seconds_between(back, 1, 0, size) == pytest.approx(
        forth + links.costs[0, 1, SENDS]
    )
    copy = size / links.costs[0, 1, BANDWIDTH] if links.costs[0, 1, BUSY] else 0.0
    paid = transfer.receive_time(back, 1, 0, size)
    assert paid == pytest.approx(links.costs[0, 1, SENDS] + copy)
    assert back.costs[1, 0, SENDS] == links.costs[0, 1, RECEIVES]
    assert not back.each(BUSY).any()
    assert back.channel[1, 0].tolist() == links.channel[0, 1].tolist()
    for name, array in links._asdict().items():
        if isinstance(array, np.ndarray):
            assert getattr(back, name).flags == array.flags, name


def test_parts_add_up_to_the_whole():
    cluster = star(**COPIER)
    service, latency, send, receive = transfer.split_message_seconds(
        cluster, 0, 1, 8.0, 2
    )
    assert (service, latency, send, receive) == (2.0, 1.0, 1.0, 0.5)
    assert transfer.sender_seconds(cluster.links[0], 8.0) == 0.5 + 2.0
    assert (
        transfer.compute_most_seconds(cluster, np.array([8.0]))
        == 1.0 + 0.5 + 0.25 + 2.0
    )
    assert (
        transfer.compute_most_seconds(Cluster(cluster.devices), np.array([8.0])) == 0.0
    )


def test_the_mean_link_counts_pairs_without_one_as_free():
    cluster = star()
    assert transfer.mean_seconds(cluster, np.array([8.0])).tolist() == [2 / 9 * 3.0]
    whole = make_preset("pcie-t4-2")
    expected = 0.5 * (10e-6 + 12e9 / 12e9)
    assert transfer.mean_seconds(whole, np.array([12e9]))[0] == pytest.approx(expected)


@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_new_overheads_are_told_where_there_are_any(seed):
    links = transfer.make_links(random_cluster(np.random.default_rng(seed), 3))
    none, some = np.zeros((3, 3)), np.ones((3, 3))
    free = transfer.with_overheads(links, none, none)
    assert free.sends_cost == links.each(BUSY).any()
    assert not free.receives_cost
    dear = transfer.with_overheads(links, some, some)
    assert dear.sends_cost
    assert dear.receives_cost
    assert transfer.seconds_between(dear, 0, 1, 4.0) == pytest.approx(
        transfer.seconds_between(free, 0, 1, 4.0) + 1.0
    )
