"""What joins GPUs: measured figures of one message, by the machine that they were measured on.

A message of ``s`` bytes takes ``latency + s / bandwidth``. ``bandwidth`` is what the largest
message measured attains, ``latency`` what the smallest took beyond its bytes. Where no single
messages were measured, both are those of an all-gather of two GPUs, of which each sends one half to
the other, or the bus bandwidth and the latency of a step of an all-reduce; ``source`` says so.
Collectives of the same machines are in ``gnnplace/costs/tables/links.json``, with commits and
licences in ``LINKS.md`` beside it.

How links share what is between them is the presets' matter: behind an NVSwitch or PCIe with peer
copies each GPU has one port a direction, on dedicated NVLinks every pair its own channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gnnplace.errors import InputError

GIGA = 1e9
VIDUR = "microsoft/vidur, data/profiling/network"
AICONFIGURATOR = "ai-dynamo/aiconfigurator, NCCL 2.27.3 and 2.29.2, half precision"
TRAIN_TIME = "DebarghaG/estimate-train-time, data/regressors"
SAILOR = "eth-easl/sailor"


@dataclass(frozen=True)
class Fabric:
    """A kind of connection, of one machine that it was measured on.

    Attributes:
        about: what it is, in words.
        latency: seconds of a message beside its bytes.
        bandwidth: bytes per second of a message.
        source: where the figures are from.
        between: whether it joins servers, and not the GPUs of one.
        server: bytes per second that all GPUs of a server send at once; None where each has a
            network card of its own, which no other shares.
    """

    about: str
    latency: float
    bandwidth: float
    source: str
    between: bool = False
    server: float | None = None


def _fabric(
    about: str,
    latency: float,
    bandwidth: float,
    source: str,
    *,
    between: bool = False,
    server: float | None = None,
) -> Fabric:
    """Latency in microseconds, bandwidths in GB/s."""
    own = None if server is None else server * GIGA
    return Fabric(about, latency / 1e6, bandwidth * GIGA, source, between, own)


FABRICS: Mapping[str, Fabric] = {
    "nvswitch-a100": _fabric(
        "NVSwitch of a DGX A100, 300 GB/s a port and direction raw",
        8.0, 228.3, f"{VIDUR}/a100_dgx/send_recv.csv: 2 kB and 64 MB inside a server",
    ),
    "nvswitch-h100": _fabric(
        "NVSwitch of a DGX H100, 450 GB/s a port and direction raw",
        5.0, 347.7, f"{VIDUR}/h100_dgx/send_recv.csv: 2 kB and 64 MB inside a server",
    ),
    "nvswitch-h200": _fabric(
        "NVSwitch of an HGX H200, the same NVLink 4 as H100's",
        5.0, 347.7, "messages: those of nvswitch-h100, whose all-to-alls agree within 7 %",
    ),
    "nvswitch-b200": _fabric(
        "NVSwitch of an HGX B200, 900 GB/s a port and direction raw",
        8.7, 438.4, f"{AICONFIGURATOR}: all-gather of two, 0.5 kB and 512 MB",
    ),
    "nvlink-a100-4": _fabric(
        "four A100 with 100 GB/s of NVLink 3 for each pair (Perlmutter)",
        11.9, 90.59, f"{TRAIN_TIME}/Perlmutter, p2p 1 node: 4.6 MB and 247 MB",
    ),
    "nvlink-gh200-4": _fabric(
        "four GH200 with NVLink 4 between each pair (Alps Clariden)",
        59.6, 116.2, f"{SAILOR}, Aceso p2p_intra_node GH-96: 1 MB and 1 GB",
    ),
    "nvlink-v100-4": _fabric(
        "four V100 of a cloud server with NVLink 2",
        54.5, 63.69, f"{SAILOR}, Aceso p2p_intra_node V100-16: 1 MB and 1 GB",
    ),
    "nvlink-v100-8": _fabric(
        "hybrid cube mesh of a DGX-1 V100, one NVLink 2",
        11.7, 22.55, "VIA-Research/vTrain, trace/v100: all-reduce of two, 1 MB and 989 MB",
    ),
    "nvlink-pairs-a100": _fabric(
        "A100 PCIe joined in pairs by NVLink bridges",
        4.0, 285.6, f"{VIDUR}/a100_pairwise_nvlink/send_recv.csv: 2 kB and 64 MB in a pair",
    ),
    "nvlink-pairs-h100": _fabric(
        "H100 PCIe joined in pairs by NVLink bridges",
        3.5, 190.7, f"{VIDUR}/h100_pairwise_nvlink/all_reduce.csv: of two, 2 kB and 64 MB",
    ),
    "nvlink-rtx-3090-2": _fabric(
        "two RTX 3090 with an NVLink bridge",
        55.9, 46.42, f"{SAILOR}, Aceso p2p_intra_node RTX-3090: 1 MB and 1 GB",
    ),
    "pcie-rtx-3090": _fabric(
        "RTX 3090 on PCIe 4 without peer copies",
        26.2, 9.312, f"{SAILOR}, Aceso all_reduce of four RTX-3090: 1 MB and 4 GB",
    ),
    "pcie-rtx-pro-6000": _fabric(
        "RTX PRO 6000 on PCIe 5 with peer copies",
        5.9, 32.32, f"{AICONFIGURATOR}: all-gather of two, 0.5 kB and 512 MB",
    ),
    "pcie-l40s": _fabric(
        "two L40S on PCIe 4 with peer copies",
        5.3, 19.59, f"{AICONFIGURATOR}: all-gather of two, 0.5 kB and 512 MB",
    ),
    "pcie-a40": _fabric(
        "A40 on PCIe 4 without peer copies: through the host's memory",
        4.0, 3.97, f"{VIDUR}/a40_pairwise_nvlink/send_recv.csv: 2 kB and 64 MB inside a server",
    ),
    "network-dgx-a100": _fabric(
        "between DGX A100 servers; the source does not name the network",
        24.0, 7.81, f"{VIDUR}/a100_dgx/send_recv.csv: 2 kB and 64 MB between servers",
        between=True, server=12.2,  # all_reduce.csv: two servers of four and of eight, 62 MB
    ),
    "infiniband-dgx-a100": _fabric(
        "between DGX A100 servers of a SuperPOD, HDR 200 Gbit/s a GPU",
        17.0, 22.5, "25 GB/s raw (NVIDIA DGX SuperPOD reference architecture, 2020), 0.9 of it "
        "assumed; all at once 0.4 of the raw sum, assumed; latency as infiniband-dgx-h100's",
        between=True, server=80.0,
    ),
    "infiniband-dgx-h100": _fabric(
        "between DGX H100 servers, 400 Gbit/s a GPU",
        17.0, 35.87, f"{VIDUR}/h100_dgx/send_recv.csv: 2 kB and 64 MB between servers",
        between=True,
    ),
    "infiniband-gh200": _fabric(
        "between GH200 of one a server, InfiniBand NDR 400 Gbit/s (Vista)",
        17.0, 32.34, f"{TRAIN_TIME}/Vista, p2p 2 nodes: 247 MB; latency as infiniband-dgx-h100's",
        between=True,
    ),
    "slingshot-gh200": _fabric(
        "between servers of four GH200, Slingshot-11 200 Gbit/s a GPU (Alps Clariden)",
        42.4, 23.08, f"{SAILOR}, network_coeffs_all_homo.json, inter GH-96: fit at 1 MB and 1 GB",
        between=True,
    ),
    "slingshot-a100": _fabric(
        "between servers of four A100, Slingshot (Perlmutter); far below the raw 25 GB/s, as over "
        "TCP",
        42.4, 3.33, f"{TRAIN_TIME}/Perlmutter, p2p 2 nodes: 247 MB; latency as slingshot-gh200's",
        between=True,
    ),
    "ethernet-a100": _fabric(
        "between cloud servers of A100 40 GB, one stream",
        472.5, 2.288, f"{SAILOR}, network_coeffs_all_homo.json, inter A100-40: fit",
        between=True,
    ),
    "ethernet-a100-80": _fabric(
        "between cloud servers of A100 80 GB, one stream",
        116.9, 4.211, f"{SAILOR}, network_coeffs_all_homo.json, inter A100-80: fit",
        between=True,
    ),
    "ethernet-v100": _fabric(
        "between cloud servers of V100, one stream",
        603.9, 1.795, f"{SAILOR}, network_coeffs_all_homo.json, inter V100-16: fit",
        between=True,
    ),
}  # fmt: skip


# What a user measured; its figures stand on the links themselves.
OWN_INSIDE, OWN_BETWEEN = "own-inside", "own-between"


def is_between(name: str) -> bool:
    """Whether a fabric joins servers.

    Raises:
        InputError: there is none of that name; the names are listed.
    """
    if name in (OWN_INSIDE, OWN_BETWEEN):
        return name == OWN_BETWEEN
    if name not in FABRICS:
        raise InputError(f"fabric {name!r}: unknown; known: {', '.join(FABRICS)}")
    return FABRICS[name].between
