"""Presets' figures against those of their sources, as the table in the package has them."""

from __future__ import annotations

import json
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from gnnplace.errors import FormatError, InputError
from gnnplace.problem.cluster import (
    Cluster,
    Device,
    Link,
    load_cluster,
    make_preset,
    preset_names,
    read_cluster,
    write_cluster,
)
from gnnplace.problem.cluster.cluster import FABRICS
from gnnplace.problem.cluster.gpus import GPUS
from gnnplace.problem.cluster.presets import MEASURED_PRESETS, ONE_LINK, TWO_LINKS

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
    cluster = make_preset(name)
    missing = (~cluster.linked).sum()
    assert missing == cluster.num_devices
    assert cluster.name == name


def test_two_tiers_differ():
    cluster = make_preset("two-tier-a100-2x4")
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
    cluster = make_preset("nvswitch-a100-8")
    out, into = cluster.channels[:, :, 0], cluster.channels[:, :, 1]
    for i in range(8):
        others = [j for j in range(8) if j != i]
        assert len(set(out[i, others])) == len(set(into[others, i])) == 1
    assert cluster.num_channels == 16
    assert (cluster.channels[:, :, :2] >= 0).all(axis=2).sum() == 56


TWO = """
devices:
  - {name: a, kind: k, memory: 1e9}
  - {name: b, kind: k, memory: 2.0e9}
  - {name: c, kind: k, memory: 3e9}
links:
  - {source: a, target: b, latency: 1e-6, bandwidth: 1e9, channel: x}
connect: {latency: 0.0, bandwidth: 5e9}
"""


def test_reads_numbers_and_connects_the_rest(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(TWO)
    cluster = load_cluster(str(path))
    assert cluster.memory.tolist() == [1e9, 2e9, 3e9]
    assert cluster.bandwidth[0, 1] == 1e9
    assert cluster.bandwidth[1, 0] == 5e9
    assert len(cluster.links) == 6


def test_round_trip(tmp_path):
    for name in ("two-tier-v100-2x4", "mixed-a100-t4-4", "nvswitch-a100-8"):
        write_cluster(tmp_path / "c.yaml", make_preset(name))
        assert read_cluster(tmp_path / "c.yaml") == make_preset(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TWO.replace("1e-6", "-1"), r"links\[0\].latency"),
        (TWO.replace("bandwidth: 1e9", "bandwidth: 0"), r"links\[0\].bandwidth"),
        (
            TWO.replace("memory: 3e9", "memory: .nan"),
            r"devices\[2\].memory: must be a finite",
        ),
        (TWO.replace("channel", "chanel"), r"links\[0\].chanel: unknown key"),
        (
            TWO.replace("channel: x", "channel: []"),
            r"links\[0\].channel: an empty list",
        ),
        (
            TWO.replace("channel: x", "channel: [x, y, x]"),
            r"links\[0\].channel: 'x' is repeated",
        ),
        (
            TWO.replace("channel: x", "channel: [x, 3]"),
            r"links\[0\].channel: must be .* not 3",
        ),
        (
            TWO.replace("channel: x", "channel: 3"),
            r"links\[0\].channel: must be a name or a list",
        ),
        (
            TWO.replace("channel: x", "channel: ''"),
            r"links\[0\].channel: must be a name or a list",
        ),
        (
            TWO.replace("target: b", "target: z"),
            r"links\[0\].target: no device is named 'z'",
        ),
        ("devices: [", "line .* not YAML"),
        ("just text", "top level"),
    ],
)
def test_faults_name_file_and_key(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(FormatError, match=message) as caught:
        read_cluster(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_lists_the_presets():
    with pytest.raises(InputError, match="nvlink-a100-8"):
        load_cluster("nvlink")


def test_sizes_are_written_as_people_write_them(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        TWO.replace("memory: 1e9", "memory: 16GB, reserve: 512MiB").replace(
            "bandwidth: 5e9", "bandwidth: 100Gbit/s"
        )
    )
    cluster = read_cluster(path)
    assert cluster.devices[0].memory == 16e9
    assert cluster.devices[0].reserve == 512 * 2**20
    assert cluster.bandwidth[1, 0] == 12.5e9
    for text, bandwidth in (("12 GB/s", 12e9), ("400Gb/s", 50e9), ("200Gbps", 25e9)):
        path.write_text(TWO.replace("bandwidth: 5e9", f"bandwidth: {text}"))
        assert read_cluster(path).bandwidth[1, 0] == bandwidth
    for text, latency in (
        ("5us", 5e-6),
        ("0.2 ms", 2e-4),
        ("300ns", 3e-7),
        ("1e-3s", 1e-3),
    ):
        path.write_text(TWO.replace("latency: 1e-6", f"latency: {text}"))
        assert read_cluster(path).latency[0, 1] == pytest.approx(latency)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            "memory: 3e9",
            "memory: 80",
            r"devices\[2\].memory: 80 means 80 bytes; write 80GB",
        ),
        (
            "bandwidth: 5e9",
            "bandwidth: 400",
            r"connect.bandwidth: 400 means 400 bytes a second",
        ),
        (
            "latency: 1e-6",
            "latency: 5",
            r"links\[0\].latency: 5 means 5 seconds; write 5us",
        ),
    ],
)
def test_figures_that_no_machine_has_name_the_unit_that_they_may_lack(
    tmp_path, before, after, message
):
    path = tmp_path / "c.yaml"
    path.write_text(TWO.replace(before, after))
    with pytest.raises(FormatError, match=message):
        read_cluster(path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("memory: 16XB", "'16XB' is no size; write bytes, as 16e9, '16GB'"),
        ("bandwidth: 100GB", "'100GB' is no bandwidth; .* or bits, as '400Gb/s'"),
        ("latency: 5 usec", "'5 usec' is no time; write seconds, as 5e-6, '5us'"),
    ],
)
def test_a_size_that_may_mean_two_things_is_refused(tmp_path, given, message):
    key = given.partition(":")[0]
    path = tmp_path / "c.yaml"
    replaced = {
        "memory": "memory: 3e9",
        "bandwidth": "bandwidth: 5e9",
        "latency": "latency: 0.0",
    }
    path.write_text(TWO.replace(replaced[key], given))
    with pytest.raises(FormatError, match=message):
        read_cluster(path)


