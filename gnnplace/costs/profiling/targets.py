"""Targets of placement: clusters by their names, and problem files on other clusters.

The devices of this machine are ``auto``, ``cpu:N`` and ``cuda:N``; one link between its workers is
measured for all. Torch is imported where something is measured, not before.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from gnnplace.errors import ExecutionError, InputError
from gnnplace.problem import (
    Cluster,
    Device,
    Link,
    Problem,
    link_all_pairs,
    load_cluster,
    preset_names,
    read_problem,
    with_microbatches,
)

if TYPE_CHECKING:
    import torch

SPEC = re.compile(r"(auto)|(cpu|cuda)(?::(\d+))?")
MOST_WORKERS = 1024  # a cluster has a link for each pair
SHARE = 0.8  # The share of the free memory that all workers together may take
# Copies between GPUs of one server over PCIe 4.0, as `gnnplace.problem.cluster.presets` has them;
# assumed where they cannot be measured.
PCIE_LATENCY = 10e-6
PCIE_BANDWIDTH = 24e9


def resolve_cluster(cluster: str | Cluster) -> Cluster:
    """Return a cluster by ``cpu:N``, ``cuda:N``, ``auto``, a preset's name or a YAML file.

    Raises:
        InputError: It is none of these; the message says what there is.
    """
    if isinstance(cluster, Cluster):
        return cluster
    if cluster in preset_names() or SPEC.fullmatch(cluster) is None:
        return load_cluster(cluster)
    return detect(cluster)


def detect(spec: str) -> Cluster:
    """Return the cluster of a spec.

    Args:
        spec: "cpu:N": N worker processes with a core each (more than there are cores can only be
            emulated); "cuda:N": N GPUs; "auto": all GPUs, else a worker for each core.

    Returns:
        The cluster; links between its workers are measured, or taken from the cache on disk.

    Raises:
        InputError: There is no such spec, or it asks for more GPUs than there are.
    """
    match = SPEC.fullmatch(spec)
    if match is None:
        raise InputError(
            f"cluster {spec!r}: use auto, cpu:N, cuda:N, a preset or a YAML file"
        )
    name = match[1] or match[2]
    count = int(match[3]) if match[3] else None
    if name == "auto":
        name = "cuda" if gpu_names() else "cpu"
    if name == "cuda":
        return _cuda(count, spec)
    return _cpu(count, spec)


def _cpu(count: int | None, spec: str) -> Cluster:
    from gnnplace.run.workers import available_cores

    cores = len(available_cores())
    count = cores if count is None else count
    if count < 1:
        raise InputError(f"cluster {spec!r}: at least one worker is needed")
    if count > MOST_WORKERS:
        raise InputError(
            f"cluster {spec!r}: at most {MOST_WORKERS} workers can be emulated"
        )
    memory = float(int(SHARE * psutil.virtual_memory().available / count))
    names = [f"cpu:{i}" for i in range(count)]
    devices = tuple(Device(name=name, kind="cpu", memory=memory) for name in names)
    return Cluster(devices, _measure_links(names, ("links", cores)), spec)


def _cuda(count: int | None, spec: str) -> Cluster:
    gpus = gpu_names()
    if not gpus or (count or 0) > len(gpus):
        raise InputError(
            f"cluster {spec!r}: this machine has {len(gpus)} CUDA devices; use cpu:N or a preset"
        )
    selected = gpus[: count or len(gpus)]
    devices = tuple(
        Device(name=f"cuda:{i}", kind=gpu_kind(name), memory=memory)
        for i, (name, memory) in enumerate(selected)
    )
    return Cluster(devices, _gpu_links(devices), spec)


def _gpu_links(devices: tuple[Device, ...]) -> tuple[Link, ...]:
    """Return the links between GPUs as workers use them: staged in the host's memory."""
    import torch

    names = [device.name for device in devices]
    pair = [torch.device(name) for name in names[:2]]
    try:
        return _measure_links(
            names, ("gpu links", [device.kind for device in devices]), pair
        )
    except ExecutionError:
        # The buffers do not fit, or a GPU is in exclusive use by others.
        assumed = {
            "latency": PCIE_LATENCY,
            "bandwidth": PCIE_BANDWIDTH,
            "channel": "pcie",
        }
        return link_all_pairs(names, **assumed)


