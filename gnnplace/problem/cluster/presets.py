"""Presets of usual machines. Each figure names its source; all are published or usual values.

Those of ``measured_presets`` have measured links; these here are older.

Kinds and memory (usable, a little below the nominal size because the runtime takes its share):

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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gnnplace.errors import InputError
from gnnplace.problem.cluster.cluster import Cluster
from gnnplace.problem.cluster.measured_presets import MEASURED_PRESETS, with_servers
from gnnplace.problem.cluster.schema import Device, Link

GIGA = 1e9
MEMORY = {"a100": 39 * GIGA, "h100": 79 * GIGA, "v100": 15.5 * GIGA, "t4": 14.5 * GIGA}


def _devices(*kinds: str) -> tuple[Device, ...]:
    return tuple(
        Device(name=f"gpu:{i}", kind=kind, memory=MEMORY[kind]) for i, kind in enumerate(kinds)
    )


def _links(
    devices: tuple[Device, ...],
    link: Callable[[int, int], tuple[float, float, str | tuple[str, ...] | None]],
) -> tuple[Link, ...]:
    result = []
    for i, a in enumerate(devices):
        for j, b in enumerate(devices):
            if i != j:
                latency, bandwidth, channel = link(i, j)
                result.append(
                    Link(
                        source=a.name,
                        target=b.name,
                        latency=latency,
                        bandwidth=bandwidth,
                        channel=channel,
                    )
                )
    return tuple(result)


def _pcie(kinds: tuple[str, ...], bandwidth: float) -> Cluster:
    devices = _devices(*kinds)
    return Cluster(devices, _links(devices, lambda i, j: (10e-6, bandwidth, "pcie")))


def _nvlink(kinds: tuple[str, ...], bandwidth: float) -> Cluster:
    devices = _devices(*kinds)
    return Cluster(devices, _links(devices, lambda i, j: (5e-6, bandwidth, None)))


def _nvswitch(kinds: tuple[str, ...], bandwidth: float) -> Cluster:
    """Each GPU has one channel out and one in, whoever is at the other end."""
    devices = _devices(*kinds)

    def link(i: int, other: int) -> tuple[float, float, tuple[str, ...]]:
        return 5e-6, bandwidth, (f"gpu:{i} out", f"gpu:{other} in")

    fabric = f"nvswitch-{kinds[0]}"
    links = _links(devices, link)
    return Cluster(devices, tuple(k.model_copy(update={"fabric": fabric}) for k in links))


def _two_tier(servers: int, each: int, kind: str, bandwidth: float) -> Cluster:
    """Servers with NVLink inside; each server has one network channel a direction."""
    devices = _devices(*[kind] * (servers * each))

    def link(i: int, other: int) -> tuple[float, float, str | None]:
        if i // each == other // each:
            return 5e-6, bandwidth, None
        return 10e-6, 10 * GIGA, f"network-out:{i // each}"

    return Cluster(devices, _links(devices, link))


PRESETS: Mapping[str, Callable[[], Cluster]] = {
    "pcie-t4-2": lambda: _pcie(("t4",) * 2, 12 * GIGA),
    "pcie-t4-4": lambda: _pcie(("t4",) * 4, 12 * GIGA),
    "pcie-v100-4": lambda: _pcie(("v100",) * 4, 12 * GIGA),
    "pcie-a100-2": lambda: _pcie(("a100",) * 2, 24 * GIGA),
    "pcie-a100-4": lambda: _pcie(("a100",) * 4, 24 * GIGA),
    "pcie-a100-8": lambda: _pcie(("a100",) * 8, 24 * GIGA),
    "nvlink-v100-4": lambda: _nvlink(("v100",) * 4, 150 * GIGA),
    "nvlink-a100-2": lambda: _nvlink(("a100",) * 2, 300 * GIGA),
    "nvlink-a100-4": lambda: _nvlink(("a100",) * 4, 300 * GIGA),
    "nvlink-a100-8": lambda: _nvlink(("a100",) * 8, 300 * GIGA),
    "nvlink-h100-8": lambda: _nvlink(("h100",) * 8, 450 * GIGA),
    "nvswitch-a100-8": lambda: _nvswitch(("a100",) * 8, 228 * GIGA),
    "nvswitch-h100-8": lambda: _nvswitch(("h100",) * 8, 348 * GIGA),
    "two-tier-v100-2x4": lambda: _two_tier(2, 4, "v100", 150 * GIGA),
    "two-tier-a100-2x4": lambda: _two_tier(2, 4, "a100", 300 * GIGA),
    "two-tier-h100-4x8": lambda: _two_tier(4, 8, "h100", 450 * GIGA),
    "mixed-a100-t4-4": lambda: _pcie(("a100", "a100", "t4", "t4"), 12 * GIGA),
    "mixed-v100-t4-4": lambda: _pcie(("v100", "v100", "t4", "t4"), 12 * GIGA),
    **MEASURED_PRESETS,
}


def preset_names() -> tuple[str, ...]:
    """Names of all presets."""
    return tuple(PRESETS)


def is_preset(name: str) -> bool:
    """Whether a preset has that name, or would with another number of servers.

    Raises:
        InputError: it would, and has too many of them.
    """
    return name in PRESETS or with_servers(name) is not None


def preset(name: str) -> Cluster:
    """The preset cluster of that name; one of several servers with any number of them.

    Raises:
        InputError: there is none; the names are listed.
    """
    if name not in PRESETS:
        scaled = with_servers(name)
        if scaled is not None:
            return scaled
        raise InputError(f"cluster preset {name!r}: unknown; presets: {', '.join(PRESETS)}")
    cluster = PRESETS[name]()
    return Cluster(cluster.devices, cluster.links, name)
