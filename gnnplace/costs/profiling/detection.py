"""The devices of this machine as a cluster: `auto`, `cpu:N`, `cuda:N`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from functools import cache
from itertools import permutations
from typing import Any

import psutil
import torch

from gnnplace.costs.profiling import cache as disk
from gnnplace.costs.profiling.targets import SPEC
from gnnplace.errors import ExecutionError, InputError
from gnnplace.problem.cluster import Cluster, Device, Link
from gnnplace.runtime import measure_links
from gnnplace.runtime.workers import available_cores

LINKS = "the links between workers"
MOST_WORKERS = 1024  # a cluster has a link for each pair
SHARE = 0.8  # of the free memory that all workers together may take
# Copies between GPUs of one server over PCIe 4.0, as `gnnplace.problem.cluster.presets` has them;
# assumed where they cannot be measured.
PCIE_LATENCY, PCIE_BANDWIDTH = 10e-6, 24e9


def detect(spec: str, *, cached: bool = True) -> Cluster:
    """The cluster of a spec.

    Args:
        spec: "cpu:N": N worker processes with a core each (more than there are cores can only be
            emulated); "cuda:N": N GPUs; "auto": all GPUs, else a worker for each core.
        cached: Take measured links from the cache on disk.

    Returns:
        The cluster; links between CPU workers are measured.

    Raises:
        InputError: no such spec, or more GPUs than there are.
    """
    match = SPEC.fullmatch(spec)
    if match is None:
        raise InputError(f"cluster {spec!r}: use auto, cpu:N, cuda:N, a preset or a YAML file")
    name, count = match[1] or match[2], int(match[3]) if match[3] else 0
    if name == "auto":
        name = "cuda" if gpu_names() else "cpu"
    return _cuda(count, spec, cached) if name == "cuda" else _cpu(count, match[3], spec, cached)


def _cpu(count: int, given: str | None, spec: str, cached: bool) -> Cluster:
    count = count if given else len(available_cores())
    if count < 1:
        raise InputError(f"cluster {spec!r}: at least one worker is needed")
    if count > MOST_WORKERS:
        raise InputError(f"cluster {spec!r}: at most {MOST_WORKERS} workers can be emulated")
    memory = float(int(SHARE * psutil.virtual_memory().available / count))
    names = [f"cpu:{i}" for i in range(count)]
    devices = tuple(Device(name=name, kind="cpu", memory=memory) for name in names)
    return Cluster(devices, cpu_links(names, cached=cached), spec)


def cpu_links(names: list[str], *, cached: bool = True) -> tuple[Link, ...]:
    """Links between workers of these names; one pair is measured, the others are like it."""
    if len(names) < 2:
        return ()
    key = disk.key("links", len(available_cores()))
    entry = disk.kept(
        "links", key, lambda: _plain(measure_links(2)), what=LINKS, fits=_is_link, use=cached
    )
    return tuple(Link(source=a, target=b, **entry) for a, b in permutations(names, 2))


def _plain(links: Sequence[Link]) -> tuple[dict[str, Any], float]:
    """One pair's link as plain data, and no noise: it is fitted to medians of many messages."""
    return links[0].model_dump(exclude={"source", "target"}), 0.0


def _is_link(entry: Any) -> bool:
    """Whether plain data is what `_plain` made of a link."""
    try:
        Link(source="a", target="b", **entry)
    except (TypeError, ValueError):
        return False
    return True


def _cuda(count: int, spec: str, cached: bool) -> Cluster:
    found = gpu_names()
    if not found or count > len(found):
        raise InputError(
            f"cluster {spec!r}: this machine has {len(found)} CUDA devices; use cpu:N or a preset"
        )
    chosen = found[: count or len(found)]
    devices = tuple(
        Device(name=f"cuda:{i}", kind=gpu_kind(name), memory=memory)
        for i, (name, memory) in enumerate(chosen)
    )
    return Cluster(devices, _gpu_links(devices, cached=cached), spec)


def _gpu_links(devices: tuple[Device, ...], *, cached: bool) -> tuple[Link, ...]:
    """Links between GPUs as workers use them: staged in the host's memory; one pair is measured."""
    if len(devices) < 2:
        return ()
    key = disk.key("gpu links", [device.kind for device in devices])
    pair = [torch.device(device.name) for device in devices[:2]]
    try:
        entry = disk.kept(
            "links",
            key,
            lambda: _plain(measure_links(2, devices=pair)),
            what=LINKS,
            fits=_is_link,
            use=cached,
        )
    except ExecutionError:  # less memory than the buffers, a GPU that others have for their own
        return _assumed_links(devices)
    names = [device.name for device in devices]
    return tuple(Link(source=a, target=b, **entry) for a, b in permutations(names, 2))


def _assumed_links(devices: tuple[Device, ...]) -> tuple[Link, ...]:
    return tuple(
        Link(
            source=a.name,
            target=b.name,
            latency=PCIE_LATENCY,
            bandwidth=PCIE_BANDWIDTH,
            channel="pcie",
        )
        for a, b in permutations(devices, 2)
    )


def gpu_kind(name: str) -> str:
    """Kind of a GPU's product name: "NVIDIA H100 80GB HBM3" -> "h100"."""
    words = re.findall(r"[a-z]*\d+[a-z]*", name.lower().replace("nvidia", "").replace("-", " "))
    return words[0] if words else name.lower().replace(" ", "-")


@cache
def gpu_names() -> tuple[tuple[str, float], ...]:
    """Product name and free bytes of each CUDA device.

    The driver's tool is asked instead of torch: once this process has used CUDA it cannot be
    forked into workers.
    """
    query = ["nvidia-smi", "--query-gpu=name,memory.free", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = [line.rpartition(",") for line in answer.stdout.splitlines() if "," in line]
    return tuple((name.strip(), float(free) * 2**20) for name, _, free in rows)
