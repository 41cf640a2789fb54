"""Devices of this machine; GPUs through a fake of the driver's tool."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gnnplace.costs.profiling import cache, targets
from gnnplace.errors import ExecutionError, InputError
from gnnplace.problem.cluster import Link
from gnnplace.run import workers
from gnnplace.run.workers.tasks import available_cores

LINK = Link(
    source="cpu:0",
    target="cpu:1",
    latency=1e-6,
    bandwidth=5e9,
    sender_busy=True,
    send_overhead=2e-6,
)


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("GNNPLACE_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "MOST_LOAD", float("inf"))  # measured once, noisy or not
    targets.gpu_names.cache_clear()
    yield
    targets.gpu_names.cache_clear()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Devices of the pairs whose links were measured."""
    calls: list[Any] = []

    def fake(devices: Any) -> Link:
        calls.append(devices)
        return LINK

    monkeypatch.setattr(workers, "measure_link", fake)
    return calls


def gpus(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    answer = SimpleNamespace(stdout="\n".join(lines))
    monkeypatch.setattr(targets.subprocess, "run", lambda *a, **k: answer)


def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: Any, **options: Any) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", missing)


def test_cpu_workers_share_memory_and_links_are_measured_once(
    measured: list[Any],
) -> None:
    cluster = targets.detect("cpu:3")
    assert [d.name for d in cluster.devices] == ["cpu:0", "cpu:1", "cpu:2"]
    assert cluster.kinds == ("cpu",)
    assert len(cluster.links) == 6
    assert {(link.latency, link.sender_busy) for link in cluster.links} == {
        (1e-6, True)
    }
    assert targets.detect("cpu:3").links == cluster.links
    assert measured == [None]
    with cache.measure_anew():
        targets.detect("cpu:2")
    assert measured == [None, None]


def test_one_worker_needs_no_link(measured: list[Any]) -> None:
    assert targets.detect("cpu:1").links == ()
    assert measured == []


def test_auto_is_every_core_or_every_gpu(
    measured: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_gpus(monkeypatch)
    assert targets.detect("auto").num_devices == len(available_cores())
    targets.gpu_names.cache_clear()
    gpus(monkeypatch, "NVIDIA H200, 140000", "NVIDIA H200, 130000")
    cluster = targets.detect("auto")
    assert [d.name for d in cluster.devices] == ["cuda:0", "cuda:1"]
    assert cluster.kinds == ("h200",)
    assert cluster.devices[1].memory == 130000 * 2**20
    assert targets.detect("cuda:1").num_devices == 1


def test_links_between_gpus_are_measured_once_on_one_pair(
    measured: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(monkeypatch, *["NVIDIA H200, 140000"] * 3)
    found = targets.detect("cuda:3").links
    assert {(link.source, link.target) for link in found} == {
        (f"cuda:{a}", f"cuda:{b}") for a in range(3) for b in range(3) if a != b
    }
    assert {link.bandwidth for link in found} == {5e9}
    assert targets.detect("cuda:3").links == found
    assert measured == [[torch.device("cuda:0"), torch.device("cuda:1")]]


def test_links_between_gpus_that_cannot_be_measured_are_assumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*given: Any, **options: Any) -> None:
        raise ExecutionError("worker 'link end 0' failed: out of memory")

    gpus(monkeypatch, *["NVIDIA H200, 140000"] * 2)
    monkeypatch.setattr(workers, "measure_link", broken)
    found = targets.detect("cuda:2").links
    assert {(link.bandwidth, link.channel) for link in found} == {
        (targets.PCIE_BANDWIDTH, "pcie")
    }


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "4090"),
    ],
)
def test_kinds_of_products(name: str, kind: str) -> None:
    assert targets.gpu_kind(name) == kind


@pytest.mark.parametrize("spec", ["gpu:2", "cpu:x", "auto:2", "", "cpu:-1"])
def test_what_is_no_spec_is_refused(spec: str) -> None:
    with pytest.raises(InputError, match="use auto, cpu:N, cuda:N"):
        targets.detect(spec)
    assert targets.SPEC.fullmatch(spec) is None


def test_devices_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="at least one worker"):
        targets.detect("cpu:0")
    no_gpus(monkeypatch)
    with pytest.raises(InputError, match="has 0 CUDA devices"):
        targets.detect("cuda:2")


def test_specs() -> None:
    assert all(
        targets.SPEC.fullmatch(text) for text in ("auto", "cpu:4", "cuda", "cuda:1")
    )
