"""Presets' figures against those of their sources, as the table in the package has them."""

import json
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from gnnplace.errors import FormatError, InputError
from gnnplace.problem.cluster import Link, load_cluster, preset, preset_names, write_cluster
from gnnplace.problem.cluster.fabrics import FABRICS
from gnnplace.problem.cluster.gpus import GPUS
from gnnplace.problem.cluster.presets import MEASURED_PRESETS, ONE_LINK, TWO_LINKS

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
            return share * points["bytes"][-1] / points["us"][-1] * 1e6, points["us"][0] / 1e6
    raise AssertionError(fabric)


ASSUMED = ("infiniband-dgx-a100",)  # from a datasheet: no messages of it were measured


@pytest.mark.parametrize("name", [name for name in FABRICS if name not in ASSUMED])
def test_figures_are_the_sources(name):
    fabric = FABRICS[name]
    bandwidth, smallest = measured("nvswitch-h100" if name == "nvswitch-h200" else name)
    rel = 0.06 if name == "infiniband-dgx-h100" else 0.02  # tables keep medians of half octaves
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
    cluster = preset(name)
    for link in cluster.links:
        fabric = FABRICS[link.fabric]
        assert link.latency == fabric.latency
        if name not in ("nvlink-v100-8", "nvlink-pairs-a100-80-4", "nvlink-pairs-h100-4"):
            assert link.bandwidth == fabric.bandwidth
    assert cluster.linked.sum() == cluster.num_devices * (cluster.num_devices - 1)
    for device in cluster.devices:
        assert GPUS[device.kind].memory - 1e9 <= device.memory <= GPUS[device.kind].memory


def test_a_port_is_one_channel_each_way_that_all_peers_share():
    cluster = preset("dgx-h100-2x8")
    inside = [k for k in cluster.links if k.fabric == "nvswitch-h100"]
    out = Counter(k.channels[0] for k in inside)
    into = Counter(k.channels[1] for k in inside)
    assert set(out.values()) == set(into.values()) == {7}
    assert len(out) == len(into) == 16
    between = [k for k in cluster.links if k.fabric == "infiniband-dgx-h100"]
    assert set(Counter(k.channels[0] for k in between).values()) == {8}


def test_a_dgx_1_has_six_nvlinks_a_gpu():
    links = Counter(g for pairs, n in ((ONE_LINK, 1), (TWO_LINKS, 2)) for p in pairs for g in p * n)
    assert set(links.values()) == {6}
    assert len(links) == 8
    rates = Counter(round(k.bandwidth / 1e9, 2) for k in preset("nvlink-v100-8").links)
    assert rates == {22.55: 16, 45.1: 16, 12.0: 24}


def test_every_kind_has_a_preset():
    kinds = {kind for name in preset_names() for kind in preset(name).kinds}
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
        cluster = preset(name)
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
    write_cluster(path, preset("pcie-l40s-2"))
    assert load_cluster(str(path)).links[0].fabric == "pcie-l40s"
    path.write_text(path.read_text().replace("fabric: pcie-l40s", "fabric: pcie-l4", 1))
    with pytest.raises(FormatError, match=r"links\[0\].fabric: fabric 'pcie-l4': unknown; known: "):
        load_cluster(str(path))
    assert "fabric" not in Link(source="a", target="b", latency=0.0, bandwidth=1.0).model_dump(
        exclude_defaults=True
    )


def test_the_docs_have_every_preset_and_its_figures():
    page = (Path(__file__).parents[3] / "docs/howto/cluster.md").read_text(encoding="utf-8")
    for name in preset_names():
        assert f"`{name}`" in page
    for name in {link.fabric for make in MEASURED_PRESETS.values() for link in make().links}:
        figures = FABRICS[name]
        told = f"`{name}`: {figures.latency * 1e6:.3g} µs, {figures.bandwidth / 1e9:.4g} GB/s"
        assert told in page


def test_any_number_of_servers():
    cluster = load_cluster("slingshot-gh200-16x4")
    assert (cluster.num_devices, cluster.name) == (64, "slingshot-gh200-16x4")
    assert cluster.links[-1].source == "gpu:63"
    assert load_cluster("dgx-h100-3x8").num_devices == 24
    for name, told in (
        ("dgx-h100-256x8", "1024 devices at most"),
        ("dgx-h100-1x8", "two servers at least"),
        ("dgx-h100-4x4", "neither a file nor a preset"),
        ("dgx-h200-4x8", "neither a file nor a preset"),
    ):
        with pytest.raises(InputError, match=told):
            load_cluster(name)
