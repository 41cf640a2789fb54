"""Clusters of servers: ``64xH100``, ``16xH100+16xA100``, or a YAML file with ``servers``.

::

    name: mine
    servers: 16
    each: {gpus: 8, kind: h100, memory: 80GB, link: nvlink4}   # memory and link may be left out
    network: {bandwidth: 400Gb/s, per: gpu, latency: 5us}      # or per: server, of all its GPUs
    kinds: {mine: {flops: {bf16: 165T}, bandwidth: 1008GB/s, memory: 24GB}}   # of one's own

Servers of several kinds are a list, each entry with its ``count``, and no ``each``::

    servers:
      - {count: 2, gpus: 8, kind: h100}
      - {count: 2, gpus: 8, kind: a100-80}
    network: {bandwidth: 400Gb/s}

Servers that are a preset's cluster each have its name instead of `each`, as ``64xnvlink-v100-4``
has (whose network is assumed, `ClusterCopies`)::

    servers: 64
    preset: nvlink-v100-4
    network: {bandwidth: 100Gb/s, per: server}

``NxKIND`` has the servers that such cards are sold in (``servers.json``): with NVSwitch and a
network card for each GPU, on PCIe with a card for each server. What a kind's servers attain where
nothing was measured is an assumed share of what the datasheet says. Between servers of two kinds
the slower one's network counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from gnnplace.errors import InputError, suggestion
from gnnplace.files import Bytes, Rate, Schema, Seconds
from gnnplace.problem.cluster.cluster import (
    FABRICS,
    GIGA,
    MOST_DEVICES,
    OWN_BETWEEN,
    OWN_INSIDE,
    Cluster,
    Device,
    Link,
    list_links,
)
from gnnplace.problem.cluster.gpus import TERA, Gpu, add_kind, find_kind, get_figures

COUNTED = re.compile(r"(\d{1,5})x([a-z][a-z0-9 _-]*)", re.IGNORECASE)
"""GPUs of one kind."""
POOL = re.compile(rf"{COUNTED.pattern}(\+{COUNTED.pattern})*", re.IGNORECASE)
"""GPUs of one kind or of several."""
ATTAINED = 0.9
"""Share of a network's raw rate that a message attains; assumed, as of the fabrics of presets."""
CONTEXT = 1e9
"""Bytes of a GPU that the CUDA context takes, which presets leave out of its memory."""
LATENCY = 10e-6
FLOPS_A_WATT = 0.5e12
"""Of a card in half precision, where a file says no watts: RTX 4090 has 0.37, A100 0.78."""
ASSUMED_WATTS = "watts assumed"
TYPES = {"fp32": "float32", "tf32": "tf32", "fp16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True)
class Wire:
    """A connection between devices.

    Attributes:
        bandwidth: Bytes a second of a message.
        latency: Seconds of a message beside its bytes.
        fabric: Name of the measured fabric that it is; None: of none.
        shared: Whether all devices of a server share it.
    """

    bandwidth: float
    latency: float
    fabric: str | None = None
    shared: bool = False


@dataclass(frozen=True)
class Servers:
    """Servers that are alike, each GPU with one port a direction inside and one to the network.

    Attributes:
        kind: The device kind of every GPU.
        memory: Bytes of each GPU.
        num_servers: The number of servers.
        per_server: GPUs of a server.
        inside: What joins the GPUs of a server.
        network: What joins servers.
    """

    kind: str
    memory: float
    num_servers: int
    per_server: int
    inside: Wire
    network: Wire

    @property
    def num_devices(self) -> int:
        """Number of GPUs of all servers."""
        return self.num_servers * self.per_server

    def cluster(self, name: str) -> Cluster:
        """Return the GPUs with all pairs linked."""
        return ServerPool((self,)).cluster(name)


@dataclass(frozen=True)
class ServerPool:
    """Servers of one or several kinds, all joined by networks.

    Attributes:
        parts: The servers of each kind, whose GPUs are numbered one part after the other.
    """

    parts: tuple[Servers, ...]

    @property
    def num_devices(self) -> int:
        """Number of GPUs of all servers."""
        return sum(part.num_devices for part in self.parts)

    def link(self, source: int, target: int) -> Link:
        """Return the link from one GPU to another, by their numbers."""
        sender, first_server = self._server(source)
        receiver, second_server = self._server(target)
        names = f"gpu:{source}", f"gpu:{target}"
        if first_server == second_server:
            return _link(sender.inside, names, names)
        networks = sender.network, receiver.network
        ports = (
            f"server:{first_server}" if networks[0].shared else names[0],
            f"server:{second_server}" if networks[1].shared else names[1],
        )
        slower = min(networks, key=lambda wire: wire.bandwidth)
        return _link(slower, names, ports, "network ")

    def cluster(self, name: str) -> Cluster:
        """Return the GPUs with all pairs linked."""
        kinds = [part for part in self.parts for _ in range(part.num_devices)]
        devices = tuple(
            Device(name=f"gpu:{index}", kind=part.kind, memory=part.memory)
            for index, part in enumerate(kinds)
        )
        return Cluster(devices, list_links(self), name)

    def _server(self, device: int) -> tuple[Servers, int]:
        """Return the servers that a GPU is of, and the number of its own."""
        server = 0
        for part in self.parts:
            if device < part.num_devices:
                return part, server + device // part.per_server
            device -= part.num_devices
            server += part.num_servers
        raise IndexError(device)


def _link(
    wire: Wire, names: tuple[str, str], ports: tuple[str, str], word: str = ""
) -> Link:
    """Return the link from one GPU to another.

    Args:
        wire: What joins them.
        names: The names of both.
        ports: The names of the ports that messages pass.
        word: What ports are of, "network " between servers.
    """
    return Link(
        source=names[0],
        target=names[1],
        latency=wire.latency,
        bandwidth=wire.bandwidth,
        channel=(f"{ports[0]} {word}out", f"{ports[1]} {word}in"),
        fabric=wire.fabric,
    )


@cache
def _usual_servers() -> Mapping[str, Mapping[str, Any]]:
    """Read ``servers.json``: what servers of a kind of GPU have, in GB/s and microseconds."""
    path = Path(__file__).with_name("servers.json")
    data = json.loads(path.read_text(encoding="utf-8"))
    rows: dict[str, Mapping[str, Any]] = data["servers"]
    return rows


def parse_servers(name: str) -> ServerPool | None:
    """Return the servers that ``64xH100`` or ``16xH100+16xA100`` counts; None for another name.

    Raises:
        InputError: No servers of that kind are known, or the GPUs do not fill servers.
    """
    if POOL.fullmatch(name) is None:
        return None
    parts = [
        _make_counted_part(name, int(n), kind) for n, kind in COUNTED.findall(name)
    ]
    pool = ServerPool(tuple(parts))
    if pool.num_devices > MOST_DEVICES:
        raise InputError(f"cluster {name!r}: more than {MOST_DEVICES} GPUs in all")
    return pool


def _make_counted_part(name: str, count: int, word: str) -> Servers:
    """Return the usual servers of a number of GPUs of one kind.

    Args:
        name: The whole name of the cluster, for messages.
        count: The number of GPUs.
        word: The kind, as it was written.

    Raises:
        InputError: As `parse_servers` does.
    """
    kind = find_kind(word.replace(" ", "-"))
    rows = _usual_servers()
    if kind is None or kind not in rows:
        near = suggestion(word.lower(), rows)
        raise InputError(
            f"cluster {name!r}: no usual servers of {word!r} are known{near or ';'} use one of "
            f"{', '.join(rows)}, a preset's name for copies of it, or a YAML file with servers, "
            "each and network"
        )
    row = rows[kind]
    per_server = min(count, row["each"])
    if count < 1 or count % per_server or count > MOST_DEVICES:
        raise InputError(
            f"cluster {name!r}: give up to {row['each']} GPUs, or a multiple of {row['each']} up "
            f"to {MOST_DEVICES}; other numbers by a YAML file with servers, each and network"
        )
    return Servers(
        kind=kind,
        memory=get_figures(kind).memory - CONTEXT,
        num_servers=count // per_server,
        per_server=per_server,
        inside=_wire(row["inside"], OWN_INSIDE),
        network=_wire(row["network"], OWN_BETWEEN),
    )


def _wire(row: Mapping[str, Any] | str, own_fabric: str) -> Wire:
    """Return a wire of a measured fabric, by its name, or of figures.

    Args:
        row: The name of a fabric; or GB/s, microseconds, and whether a server shares it.
        own_fabric: The name of fabrics whose figures stand on the links.
    """
    if isinstance(row, str):
        fabric = FABRICS[row]
        return Wire(fabric.bandwidth, fabric.latency, row)
    return Wire(
        bandwidth=row["gb_s"] * GIGA,
        latency=row["latency_us"] / 1e6,
        fabric=own_fabric,
        shared=row.get("per") == "server",
    )


class WireEntry(Schema):
    """The connection among the GPUs of a server, in a file."""

    bandwidth: Rate
    latency: Seconds = LATENCY


class NetworkEntry(WireEntry):
    """The network of servers, in a file. `bandwidth` is the raw rate of a card."""

    per: Literal["gpu", "server"] = "gpu"


class ServerEntry(Schema):
    """A server in a file."""

    gpus: int = Field(ge=1, le=MOST_DEVICES)
    kind: str
    memory: Bytes | None = None
    link: str | WireEntry | None = None


class KindEntry(Schema):
    """A kind of GPU of one's own in a file: peaks of dense products, such as ``bf16: 165T``."""

    flops: dict[Literal["fp32", "tf32", "fp16", "bf16"], str | float]
    bandwidth: Rate
    memory: Bytes
    watts: float = Field(default=0.0, ge=0)


class CountedServerEntry(ServerEntry):
    """Servers of one kind among others in a file."""

    count: int = Field(default=1, ge=1, le=MOST_DEVICES)


class ServersFile(Schema):
    """The keys of a file of servers: a number of them that are alike, or a list of kinds.

    With `preset` the servers are copies of a preset's cluster.
    """

    servers: int | list[CountedServerEntry]
    each: ServerEntry | None = None
    preset: str | None = None
    network: NetworkEntry | None = None
    kinds: dict[str, KindEntry] = {}
    name: str = "cluster"

    def entries(self) -> dict[str, CountedServerEntry]:
        """Return the servers of each kind, by the paths of their keys.

        Raises:
            InputError: A number without `each`, or a list with it or empty.
        """
        if not isinstance(self.servers, int):
            if self.each is not None:
                raise InputError(
                    "each: is for a number of servers; here servers are a list"
                )
            if not self.servers:
                raise InputError("servers: give at least one")
            return {f"servers[{i}]": entry for i, entry in enumerate(self.servers)}
        if self.each is None:
            raise InputError("each: required key is missing")
        if not 1 <= self.servers <= MOST_DEVICES:
            raise InputError(f"servers: must be 1 to {MOST_DEVICES}")
        return {"each": CountedServerEntry(count=self.servers, **dict(self.each))}


def build_file_cluster(file: ServersFile) -> Cluster:
    """Return the cluster of a file of servers.

    Raises:
        InputError: A kind, a link or a number that is not known, or servers without a network.
    """
    for name, entry in file.kinds.items():
        add_kind(name, _read_own_kind(name, entry))
    entries = file.entries()
    if sum(entry.count * entry.gpus for entry in entries.values()) > MOST_DEVICES:
        raise InputError(f"servers: more than {MOST_DEVICES} GPUs in all")
    if sum(entry.count for entry in entries.values()) > 1 and file.network is None:
        raise InputError(
            "network: is missing; servers are joined by one, as {bandwidth: 400Gb/s}"
        )
    network = Wire(GIGA, LATENCY, OWN_BETWEEN)
    if file.network is not None:
        network = Wire(
            bandwidth=file.network.bandwidth * ATTAINED,
            latency=file.network.latency,
            fabric=OWN_BETWEEN,
            shared=file.network.per == "server",
        )
    parts = [_read_part(entry, network, path) for path, entry in entries.items()]
    return ServerPool(tuple(parts)).cluster(file.name)


def _read_part(entry: CountedServerEntry, network: Wire, path: str) -> Servers:
    """Return the servers of an entry of a file.

    Args:
        entry: The entry.
        network: What joins all servers.
        path: The path of its key.

    Raises:
        InputError: As `build_file_cluster` does.
    """
    kind = find_kind(entry.kind)
    if kind is None:
        get_figures(entry.kind)  # lists the known ones
    assert kind is not None
    memory = entry.memory
    return Servers(
        kind=kind,
        memory=get_figures(kind).memory - CONTEXT if memory is None else memory,
        num_servers=entry.count,
        per_server=entry.gpus,
        inside=_inside(entry, kind, path),
        network=network,
    )


def _inside(server: ServerEntry, kind: str, path: str) -> Wire:
    """Return what joins the GPUs of a server: the file's link, or that of usual servers."""
    if isinstance(server.link, WireEntry):
        return Wire(server.link.bandwidth, server.link.latency, OWN_INSIDE)
    if server.link is None:
        usual = _usual_servers().get(kind)
        if usual is None:
            raise InputError(
                f"{path}.link: is missing; no usual servers of {kind!r} are known"
            )
        return _wire(usual["inside"], OWN_INSIDE)
    table = Path(__file__).with_name("servers.json")
    links = json.loads(table.read_text(encoding="utf-8"))["links"]
    row = links.get(server.link.lower())
    if row is None:
        raise InputError(
            f"{path}.link {server.link!r}: unknown{suggestion(server.link, links) or ';'} "
            f"use one of {', '.join(links)}, or {{bandwidth: 300GB/s, latency: 5us}}"
        )
    return _wire(row.get(kind, row["any"]) if "any" in row else row, OWN_INSIDE)


def _read_own_kind(name: str, entry: KindEntry) -> Gpu:
    """Return the figures of a kind of one's own; a type that it leaves out runs as the next wider.

    Raises:
        InputError: A peak cannot be read, or none is given.
    """
    peaks: dict[str, float] = {}
    for word, text in entry.flops.items():
        peaks[TYPES[word]] = _read_flops(text, f"kinds.{name}.flops.{word}")
    if not peaks:
        raise InputError(
            f"kinds.{name}.flops: is empty; give peaks such as {{bf16: 165T}}"
        )
    half = max(peaks.get("bfloat16", 0.0), peaks.get("float16", 0.0))
    single = peaks.get("float32", (half or peaks.get("tf32", 0.0)) / 16)
    tf32 = peaks.get("tf32", max(single, half / 2))
    rates = {
        "float32": single,
        "tf32": tf32,
        "float16": peaks.get("float16", half or tf32),
        "bfloat16": peaks.get("bfloat16", single),
    }
    return Gpu(
        product=name,
        memory=entry.memory,
        bandwidth=entry.bandwidth,
        rates=rates,
        source="the cluster's file"
        if entry.watts
        else f"the cluster's file; {ASSUMED_WATTS}",
        power=entry.watts or rates["float16"] / FLOPS_A_WATT,
        year=2020,
    )


def _read_flops(text: str | float, path: str) -> float:
    """Return operations a second of a text such as ``165T``; a bare number is taken as it is.

    Raises:
        InputError: It cannot be read, or is no peak of a GPU.
    """
    units = {"": 1.0, "G": 1e9, "T": TERA, "P": 1e15}
    match = re.fullmatch(
        r"([0-9.]+(?:e[0-9]+)?)\s*([GTP]?)(?:FLOPS?)?(?:/s)?", str(text), re.I
    )
    try:
        if match is None:
            value = 0.0
        else:
            value = float(match[1]) * units[match[2].upper()]
    except ValueError:
        value = 0.0
    if not 1e10 <= value <= 1e18:
        raise InputError(
            f"{path}: {text!r}: must be FLOPs a second of one GPU, such as 165T; a bare number is "
            "counted singly"
        )
    return value
