"""Presets of usual machines. Each figure names its source; all are published or usual values.

Those whose links were measured come last. Kinds and memory of the older ones (usable, a little
below the nominal size because the runtime takes its share):

* ``a100``: 40 GB, NVLink 3 at 600 GB/s in all, 300 GB/s a direction (NVIDIA A100 datasheet, 2020).
* ``h100``: 80 GB, NVLink 4 at 900 GB/s in all, 450 GB/s a direction (NVIDIA H100 datasheet, 2022).
* ``v100``: 16 GB, NVLink 2 at 300 GB/s in all, 150 GB/s a direction (NVIDIA V100 datasheet, 2017).
* ``t4``: 16 GB, PCIe 3.0 x16 (NVIDIA T4 datasheet, 2018).

Links:

* PCIe 3.0 x16: 15.75 GB/s raw, about 12 GB/s as copied between GPUs (Li et al., 2019,
  "Evaluating Modern GPU Interconnect", arXiv 1903.04611). One host bridge: one shared channel.
* PCIe 4.0 x16: twice that, 24 GB/s as copied.
* NVSwitch (``nvswitch-…``): every GPU of a server reaches every other, but through its own port:
  one channel out and one in, which all its peers share. 228 GB/s on a DGX A100 and 348 GB/s on a
  DGX H100, as NCCL send and receive of 64 MB attain inside a server (measured by the authors of
  Vidur, arXiv 2405.05465: microsoft/vidur, data/profiling/network/{a100,h100}_dgx/send_recv.csv,
  commit 7d47513). The older ``nvlink-…`` presets give every pair
  a channel of its own at the datasheet's speed, so that eight GPUs send more than their ports hold;
  they stay as they were for the suites that use them.
* Network between servers: 100 Gbit/s, 12.5 GB/s raw, 10 GB/s as used; 10 us a message, the usual
  latency of RDMA through NCCL (assumed).
* Latency of a copy between GPUs of one server: 5 us NVLink, 10 us PCIe (assumed, of the order that
  arXiv 1903.04611 measures).

Presets of machines whose links were measured have the figures and sources of ``FABRICS``. A name is
what joins the GPUs, their kind and their number (``2x8``: two servers of eight). Each GPU has one
port a direction, which all its peers share (``port``), on a switch, on PCIe and on its network
card; on dedicated NVLinks every pair has channels of its own (``pair``). Memory is 1 GB below the
nominal size, which leaves room for the CUDA context.

``nvlink-v100-8`` is the hybrid cube mesh of a DGX-1 (Li et al., 2019, arXiv 1903.04611): pairs with
one NVLink or two, the others over the host's PCIe 3.0 (12 GB/s: published, not measured here). In
``nvlink-pairs-…-4`` messages between pairs go over PCIe at the bus bandwidth of an all-reduce of
all four (microsoft/vidur, all_reduce.csv of the same machines).

Presets of several servers may be named with another number of them: ``dgx-h100-16x8``; a number of
GPUs of a kind is a cluster of the servers that these are sold in: ``64xH100``
(`problem.cluster.servers`). ``64xnvlink-v100-4`` is 64 copies of a preset, each with one network
channel out and one in (`problem.cluster.cluster.ClusterCopies`).

Cluster files: YAML with ``devices`` and ``links`` as in a problem file, or a preset's name.

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

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import permutations
from pathlib import Path
from typing import Any

import yaml

from gnnplace.errors import FormatError, InputError, join_faults
from gnnplace.files import Schema, parse, read_yaml, write_text
from gnnplace.problem.cluster.cluster import (
    FABRICS,
    GIGA,
    MOST_DEVICES,
    Channel,
    Cluster,
    ClusterCopies,
    Device,
    Link,
    LinkCosts,
    list_links,
)
from gnnplace.problem.cluster.servers import (
    ATTAINED,
    COUNTED,
    POOL,
    ServerEntry,
    ServersFile,
    WireEntry,
    build_file_cluster,
    parse_servers,
)

_ROWS: Mapping[str, Any] = json.loads(
    Path(__file__).with_name("machines.json").read_text(encoding="utf-8")
)
MEMORY: Mapping[str, float] = {
    kind: size * GIGA for kind, size in _ROWS["memory_gb"].items()
}
PORT = "port"
PAIR = "pair"
# NVLinks of the pairs of a DGX-1 V100, as `nvidia-smi topo -m` prints them.
ONE_LINK = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))
TWO_LINKS = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
PCIE_3 = 12 * GIGA
ACROSS_PAIRS = {"nvlink-pairs-a100": 23.63 * GIGA, "nvlink-pairs-h100": 48.44 * GIGA}
NUMBERED = re.compile(r"(.+)-(\d{1,4})x(\d{1,4})")


def _devices(kinds: Sequence[str]) -> tuple[Device, ...]:
    return tuple(
        Device(name=f"gpu:{i}", kind=kind, memory=MEMORY[kind])
        for i, kind in enumerate(kinds)
    )


@dataclass(frozen=True)
class ServerGroup:
    """Servers that are alike.

    Attributes:
        kind: the device kind of every GPU.
        each: GPUs of a server.
        inside: the fabric of a server; none where each has one GPU.
        sharing: ``PORT`` or ``PAIR``, inside.
        servers: the number of servers.
        between: the fabric between servers.
    """

    kind: str
    each: int
    inside: str | None = None
    sharing: str = PORT
    servers: int = 1
    between: str | None = None

    @property
    def num_devices(self) -> int:
        """Number of devices of all servers."""
        return self.servers * self.each

    def cluster(self, name: str = "cluster") -> Cluster:
        """Return the devices with all pairs linked."""
        count = self.num_devices
        devices = _devices([self.kind] * count)
        return Cluster(devices, list_links(self), name)

    def link(self, source: int, target: int) -> Link:
        """Return the link from one device to another, by their indices."""
        if source // self.each != target // self.each:
            ports = (f"gpu:{source} network out", f"gpu:{target} network in")
            return _link(source, target, self.between, ports)
        ports = (f"gpu:{source} out", f"gpu:{target} in")
        return _link(
            source, target, self.inside, ports if self.sharing == PORT else None
        )


def _link(
    source: int,
    target: int,
    fabric: str | None,
    channel: Channel,
    bandwidth: float | None = None,
) -> Link:
    assert fabric is not None
    figures = FABRICS[fabric]
    # Not validated: of 512 devices there are 262,000, and what stands here is known to be right.
    update = {"source": f"gpu:{source}", "target": f"gpu:{target}", "channel": channel}
    return _any_link(fabric, bandwidth or figures.bandwidth).model_copy(update=update)


@cache
def _any_link(fabric: str, bandwidth: float) -> Link:
    """Make a link of a fabric that others are copied from."""
    latency = FABRICS[fabric].latency
    return Link(
        source="a", target="b", latency=latency, bandwidth=bandwidth, fabric=fabric
    )


def _cube_mesh() -> Cluster:
    """Return the eight V100 of a DGX-1."""
    name = "nvlink-v100-8"
    links = []
    for i, k in permutations(range(8), 2):
        pair = (min(i, k), max(i, k))
        if pair in TWO_LINKS:
            count = 2
        elif pair in ONE_LINK:
            count = 1
        else:
            count = 0
        bandwidth = count * FABRICS[name].bandwidth or PCIE_3
        links.append(_link(i, k, name, None if count else "pcie", bandwidth))
    return Cluster(_devices(["v100"] * 8), tuple(links))


def _pairs(kind: str, fabric: str) -> Cluster:
    """Return two pairs of GPUs with NVLink bridges, joined by PCIe."""
    links = []
    for i, k in permutations(range(4), 2):
        ports = (f"gpu:{i} pcie out", f"gpu:{k} pcie in")
        together = i // 2 == k // 2
        if together:
            bandwidth = None
        else:
            bandwidth = ACROSS_PAIRS[fabric]
        links.append(_link(i, k, fabric, None if together else ports, bandwidth))
    return Cluster(_devices([kind] * 4), tuple(links))


MACHINES: Mapping[str, ServerGroup] = {
    n: ServerGroup(**row) for n, row in _ROWS["measured"].items()
}


@lru_cache(maxsize=2)
def with_servers(name: str) -> Cluster | None:
    """Make a preset with another number of servers, such as ``dgx-h100-16x8``, or None.

    Raises:
        InputError: more than ``MOST_DEVICES`` devices, or fewer than two servers.
    """
    match = NUMBERED.fullmatch(name)
    if match is None:
        return None
    base = match[1]
    servers = int(match[2])
    per_server = int(match[3])
    alike = (
        m for n, m in MACHINES.items() if m.servers > 1 and n.startswith(f"{base}-")
    )
    machine = next((m for m in alike if m.each == per_server), None)
    if machine is None:
        return None
    if not (servers >= 2 and servers * per_server <= MOST_DEVICES):
        limits = f"must have two servers at least and {MOST_DEVICES} devices at most"
        raise InputError(f"cluster preset {name!r}: {limits}")
    return replace(machine, servers=servers).cluster(name)


MEASURED_PRESETS: Mapping[str, Callable[[], Cluster]] = {
    **{name: machine.cluster for name, machine in MACHINES.items()},
    "nvlink-v100-8": _cube_mesh,
    "nvlink-pairs-a100-80-4": lambda: _pairs("a100-80", "nvlink-pairs-a100"),
    "nvlink-pairs-h100-4": lambda: _pairs("h100", "nvlink-pairs-h100"),
}


def _usual(kinds: Sequence[str], wire: str, gb_s: float, servers: int = 1) -> Cluster:
    """Return servers of GPUs joined by links of usual figures.

    Servers are joined by one network channel in each direction.

    Args:
        kinds: the kind of every GPU.
        wire: what joins those of a server: ``pcie``, one channel for all; ``nvlink``, one a pair;
            ``nvswitch``, one out of each GPU and one in, whoever is at the other end.
        gb_s: GB/s of a link inside of a server, in each direction.
        servers: The number of servers, which have equally many GPUs.
    """
    per_server = len(kinds) // servers
    links = []
    for i, k in permutations(range(len(kinds)), 2):
        ports = (f"gpu:{i} out", f"gpu:{k} in")
        fields: dict[str, Any] = {"source": f"gpu:{i}", "target": f"gpu:{k}"}
        if i // per_server != k // per_server:
            fields |= {"latency": 10e-6, "bandwidth": 10 * GIGA}
            fields["channel"] = f"network-out:{i // per_server}"
        else:
            fields |= {
                "latency": 10e-6 if wire == "pcie" else 5e-6,
                "bandwidth": gb_s * GIGA,
            }
            fields["channel"] = {"pcie": "pcie", "nvswitch": ports}.get(wire)
            fields["fabric"] = f"nvswitch-{kinds[0]}" if wire == "nvswitch" else None
        links.append(Link(**fields))
    return Cluster(_devices(kinds), tuple(links))


PRESETS: Mapping[str, Callable[[], Cluster]] = {
    **{name: partial(_usual, **row) for name, row in _ROWS["usual"].items()},
    **MEASURED_PRESETS,
}


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets."""
    return tuple(PRESETS)