def test_all_faults_are_told_at_once(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(TWO.replace("1e-6", "-1").replace("memory: 3e9", "memroy: 3e9"))
    with pytest.raises(FormatError, match="and 2 more faults") as schema:
        read_cluster(path)
    assert [line.split(": ")[1] for line in schema.value.faults] == [
        *("devices[2].memory", "devices[2].memroy", "links[0].latency")
    ]
    path.write_text(
        TWO.replace("name: c", "name: b").replace("target: b", "target: bb")
    )
    with pytest.raises(FormatError) as names:
        read_cluster(path)
    told = [line.removeprefix(f"{path}: ") for line in names.value.faults]
    assert told[0] == "devices[2].name: 'b' is repeated"
    assert told[1].startswith("links[0].target: no device is named 'bb'")


TABLE = json.loads((files("gnnplace.costs") / "tables/links.json").read_text())
# Nominal GB and GB/s a direction of NVLink, PCIe or the network card: of datasheets.
RAW = {
    "nvswitch-a100": 300, "nvswitch-h100": 450, "nvswitch-h200": 450, "nvswitch-b200": 900,
    "nvlink-a100-4": 100, "nvlink-gh200-4": 150, "nvlink-v100-4": 75, "nvlink-v100-8": 25,
    "nvlink-pairs-a100": 300, "nvlink-pairs-h100": 300, "nvlink-rtx-3090-2": 56.25,
    "pcie-rtx-3090": 31.5, "pcie-rtx-pro-6000": 63, "pcie-l40s": 31.5, "pcie-a40": 31.5,
    "network-dgx-a100": 25, "infiniband-dgx-h100": 50, "infiniband-gh200": 50,
    "slingshot-gh200": 25, "slingshot-a100": 25, "ethernet-a100": 12.5, "ethernet-a100-80": 12.5,
    "ethernet-v100": 12.5,
}  # fmt: skip


def measured(fabric):
    """Bandwidth by the heading of ``fabrics``: what the largest message attains."""
    series = TABLE[fabric]["series"]
    for name, share in (("p2p 1x2", 1), ("p2p 2x1", 1), ("all_gather 1x2", 0.5),
                        ("all_reduce 1x2", 1), ("all_reduce 1x4", 1.5)):  # fmt: skip
        if name in series:
            points = series[name]
            return share * points["bytes"][-1] / points["us"][-1] * 1e6, points["us"][
                0
            ] / 1e6
    raise AssertionError(fabric)


ASSUMED = ("infiniband-dgx-a100",)  # from a datasheet: no messages of it were measured


@pytest.mark.parametrize("name", [name for name in FABRICS if name not in ASSUMED])
def test_figures_are_the_sources(name):
    fabric = FABRICS[name]
    bandwidth, smallest = measured("nvswitch-h100" if name == "nvswitch-h200" else name)
    # Tables keep medians of half octaves.
    rel = 0.06 if name == "infiniband-dgx-h100" else 0.02
    assert fabric.bandwidth == pytest.approx(bandwidth, rel=rel)
    assert 0 < fabric.latency <= max(smallest, 50e-6)
    assert fabric.bandwidth < RAW[name] * 1e9  # nothing attains more than its wires


def test_nvswitch_h200_is_like_h100():
    """The neighbour's messages are taken since their all-to-alls agree."""
    own, near = (TABLE[f"nvswitch-{k}"]["series"]["all_to_all 1x2"]["us"][-1] for k in
                 ("h200", "h100"))  # fmt: skip
    assert own == pytest.approx(near, rel=0.07)


@pytest.mark.parametrize("name", MEASURED_PRESETS)
def test_links_of_measured_presets(name):
    cluster = make_preset(name)
    for link in cluster.links:
        fabric = FABRICS[link.fabric]
        assert link.latency == fabric.latency
        if name not in (
            "nvlink-v100-8",
            "nvlink-pairs-a100-80-4",
            "nvlink-pairs-h100-4",
        ):
            assert link.bandwidth == fabric.bandwidth
    assert cluster.linked.sum() == cluster.num_devices * (cluster.num_devices - 1)
    for device in cluster.devices:
        assert (
            GPUS[device.kind].memory - 1e9 <= device.memory <= GPUS[device.kind].memory
        )


def test_a_port_is_one_channel_each_way_that_all_peers_share():
    cluster = make_preset("dgx-h100-2x8")
    inside = [k for k in cluster.links if k.fabric == "nvswitch-h100"]
    out = Counter(k.channels[0] for k in inside)
    into = Counter(k.channels[1] for k in inside)
    assert set(out.values()) == set(into.values()) == {7}
    assert len(out) == len(into) == 16
    between = [k for k in cluster.links if k.fabric == "infiniband-dgx-h100"]
    assert set(Counter(k.channels[0] for k in between).values()) == {8}


def test_a_dgx_1_has_six_nvlinks_a_gpu():
    links = Counter(
        g for pairs, n in ((ONE_LINK, 1), (TWO_LINKS, 2)) for p in pairs for g in p * n
    )
    assert set(links.values()) == {6}
    assert len(links) == 8
    rates = Counter(
        round(k.bandwidth / 1e9, 2) for k in make_preset("nvlink-v100-8").links
    )
    assert rates == {22.55: 16, 45.1: 16, 12.0: 24}


def test_every_kind_has_a_preset():
    kinds = {kind for name in preset_names() for kind in make_preset(name).kinds}
    assert kinds >= {"a100", "a100-80", "h100", "h200", "gh200", "b200", "l40s", "rtx-pro-6000",
                     "rtx-3090", "v100", "t4"}  # fmt: skip


def test_older_presets_are_as_they_were():
    """Suites stand on them: kinds, memory, latency and bandwidth of the first link, channels."""
    old = {
        "pcie-t4-2": ("t4", 14.5e9, 10e-6, 12e9, 1),
        "pcie-v100-4": ("v100", 15.5e9, 10e-6, 12e9, 1),
        "pcie-a100-8": ("a100", 39e9, 10e-6, 24e9, 1),
        "nvlink-v100-4": ("v100", 15.5e9, 5e-6, 150e9, 12),
        "nvlink-a100-8": ("a100", 39e9, 5e-6, 300e9, 56),
        "nvlink-h100-8": ("h100", 79e9, 5e-6, 450e9, 56),
        "nvswitch-a100-8": ("a100", 39e9, 5e-6, 228e9, 16),
        "nvswitch-h100-8": ("h100", 79e9, 5e-6, 348e9, 16),
        "two-tier-h100-4x8": ("h100", 79e9, 5e-6, 450e9, 228),
    }  # fmt: skip
    for name, (kind, memory, latency, bandwidth, channels) in old.items():
        cluster = make_preset(name)
        assert (cluster.devices[0].kind, cluster.devices[0].memory) == (kind, memory)
        link = cluster.links[0]
        assert (link.latency, link.bandwidth, cluster.num_channels) == (
            latency,
            bandwidth,
            channels,
        )
        assert (link.fabric is None) == (not name.startswith("nvswitch"))


def test_a_fabric_in_a_file(tmp_path):
    path = tmp_path / "c.yaml"
    write_cluster(path, make_preset("pcie-l40s-2"))
    assert load_cluster(str(path)).links[0].fabric == "pcie-l40s"
    path.write_text(path.read_text().replace("fabric: pcie-l40s", "fabric: pcie-l4", 1))
    with pytest.raises(
        FormatError, match=r"links\[0\].fabric: fabric 'pcie-l4': unknown; known: "
    ):
        load_cluster(str(path))
    assert "fabric" not in Link(
        source="a", target="b", latency=0.0, bandwidth=1.0
    ).model_dump(exclude_defaults=True)


def test_the_docs_have_every_preset_and_its_figures():
    page = (Path(__file__).parents[3] / "docs/howto/cluster.md").read_text(
        encoding="utf-8"
    )
    for name in preset_names():
        assert f"`{name}`" in page
    for name in {
        link.fabric for make in MEASURED_PRESETS.values() for link in make().links
    }:
        figures = FABRICS[name]
        told = f"`{name}`: {figures.latency * 1e6:.3g} µs, {figures.bandwidth / 1e9:.4g} GB/s"
        assert told in page


def test_any_number_of_servers():
    cluster = load_cluster("slingshot-gh200-16x4")
    assert (cluster.num_devices, cluster.name) == (64, "slingshot-gh200-16x4")
    assert cluster.links[-1].source == "gpu:63"
    assert load_cluster("dgx-h100-3x8").num_devices == 24
    for name, told in (
        ("dgx-h100-2049x8", "16384 devices at most"),
        ("dgx-h100-1x8", "two servers at least"),
        ("dgx-h100-4x4", "neither a file nor a preset"),
        ("dgx-h200-4x8", "neither a file nor a preset"),
    ):
        with pytest.raises(InputError, match=told):
            load_cluster(name)


def test_links_of_many_servers_are_made_by_rule() -> None:
    """Each link is the one that a list of all pairs would have; matrices of them are refused."""
    small = load_cluster("dgx-h100-2x8")
    many = load_cluster("dgx-h100-768x8")
    assert (many.num_devices, len(many.links)) == (6144, 6144 * 6143)
    assert list(many.links_from(3))[:15] == list(small.links_from(3))
    assert many.links[15] == next(iter(many.links[15:16]))
    assert (many.links[0].target, many.links[6143].target) == ("gpu:1", "gpu:0")
    assert many.links[-1].target == "gpu:6142"
    assert len(many.part(range(16)).links) == len(small.links)
    with pytest.raises(InputError, match="6144 devices, too many to list the links"):
        _ = many.latency


def test_alike_devices_have_one_pattern() -> None:
    """Pairs inside servers are alike, pairs across are not; a part has its own links."""
    cluster = make_preset("two-tier-v100-2x4")
    assert cluster.pattern([0, 1]) == cluster.pattern([6, 7]) != cluster.pattern([3, 4])
    part = cluster.part([6, 3])
    assert [device.name for device in part.devices] == ["gpu:6", "gpu:3"]
    assert {(link.source, link.target) for link in part.links} == {
        ("gpu:3", "gpu:6"), ("gpu:6", "gpu:3")
    }  # fmt: skip
    assert cluster.part(range(8)) is cluster
