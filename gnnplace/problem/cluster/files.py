"""Cluster files: YAML with ``devices`` and ``links`` as in a problem file, or a preset's name.

::

    name: two-gpus
    devices:
      - {name: "gpu:0", kind: a100, memory: 4.0e10}
      - {name: "gpu:1", kind: a100, memory: 4.0e10}
    links:
      - {source: "gpu:0", target: "gpu:1", latency: 5.0e-6, bandwidth: 1.2e10, channel: pcie}
      - {source: "gpu:1", target: "gpu:0", latency: 5.0e-6, bandwidth: 2.2e11,
         channel: ["gpu:1 out", "gpu:0 in"]}              # holds both at once
    connect: {latency: 5.0e-6, bandwidth: 1.2e10}     # optional: every pair not listed in links
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from gnnplace.errors import FormatError, InputError, of_faults
from gnnplace.files import Schema, parse, read_yaml, write_text
from gnnplace.problem.cluster.cluster import Cluster, Device, Link, LinkCosts
from gnnplace.problem.cluster.presets import is_preset, preset, preset_names


class ClusterFile(Schema):
    """The keys of a cluster file."""

    devices: list[Device]
    links: list[Link] = []
    connect: LinkCosts | None = None
    name: str = "cluster"


def read_cluster(path: str | Path) -> Cluster:
    """Reads a YAML cluster file.

    Raises:
        FormatError: naming the file, the key path and the fault.
    """
    data = read_yaml(path, _FloatLoader)
    file = parse(ClusterFile, data, str(path))
    try:
        return Cluster(tuple(file.devices), (*file.links, *_connections(file)), file.name)
    except InputError as error:
        raise of_faults(FormatError, error.faults or (str(error),), str(path)) from None


def _connections(file: ClusterFile) -> list[Link]:
    if file.connect is None:
        return []
    listed = {(link.source, link.target) for link in file.links}
    keys = file.connect.model_dump()
    return [
        Link(source=a.name, target=b.name, **keys)
        for a in file.devices
        for b in file.devices
        if a.name != b.name and (a.name, b.name) not in listed
    ]


class _FloatLoader(yaml.SafeLoader):
    """YAML 1.1 reads ``1e9`` as text; people mean a number."""


_FloatLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def write_cluster(path: str | Path, cluster: Cluster) -> None:
    """Writes a cluster as a YAML file that ``read_cluster`` reads."""
    data = {
        "name": cluster.name,
        "devices": [device.model_dump(exclude_defaults=True) for device in cluster.devices],
        "links": [link.model_dump(exclude_defaults=True) for link in cluster.links],
    }
    write_text(path, yaml.safe_dump(data, sort_keys=False))


def load_cluster(name_or_path: str) -> Cluster:
    """A cluster by its YAML file or a preset's name.

    Raises:
        InputError: neither a file nor a preset; the presets are listed.
    """
    if is_preset(name_or_path):
        return preset(name_or_path)
    if Path(name_or_path).suffix in {".yaml", ".yml", ".json"} or Path(name_or_path).is_file():
        return read_cluster(name_or_path)
    raise InputError(
        f"cluster {name_or_path!r}: neither a file nor a preset; presets: "
        f"{', '.join(preset_names())}; or cpu:N, cuda:N, auto"
    )