def is_preset(name: str) -> bool:
    """Return whether a preset has that name, with any number of servers.

    Raises:
        InputError: it would, and has too many of them.
    """
    return (
        name in PRESETS or with_servers(name) is not None or bool(POOL.fullmatch(name))
    )


@lru_cache(maxsize=64)
def make_preset(name: str) -> Cluster:
    """Make the preset cluster of a name; one of several servers may have any number of them.

    Raises:
        InputError: there is none; the names are listed.
    """
    if name not in PRESETS:
        scaled = with_servers(name)
        if scaled is not None:
            return scaled
        match = COUNTED.fullmatch(name)
        if match is not None and match[2].lower() in PRESETS:
            return ClusterCopies(make_preset(match[2].lower()), int(match[1])).joined(
                name
            )
        counted = parse_servers(name)
        if counted is not None:
            return counted.cluster(name)
        raise InputError(
            f"cluster preset {name!r}: unknown; presets: {', '.join(PRESETS)}"
        )
    cluster = PRESETS[name]()
    return Cluster(cluster.devices, cluster.links, name)


class ClusterFile(Schema):
    """The keys of a cluster file."""

    devices: list[Device]
    links: list[Link] = []
    connect: LinkCosts | None = None
    name: str = "cluster"


def read_cluster(path: str | Path) -> Cluster:
    """Read a YAML cluster file.

    Raises:
        FormatError: naming the file, the key path and the fault.
    """
    data = read_yaml(path, _FloatLoader)
    if isinstance(data, dict) and "servers" in data:
        return _read_servers(data, str(path))
    return cluster_from_data(data, str(path))


