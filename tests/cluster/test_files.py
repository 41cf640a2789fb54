from __future__ import annotations

import pytest

from gnnplace.cluster import load_cluster, preset, read_cluster, write_cluster
from gnnplace.errors import FormatError, InputError

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