def _measure_links(
    names: Sequence[str],
    key: tuple[Any, ...],
    pair: Sequence[torch.device] | None = None,
) -> tuple[Link, ...]:
    """Return the links between workers of these names.

    One pair is measured, the others are like it.

    Args:
        names: The names of the workers' devices.
        key: What the measurement depends on, for the cache on disk.
        pair: Where the tensors of the pair live; the CPU by default.
    """
    if len(names) < 2:
        return ()
    from gnnplace.costs.profiling import cache as disk
    from gnnplace.run.workers import measure_link

    def measure() -> tuple[dict[str, Any], float]:
        """Measure one link and return it as plain data with a noise of 0.

        There is no noise because it is fitted to medians of many messages.
        """
        return measure_link(pair).model_dump(exclude={"source", "target"}), 0.0

    description = "the links between workers"
    entry = disk.get_or_measure(
        "links", disk.make_cache_key(*key), measure, what=description, fits=_is_link
    )
    return link_all_pairs(names, **entry)


def _is_link(entry: object) -> bool:
    """Return whether plain data is that of a link."""
    if not isinstance(entry, dict):
        return False
    try:
        Link(source="a", target="b", **entry)
    except (TypeError, ValueError):
        return False
    return True


def gpu_kind(name: str) -> str:
    """Return the kind of a GPU by its product name: "NVIDIA H100 80GB HBM3" gives "h100"."""
    words = re.findall(
        r"[a-z]*\d+[a-z]*", name.lower().replace("nvidia", "").replace("-", " ")
    )
    if words:
        return words[0]
    return name.lower().replace(" ", "-")


@cache
def gpu_names() -> tuple[tuple[str, float], ...]:
    """Return the product name and free bytes of each CUDA device.

    The driver's tool is asked instead of torch: once this process has used CUDA it cannot be
    forked into workers.
    """
    query = [
        "nvidia-smi",
        "--query-gpu=name,memory.free",
        "--format=csv,noheader,nounits",
    ]
    try:
        answer = subprocess.run(
            query, capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = [line.rpartition(",") for line in answer.stdout.splitlines() if "," in line]
    return tuple((name.strip(), float(free) * 2**20) for name, _, free in rows)


def move_to_cluster(problem: Problem, cluster: Cluster) -> Problem:
    """Return the same graph and times on another cluster.

    Raises:
        InputError: The problem pins or forbids devices, or no op has a time for a kind of device.
    """
    missing = [kind for kind in cluster.kinds if kind not in problem.time]
    if missing:
        raise InputError(
            f"problem {problem.name!r}: no op has a time for device kind {missing[0]!r}; "
            "profile the model on that cluster instead"
        )
    if (problem.pin >= 0).any() or problem.forbid is not None:
        raise InputError(
            f"problem {problem.name!r}: ops are pinned or forbidden to devices of its own cluster; "
            "place it without --cluster, or take the problem without pins"
        )
    return replace(problem, cluster=cluster)


def is_problem_file(what: str) -> bool:
    """Return whether ``what`` names a problem file and not a model."""
    if what.startswith("hf:") or what.endswith(".py"):  # a configuration, a module
        return False
    return what.endswith(".json") or Path(what).is_file()


def read_on_cluster(
    path: str, cluster: str | Cluster | None, microbatches: int = 1
) -> Problem:
    """Read a problem file; put it on another cluster and cut it into micro-batches, if asked.

    Raises:
        FormatError: The file is malformed.
        InputError: No op has a time for a device of the cluster.
    """
    problem = read_problem(path)
    if cluster is not None:
        problem = move_to_cluster(problem, resolve_cluster(cluster))
    if microbatches > 1:
        return with_microbatches(problem, microbatches)
    return problem