def cluster_from_data(data: object, source: str) -> Cluster:
    """Return the cluster of the contents of a file of devices and links.

    Raises:
        FormatError: Naming the source, the key path and the fault.
    """
    file = parse(ClusterFile, data, source)
    check_figures(*list_figures(file), source)
    try:
        links = list(file.links)
        if file.connect is not None:
            listed = {(x.source, x.target) for x in links}
            keys = file.connect.model_dump()
            names = permutations([device.name for device in file.devices], 2)
            pairs = [(a, b) for a, b in names if a != b and (a, b) not in listed]
            links += [Link(source=a, target=b, **keys) for a, b in pairs]
        return Cluster(tuple(file.devices), tuple(links), file.name)
    except InputError as error:
        raise join_faults(FormatError, error.faults or (str(error),), source) from None


def _read_servers(data: dict[str, Any], source: str) -> Cluster:
    """Return the cluster of a file of servers.

    Raises:
        FormatError: Naming the file, the key path and the fault.
    """
    file = parse(ServersFile, data, source)
    entries: Mapping[str, ServerEntry] = {}
    try:
        if file.preset is not None:
            cluster = _copy_preset(file, file.preset)
        else:
            cluster = build_file_cluster(file)
            entries = file.entries()
    except InputError as error:
        raise join_faults(FormatError, error.faults or (str(error),), source) from None
    wires: dict[str, WireEntry | str | None] = {"network": file.network}
    memory: dict[str, float] = {}
    for path, entry in entries.items():
        wires[f"{path}.link"] = entry.link
        if entry.memory is not None:
            memory[f"{path}.memory"] = entry.memory
    links = {
        path: LinkCosts(latency=wire.latency, bandwidth=wire.bandwidth)
        for path, wire in wires.items()
        if wire is not None and not isinstance(wire, str)
    }
    check_figures(memory, links, source)
    return cluster


