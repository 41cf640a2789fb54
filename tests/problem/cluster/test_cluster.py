from __future__ import annotations

import pytest

from gnnplace.errors import InputError
from gnnplace.problem.cluster import Cluster, Device, Link, preset, preset_names

A, B = (Device(name=name, kind="k", memory=1.0) for name in "ab")


def link(source="a", target="b", **more):
    return Link(source=source, target=target, latency=1.0, bandwidth=2.0, **more)


def test_matrices():
    cluster = Cluster((A, B), (link(channel="x", sender_busy=True, send_overhead=3.0),))
    assert cluster.channels[:, :, 0].tolist() == [[-1, 0], [-1, -1]]
    assert cluster.linked.tolist() == [[False, True], [False, False]]
    assert cluster.bandwidth[0, 1] == 2.0
    assert cluster.latency[0, 1] == 1.0
    assert cluster.sender_busy[0, 1]
    assert cluster.send_overhead[0, 1] == 3.0
    assert cluster.num_channels == 1


def test_links_of_one_channel_share_it_and_others_do_not():
    shared = Cluster((A, B), (link(channel="x"), link("b", "a", channel="x")))
    own = Cluster((A, B), (link(), link("b", "a")))
    assert shared.num_channels == 1
    assert own.num_channels == 2


@pytest.mark.parametrize(
    ("devices", "links", "message"),
    [
        ((), (), "at least one device"),
        ((A, A), (), r"devices\[1\].name: 'a' is repeated"),
        ((A, B), (link(target="c"),), r"links\[0\].target: no device is named 'c'"),
        ((A, B), (link(target="a"),), r"links\[0\].target"),
        ((A, B), (link(), link()), r"links\[1\]: the link 'a' to 'b' is repeated"),
    ],
)
def test_faults_are_named(devices, links, message):
    with pytest.raises(InputError, match=message):
        Cluster(devices, links)


@pytest.mark.parametrize("name", preset_names())
def test_presets_link_every_pair(name):
    cluster = preset(name)
    missing = (~cluster.linked).sum()
    assert missing == cluster.num_devices
    assert cluster.name == name


def test_two_tiers_differ():
    cluster = preset("two-tier-a100-2x4")
    assert cluster.bandwidth[0, 1] > 10 * cluster.bandwidth[0, 4]
    channel = cluster.channels[:, :, 0]
    assert channel[0, 4] == channel[1, 5] != channel[4, 0]


def test_a_link_may_hold_several_channels():
    links = (link(channel=["a out", "b in"]), link("b", "a", channel="a out"))
    cluster = Cluster((A, B), links)
    assert cluster.channels.tolist() == [[[-1, -1], [0, 1]], [[0, -1], [-1, -1]]]
    assert cluster.num_channels == 2
    assert links[0].channels == ("a out", "b in")


def test_a_list_of_one_channel_is_that_channel():
    assert link(channel=["x"]) == link(channel="x")


def test_all_links_of_a_port_share_it():
    """A GPU behind a switch sends through one port and receives through another."""
    cluster = preset("nvswitch-a100-8")
    out, into = cluster.channels[:, :, 0], cluster.channels[:, :, 1]
    for i in range(8):
        others = [j for j in range(8) if j != i]
        assert len(set(out[i, others])) == len(set(into[others, i])) == 1
    assert cluster.num_channels == 16
    assert (cluster.channels[:, :, :2] >= 0).all(axis=2).sum() == 56
