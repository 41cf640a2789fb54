"""Clusters of servers that are alike: by a number of GPUs, and by a file."""

from __future__ import annotations

import pytest

from gnnplace.costs import find_kernels, get_network, load_framework_constants
from gnnplace.errors import FormatError, InputError
from gnnplace.problem import load_cluster
from gnnplace.problem.cluster.gpus import OWN_GPUS, get_figures

FILE = """
name: mine
servers: 2
each: {gpus: 8, kind: h100, memory: 80GB, link: nvlink4}
network: {bandwidth: 400Gb/s, per: gpu, latency: 17us}
"""


@pytest.fixture(autouse=True)
def no_own_kinds():
    """Leave no kind of a test's file to other tests."""
    yield
    OWN_GPUS.clear()


def network(cluster):
    """What the first GPU of a cluster sees."""
    return get_network(cluster, load_framework_constants("pytorch"))


@pytest.mark.parametrize(
    ("name", "kind", "servers_of", "card"),
    [
        ("16xH100", "h100", 8, 50e9),
        ("16xA100-80", "a100-80", 8, 25e9),
        ("16xh200", "h200", 8, 50e9),
        ("16xB200", "b200", 8, 50e9),
        ("144xGB200", "gb200", 72, 100e9),
        ("16xMI300X", "mi300x", 8, 50e9),
        ("16xRTX-4090", "rtx-4090", 8, 12.5e9 / 8),
    ],
)
def test_a_number_of_gpus_is_a_cluster_of_their_usual_servers(
    name, kind, servers_of, card
):
    cluster = load_cluster(name)
    assert cluster.kinds == (kind,)
    assert cluster.name == name
    assert network(cluster).per_server == servers_of
    assert network(cluster).card == pytest.approx(card)


def test_a_number_of_h100_is_the_preset_of_as_many():
    counted, preset = load_cluster("16xH100"), load_cluster("dgx-h100-2x8")
    assert counted.devices == preset.devices
    assert [link.model_dump() for link in counted.links] == [
        link.model_dump() for link in preset.links
    ]


def test_few_gpus_are_one_server():
    assert network(load_cluster("4xH100")).per_server == 4
    assert load_cluster("1xH100").links == ()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("12xH100", "a multiple of 8"),
        ("0xH100", "give up to 8 GPUs"),
        ("8xGTX-9000", "no usual servers of 'GTX-9000'"),
        ("8xH100+12xA100", "a multiple of 8"),
        ("16000xH100+16000xA100", "more than 16384 GPUs"),
    ],
)
def test_other_numbers_and_kinds_are_refused(name, words):
    with pytest.raises(InputError, match=words):
        load_cluster(name)


def test_servers_of_two_kinds_are_joined_by_the_slower_network(tmp_path):
    cluster = load_cluster("8xH100+4xRTX-4090")
    assert cluster.kinds == ("h100", "rtx-4090")
    assert [device.kind for device in cluster.devices[7:9]] == ["h100", "rtx-4090"]
    links = {(link.source, link.target): link for link in cluster.listed_links}
    between, back = links["gpu:0", "gpu:8"], links["gpu:8", "gpu:0"]
    alone = {
        (link.source, link.target): link
        for link in load_cluster("16xH100").listed_links
    }
    assert between.bandwidth < alone["gpu:0", "gpu:8"].bandwidth
    # An H100 has a card of its own, the others share one.
    assert between.channels == ("gpu:0 network out", "server:1 network in")
    assert back.channels == ("server:1 network out", "gpu:0 network in")
    assert links["gpu:0", "gpu:1"] == alone["gpu:0", "gpu:1"]


def test_a_file_lists_servers_of_several_kinds(tmp_path):
    path = tmp_path / "mine.yaml"
    text = (
        "servers:\n"
        "  - {count: 2, gpus: 8, kind: h100, memory: 80GB}\n"
        "  - {gpus: 4, kind: a100-80, link: nvlink3}\n"
        "network: {bandwidth: 400Gb/s}\n"
    )
    path.write_text(text)
    cluster = load_cluster(str(path))
    kinds = [device.kind for device in cluster.devices]
    assert kinds == ["h100"] * 16 + ["a100-80"] * 4
    assert cluster.devices[0].memory == 80e9
    for before, after, words in (
        ("nvlink3", "nvlnk3", r"servers\[1\].link 'nvlnk3'"),
        ("memory: 80GB", "memory: 80", r"servers\[0\].memory: 80 means 80 bytes"),
        ("count: 2", "count: 0", r"servers\[0\].*count"),
        ("network: ", "x-network: ", "network: is missing"),
        (
            "network: ",
            "each: {gpus: 8, kind: h100}\nnetwork: ",
            "each: is for a number",
        ),
    ):
        path.write_text(text.replace(before, after))
        with pytest.raises(FormatError, match=words):
            load_cluster(str(path))


