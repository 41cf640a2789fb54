"""Presets of machines whose links were measured: figures and sources are those of ``fabrics``.

A name is what joins the GPUs, their kind and their number (``2x8``: two servers of eight). Each GPU
has one port a direction, which all its peers share (``port``), on a switch, on PCIe and on its
network card; on dedicated NVLinks every pair has channels of its own (``pair``).

Memory is 1 GB below the nominal size, which leaves room for the CUDA context.

``nvlink-v100-8`` is the hybrid cube mesh of a DGX-1 (Li et al., 2019, arXiv 1903.04611): pairs with
one NVLink or two, the others over the host's PCIe 3.0 (12 GB/s: published, not measured here). In
``nvlink-pairs-…-4`` messages between pairs go over PCIe at the bus bandwidth of an all-reduce of
all four (microsoft/vidur, all_reduce.csv of the same machines).

Presets of several servers may be named with another number of them: ``dgx-h100-16x8``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import permutations

from gnnplace.errors import InputError
from gnnplace.problem.cluster.cluster import Cluster
from gnnplace.problem.cluster.fabrics import FABRICS, GIGA
from gnnplace.problem.cluster.schema import Channel, Device, Link

MEMORY: Mapping[str, float] = {
    "a100": 39 * GIGA,
    "a100-80": 79 * GIGA,
    "a40": 47 * GIGA,
    "b200": 179 * GIGA,
    "gh200": 95 * GIGA,
    "h100": 79 * GIGA,
    "h200": 140 * GIGA,
    "l40s": 47 * GIGA,
    "rtx-3090": 23 * GIGA,
    "rtx-pro-6000": 95 * GIGA,
    "v100": 15.5 * GIGA,
}
PORT, PAIR = "port", "pair"
# NVLinks of the pairs of a DGX-1 V100, as `nvidia-smi topo -m` prints them.
ONE_LINK = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))
TWO_LINKS = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
PCIE_3 = 12 * GIGA
ACROSS_PAIRS = {"nvlink-pairs-a100": 23.63 * GIGA, "nvlink-pairs-h100": 48.44 * GIGA}


@dataclass(frozen=True)
class Machine:
    """Servers that are alike.

    Attributes:
        kind: of every GPU.
        each: GPUs of a server.
        inside: the fabric of a server; none where each has one GPU.
        sharing: ``PORT`` or ``PAIR``, inside.
        servers: how many.
        between: the fabric between servers.
    """

    kind: str
    each: int
    inside: str | None = None
    sharing: str = PORT
    servers: int = 1
    between: str | None = None

    def cluster(self, name: str = "cluster") -> Cluster:
        """All pairs linked."""
        count = self.servers * self.each
        devices = tuple(
            Device(name=f"gpu:{i}", kind=self.kind, memory=MEMORY[self.kind]) for i in range(count)
        )
        links = tuple(self._link(i, k) for i, k in permutations(range(count), 2))
        return Cluster(devices, links, name)

    def _link(self, source: int, target: int) -> Link:
        if source // self.each != target // self.each:
            ports = (f"gpu:{source} network out", f"gpu:{target} network in")
            return _link(source, target, self.between, ports)
        ports = (f"gpu:{source} out", f"gpu:{target} in")
        return _link(source, target, self.inside, ports if self.sharing == PORT else None)


def _link(
    source: int, target: int, fabric: str | None, channel: Channel, bandwidth: float | None = None
) -> Link:
    assert fabric is not None
    figures = FABRICS[fabric]
    # Not validated: of 512 devices there are 262,000, and what stands here is known to be right.
    own = {"source": f"gpu:{source}", "target": f"gpu:{target}", "channel": channel}
    return _any_link(fabric, bandwidth or figures.bandwidth).model_copy(update=own)


@cache
def _any_link(fabric: str, bandwidth: float) -> Link:
    """What links of a fabric have in common."""
    latency = FABRICS[fabric].latency
    return Link(source="a", target="b", latency=latency, bandwidth=bandwidth, fabric=fabric)


def _cube_mesh() -> Cluster:
    """Eight V100 of a DGX-1."""
    name = "nvlink-v100-8"
    devices = Machine("v100", 8, name).cluster().devices
    links = []
    for i, k in permutations(range(8), 2):
        pair = (min(i, k), max(i, k))
        count = 2 if pair in TWO_LINKS else 1 if pair in ONE_LINK else 0
        bandwidth = count * FABRICS[name].bandwidth or PCIE_3
        links.append(_link(i, k, name, None if count else "pcie", bandwidth))
    return Cluster(devices, tuple(links))


def _pairs(kind: str, fabric: str) -> Cluster:
    """Two pairs with NVLink bridges, joined by PCIe."""
    devices = Machine(kind, 4, fabric).cluster().devices
    links = []
    for i, k in permutations(range(4), 2):
        ports = (f"gpu:{i} pcie out", f"gpu:{k} pcie in")
        together = i // 2 == k // 2
        bandwidth = None if together else ACROSS_PAIRS[fabric]
        links.append(_link(i, k, fabric, None if together else ports, bandwidth))
    return Cluster(devices, tuple(links))


MACHINES: Mapping[str, Machine] = {
    "nvswitch-a100-80-8": Machine("a100-80", 8, "nvswitch-a100"),
    "nvswitch-h200-8": Machine("h200", 8, "nvswitch-h200"),
    "nvswitch-b200-8": Machine("b200", 8, "nvswitch-b200"),
    "nvlink-a100-80-4": Machine("a100-80", 4, "nvlink-a100-4", PAIR),
    "nvlink-gh200-4": Machine("gh200", 4, "nvlink-gh200-4", PAIR),
    "nvlink-rtx-3090-2": Machine("rtx-3090", 2, "nvlink-rtx-3090-2", PAIR),
    "pcie-rtx-3090-4": Machine("rtx-3090", 4, "pcie-rtx-3090"),
    "pcie-rtx-pro-6000-2": Machine("rtx-pro-6000", 2, "pcie-rtx-pro-6000"),
    "pcie-rtx-pro-6000-4": Machine("rtx-pro-6000", 4, "pcie-rtx-pro-6000"),
    "pcie-rtx-pro-6000-8": Machine("rtx-pro-6000", 8, "pcie-rtx-pro-6000"),
    "pcie-l40s-2": Machine("l40s", 2, "pcie-l40s"),
    "pcie-a40-8": Machine("a40", 8, "pcie-a40"),
    "dgx-a100-80-2x8": Machine("a100-80", 8, "nvswitch-a100", PORT, 2, "network-dgx-a100"),
    "superpod-a100-80-2x8": Machine("a100-80", 8, "nvswitch-a100", PORT, 2, "infiniband-dgx-a100"),
    "dgx-h100-2x8": Machine("h100", 8, "nvswitch-h100", PORT, 2, "infiniband-dgx-h100"),
    "dgx-h100-4x8": Machine("h100", 8, "nvswitch-h100", PORT, 4, "infiniband-dgx-h100"),
    "infiniband-gh200-8x1": Machine("gh200", 1, None, PORT, 8, "infiniband-gh200"),
    "slingshot-gh200-2x4": Machine("gh200", 4, "nvlink-gh200-4", PAIR, 2, "slingshot-gh200"),
    "slingshot-gh200-4x4": Machine("gh200", 4, "nvlink-gh200-4", PAIR, 4, "slingshot-gh200"),
    "slingshot-a100-80-2x4": Machine("a100-80", 4, "nvlink-a100-4", PAIR, 2, "slingshot-a100"),
    "ethernet-a100-2x4": Machine("a100", 4, "nvswitch-a100", PORT, 2, "ethernet-a100"),
    "ethernet-v100-2x4": Machine("v100", 4, "nvlink-v100-4", PAIR, 2, "ethernet-v100"),
}
MOST_DEVICES = 1024  # every pair is a link
NUMBERED = re.compile(r"(.+)-(\d{1,4})x(\d{1,4})")


@lru_cache(maxsize=2)
def with_servers(name: str) -> Cluster | None:
    """A preset with another number of servers, such as ``dgx-h100-16x8``; None if it is none.

    Raises:
        InputError: more than ``MOST_DEVICES`` devices, or fewer than two servers.
    """
    found = NUMBERED.fullmatch(name)
    if found is None:
        return None
    base, servers, each = found[1], int(found[2]), int(found[3])
    alike = (m for n, m in MACHINES.items() if m.servers > 1 and n.startswith(f"{base}-"))
    machine = next((m for m in alike if m.each == each), None)
    if machine is None:
        return None
    if not (servers >= 2 and servers * each <= MOST_DEVICES):
        told = f"two servers at least and {MOST_DEVICES} devices at most can be listed"
        raise InputError(f"cluster preset {name!r}: {told}")
    return replace(machine, servers=servers).cluster(name)


MEASURED_PRESETS: Mapping[str, Callable[[], Cluster]] = {
    **{name: machine.cluster for name, machine in MACHINES.items()},
    "nvlink-v100-8": _cube_mesh,
    "nvlink-pairs-a100-80-4": lambda: _pairs("a100-80", "nvlink-pairs-a100"),
    "nvlink-pairs-h100-4": lambda: _pairs("h100", "nvlink-pairs-h100"),
}