def _copy_preset(file: ServersFile, name: str) -> Cluster:
    """Return the cluster of a file whose servers are copies of a preset.

    Args:
        file: The file.
        name: The preset's name.

    Raises:
        InputError: There is no such preset, or servers are no number or have no network.
    """
    count, network = file.servers, file.network
    if not isinstance(count, int) or network is None or file.each or file.kinds:
        raise InputError(
            "preset: needs a number of servers and a network, as {bandwidth: 400Gb/s}, and neither "
            "each nor kinds"
        )
    copies = ClusterCopies(
        make_preset(name),
        count,
        latency=network.latency,
        bandwidth=network.bandwidth * ATTAINED,
        shared=network.per == "server",
    )
    return copies.joined(file.name)


MIN_MEMORY = 1e8
MIN_BANDWIDTH = 1e6
MAX_LATENCY = 1e-2


def list_figures(file: ClusterFile) -> tuple[dict[str, float], dict[str, LinkCosts]]:
    """Return the bytes of a file's devices and what its links cost, by their key paths."""
    memory = {
        f"devices[{i}].memory": device.memory for i, device in enumerate(file.devices)
    }
    links: dict[str, LinkCosts] = {}
    links.update((f"links[{index}]", link) for index, link in enumerate(file.links))
    if file.connect is not None:
        links["connect"] = file.connect
    return memory, links


def check_figures(
    memory: Mapping[str, float], links: Mapping[str, LinkCosts], source: str
) -> None:
    """Refuse figures that no machine has, as where a unit was left out.

    Args:
        memory: Bytes of devices, by their key paths.
        links: What links cost, by their key paths.
        source: The source of the figures, such as the file.

    Raises:
        FormatError: With the key path, and the unit that the figure may lack.
    """
    faults = []
    for path, size in memory.items():
        if 0 < size < MIN_MEMORY:
            faults.append(
                f"{path}: {size:g} means {size:g} bytes; write {size:g}GB if that is what is meant"
            )
    for path, link in links.items():
        if link.bandwidth < MIN_BANDWIDTH:
            faults.append(
                f"{path}.bandwidth: {link.bandwidth:g} means {link.bandwidth:g} bytes a second; "
                f"write {link.bandwidth:g}GB/s or {link.bandwidth:g}Gb/s if that is what is meant"
            )
        if link.latency > MAX_LATENCY:
            faults.append(
                f"{path}.latency: {link.latency:g} means {link.latency:g} seconds; write "
                f"{link.latency:g}us if that is what is meant"
            )
    if faults:
        raise join_faults(FormatError, faults, source)


class _FloatLoader(yaml.CSafeLoader):
    """YAML 1.1 reads ``1e9`` as text; people mean a number."""


_FloatLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def cluster_to_data(cluster: Cluster) -> dict[str, Any]:
    """Return a cluster as the contents of a file, which ``cluster_from_data`` reads."""
    return {
        "name": cluster.name,
        "devices": [
            device.model_dump(exclude_defaults=True) for device in cluster.devices
        ],
        "links": [link.model_dump(exclude_defaults=True) for link in cluster.links],
    }


def write_cluster(path: str | Path, cluster: Cluster) -> None:
    """Write a cluster as a YAML file that ``read_cluster`` reads."""
    write_text(path, yaml.safe_dump(cluster_to_data(cluster), sort_keys=False))


def load_cluster(name_or_path: str) -> Cluster:
    """Load a cluster by its YAML file or a preset's name.

    Raises:
        InputError: neither a file nor a preset; the presets are listed.
    """
    if is_preset(name_or_path):
        return make_preset(name_or_path)
    if (
        Path(name_or_path).suffix in {".yaml", ".yml", ".json"}
        or Path(name_or_path).is_file()
    ):
        return read_cluster(name_or_path)
    raise InputError(
        f"cluster {name_or_path!r}: neither a file nor a preset; presets: "
        f"{', '.join(preset_names())}; or NxKIND as 64xH100, cpu:N, cuda:N, auto"
    )