def test_a_file_of_servers_is_the_preset_with_its_figures(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(FILE)
    cluster = load_cluster(str(path))
    assert (cluster.name, cluster.num_devices, cluster.devices[0].memory) == (
        "mine",
        16,
        80e9,
    )
    assert network(cluster).card == pytest.approx(50e9)
    assert network(cluster).fabric == "nvswitch-h100"
    path.write_text(FILE.replace("per: gpu", "per: server"))
    assert network(load_cluster(str(path))).card == pytest.approx(50e9 / 8)


def test_a_kind_of_ones_own_is_priced_by_its_peaks(tmp_path):
    path = tmp_path / "mine.yaml"
    kinds = (
        "kinds: {my-card: {flops: {bf16: 200T}, bandwidth: 1008GB/s, memory: 24GB}}\n"
    )
    path.write_text(FILE.replace("kind: h100, memory: 80GB", "kind: my-card") + kinds)
    cluster = load_cluster(str(path))
    assert cluster.devices[0].memory == 23e9
    assert get_figures("my-card").flops("bfloat16") == 200e12
    kernels = find_kernels("my-card", "flash")
    assert kernels.is_roofline
    least = 2 * 4096**3 / 200e12
    assert least < kernels.products([(4096, 4096, 4096)]) < 4 * least


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("nvlink4", "nvlnk4", "each.link 'nvlnk4': unknown; did you mean 'nvlink4'"),
        ("kind: h100", "kind: h1000", "device kind 'h1000'"),
        ("memory: 80GB", "memory: 80", "each.memory: 80 means 80 bytes; write 80GB"),
        ("400Gb/s", "400", "network.bandwidth: 400 means 400 bytes a second"),
        ("17us", "17", "network.latency: 17 means 17 seconds"),
        ("per: gpu", "per: rack", "network.per"),
        ("servers: 2", "servers: 0", "servers"),
        ("servers: 2", "servers: 10000", "more than 16384 GPUs"),
    ],
)
def test_faults_of_a_file_name_the_key(tmp_path, before, after, words):
    path = tmp_path / "mine.yaml"
    path.write_text(FILE.replace(before, after))
    with pytest.raises(FormatError, match=words):
        load_cluster(str(path))


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        (
            "{h100: {flops: {bf16: 1T}, bandwidth: 1TB/s, memory: 24GB}}",
            "is known already",
        ),
        ("{q: {flops: {bf16: 165}, bandwidth: 1TB/s, memory: 24GB}}", "such as 165T"),
        ("{q: {flops: {}, bandwidth: 1TB/s, memory: 24GB}}", "kinds.q.flops: is empty"),
    ],
)
def test_faults_of_a_kind_name_the_key(tmp_path, kinds, words):
    path = tmp_path / "mine.yaml"
    path.write_text(FILE + f"kinds: {kinds}\n")
    with pytest.raises(FormatError, match=words):
        load_cluster(str(path))


def test_a_network_is_needed_between_servers(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("servers: 2\neach: {gpus: 8, kind: h100}\n")
    with pytest.raises(FormatError, match="network: is missing"):
        load_cluster(str(path))


COPIES = """
name: mine
servers: 3
preset: nvlink-v100-4
network: {bandwidth: 100Gb/s, per: server, latency: 20us}
"""


def test_servers_may_be_a_preset(tmp_path):
    path = tmp_path / "copies.yaml"
    path.write_text(COPIES, encoding="utf-8")
    cluster = load_cluster(str(path))
    one, counted = load_cluster("nvlink-v100-4"), load_cluster("3xNVLINK-v100-4")
    assert (cluster.name, counted.name) == ("mine", "3xNVLINK-v100-4")
    assert cluster.devices == counted.devices
    assert cluster.bandwidth[0, 1] == one.bandwidth[0, 1]
    assert cluster.bandwidth[0, 4] == pytest.approx(0.9 * 12.5e9)
    assert cluster.latency[0, 4] == pytest.approx(20e-6)
    assert counted.latency[0, 4] == 10e-6
    # One card a server, or one a GPU.
    assert cluster.channels[0, 4, 0] == cluster.channels[1, 8, 0]
    path.write_text(COPIES.replace("per: server", "per: gpu"), encoding="utf-8")
    own = load_cluster(str(path))
    assert own.channels[0, 4, 0] == own.channels[0, 8, 0] != own.channels[1, 8, 0]


@pytest.mark.parametrize(
    ("line", "replaced", "told"),
    [
        ("network:", "x-network:", "preset: needs a number of servers and a network"),
        ("servers: 3", "servers: 3\neach: {gpus: 8, kind: h100}", "neither each nor"),
        ("nvlink-v100-4", "nvlink-v100-5", "cluster preset 'nvlink-v100-5': unknown"),
        ("100Gb/s", "100", "100 means 100 bytes a second"),
        ("servers: 3", "servers: 9999", "16384 devices at most"),
    ],
)
def test_a_file_of_copies_that_is_wrong_is_one_line(line, replaced, told, tmp_path):
    path = tmp_path / "copies.yaml"
    path.write_text(COPIES.replace(line, replaced), encoding="utf-8")
    with pytest.raises(FormatError, match=told):
        load_cluster(str(path))
