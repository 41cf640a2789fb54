from __future__ import annotations

import pytest

from gnnplace.errors import FormatError, InputError
from gnnplace.problem.cluster import load_cluster, preset, read_cluster, write_cluster

TWO = """
devices:
  - {name: a, kind: k, memory: 1e9}
  - {name: b, kind: k, memory: 2.0e9}
  - {name: c, kind: k, memory: 1000}
links:
  - {source: a, target: b, latency: 1e-6, bandwidth: 1e9, channel: x}
connect: {latency: 0.0, bandwidth: 5}
"""


def test_reads_numbers_and_connects_the_rest(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(TWO)
    cluster = load_cluster(str(path))
    assert cluster.memory.tolist() == [1e9, 2e9, 1000.0]
    assert cluster.bandwidth[0, 1] == 1e9
    assert cluster.bandwidth[1, 0] == 5.0
    assert len(cluster.links) == 6


def test_round_trip(tmp_path):
    for name in ("two-tier-v100-2x4", "mixed-a100-t4-4", "nvswitch-a100-8"):
        write_cluster(tmp_path / "c.yaml", preset(name))
        assert read_cluster(tmp_path / "c.yaml") == preset(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TWO.replace("1e-6", "-1"), r"links\[0\].latency"),
        (TWO.replace("bandwidth: 1e9", "bandwidth: 0"), r"links\[0\].bandwidth"),
        (TWO.replace("memory: 1000", "memory: .nan"), r"devices\[2\].memory: must be a finite"),
        (TWO.replace("channel", "chanel"), r"links\[0\].chanel: unknown key"),
        (TWO.replace("channel: x", "channel: []"), r"links\[0\].channel: an empty list"),
        (TWO.replace("channel: x", "channel: [x, y, x]"), r"links\[0\].channel: 'x' is repeated"),
        (TWO.replace("channel: x", "channel: [x, 3]"), r"links\[0\].channel: must be .* not 3"),
        (TWO.replace("channel: x", "channel: 3"), r"links\[0\].channel: must be a name or a list"),
        (TWO.replace("channel: x", "channel: ''"), r"links\[0\].channel: must be a name or a list"),
        (TWO.replace("target: b", "target: z"), r"links\[0\].target: no device is named 'z'"),
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
            "bandwidth: 5", "bandwidth: 100Gbit/s"
        )
    )
    cluster = read_cluster(path)
    assert cluster.devices[0].memory == 16e9
    assert cluster.devices[0].reserve == 512 * 2**20
    assert cluster.bandwidth[1, 0] == 12.5e9
    path.write_text(TWO.replace("bandwidth: 5", "bandwidth: 12 GB/s"))
    assert read_cluster(path).bandwidth[1, 0] == 12e9


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("memory: 16XB", "'16XB' is no size; write bytes, as 16e9, '16GB'"),
        ("bandwidth: 100Gb/s", "'100Gb/s' is no bandwidth; .* or bits, as '100Gbit/s'"),
        ("bandwidth: 100GB", "'100GB' is no bandwidth"),
    ],
)
def test_a_size_that_may_mean_two_things_is_refused(tmp_path, given, message):
    key = given.partition(":")[0]
    path = tmp_path / "c.yaml"
    path.write_text(TWO.replace("memory: 1000" if key == "memory" else "bandwidth: 5", given))
    with pytest.raises(FormatError, match=message):
        read_cluster(path)


def test_all_faults_are_told_at_once(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(TWO.replace("1e-6", "-1").replace("memory: 1000", "memroy: 1000"))
    with pytest.raises(FormatError, match="and 2 more faults") as schema:
        read_cluster(path)
    assert [line.split(": ")[1] for line in schema.value.faults] == [
        *("devices[2].memory", "devices[2].memroy", "links[0].latency")
    ]
    path.write_text(TWO.replace("name: c", "name: b").replace("target: b", "target: bb"))
    with pytest.raises(FormatError) as names:
        read_cluster(path)
    told = [line.removeprefix(f"{path}: ") for line in names.value.faults]
    assert told[0] == "devices[2].name: 'b' is repeated"
    assert told[1].startswith("links[0].target: no device is named 'bb'")
