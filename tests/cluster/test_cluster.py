from __future__ import annotations

import pytest

from gnnplace.cluster import Cluster, Device, Link, preset, preset_names
from gnnplace.errors import InputError

A, B = (Device(name=name, kind="k", memory=1.0) for name in "ab")


def link(source="a", target="b", **more):
    return Link(source=source, target=target, latency=1.0, bandwidth=2.0, **more)


def test_matrices():
    cluster = Cluster((A, B), (link(channel="x", sender_busy=True, send_overhead=3.0),))
    assert cluster.channel.tolist() == [[-1, 0], [-1, -1]]
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
    missing = (cluster.channel < 0).sum()
    assert missing == cluster.num_devices
    assert cluster.name == name


def test_two_tiers_differ():
    cluster = preset("two-tier-a100-2x4")
    assert cluster.bandwidth[0, 1] > 10 * cluster.bandwidth[0, 4]
    assert cluster.channel[0, 4] == cluster.channel[1, 5] != cluster.channel[4, 0]
