"""Rows of splits: the arithmetic by hand, groups that differ, what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from gnnplace.errors import InfeasibleError, InputError
from gnnplace.plans.hybrid.convergence import CriticalBatch, EpochTable, Training
from gnnplace.plans.hybrid.gradients import ReplicaStep
from gnnplace.plans.hybrid.splits import PlacedSplitter, device_counts, group_sizes
from gnnplace.plans.mesh import MeshFabric
from gnnplace.problem.cluster import Cluster, Device, Link, make_preset

TRAINING = Training(batch=10, examples=1000, convergence=CriticalBatch(5.0, 80.0))


def placed(
    seconds: float, devices: int, size: float = 0.0, microbatches: int = 1
) -> ReplicaStep:
    """A step of ``seconds`` whose gradients are all there at the end, ``size`` bytes a device."""
    rows = tuple(np.array([[seconds, size]]) for _ in range(devices))
    ends, updates = np.full(devices, seconds), np.zeros(devices)
    return ReplicaStep(seconds, rows, ends, updates, microbatches)


def test_a_row_by_hand() -> None:
    """Four groups of one device: 40 examples a step, 25 steps, 7.5 epochs."""
    splitter = PlacedSplitter(
        MeshFabric(make_preset("nvlink-v100-4")),
        TRAINING,
        lambda c: [placed(2.0, c.num_devices, 100e9)],
    )
    row = splitter.row(4, 1)
    assert (row.global_batch, row.steps, row.epochs) == (40, 25, 7.5)
    assert row.parts is not None
    # The ring takes 2 * 3 / 4 * 100 GB at 150 GB/s and two latencies of 5 us, after the step.
    assert row.parts.exposed == pytest.approx(1.0 + 10e-6)
    assert row.seconds == pytest.approx((3.0 + 10e-6) * 25 * 7.5)
    assert (row.total_devices, row.name) == (4, "data parallel")


def test_devices_that_copy_themselves_do_not_overlap() -> None:
    """CPU workers; GPUs do."""
    pairs = (("a", "b"), ("b", "a"))
    links = [
        Link(source=x, target=y, latency=0.0, bandwidth=1e9, sender_busy=True)
        for x, y in pairs
    ]
    devices = tuple(Device(name=n, kind="cpu", memory=1e9) for n in ("a", "b"))
    workers = MeshFabric(Cluster(devices, tuple(links)))
    assert not PlacedSplitter(workers, TRAINING, lambda c: []).overlap
    assert PlacedSplitter(
        MeshFabric(make_preset("2xnvlink-v100-4")), TRAINING, lambda c: []
    ).overlap


def test_groups_of_copies_are_placed_once() -> None:
    """A split of 4,096 devices lists no links between all of them."""
    asked = list[int]()

    def place(cluster: Cluster) -> list[ReplicaStep]:
        asked.append(cluster.num_devices)
        return [placed(2.0, cluster.num_devices, 1e9)]

    splitter = PlacedSplitter(
        MeshFabric(make_preset("1024xnvlink-v100-4")), TRAINING, place
    )
    row = splitter.row(2048, 2)
    assert asked == [2]
    assert row.parts is not None
    # 1,024 rings of two members and two all-reduces on cards of 10 GB/s, a gigabyte each.
    between = 2 * 1023 / 1024 * 2e9 / 10e9 + 6 * 10e-6
    inside = 2 * (1 / 2 * 1e9 / 150e9 + 1.25 * 5e-6)
    assert row.parts.all_reduce == pytest.approx(between + inside)


def test_steps_are_rounded_up() -> None:
    """1,000 examples in batches of 30."""
    splitter = PlacedSplitter(
        MeshFabric(make_preset("nvlink-v100-4")), TRAINING, lambda c: [placed(1.0, 1)]
    )
    assert splitter.row(3, 1).steps == 34


def test_the_best_number_of_micro_batches_is_taken() -> None:
    """With the all-reduce counted."""
    both = [placed(3.0, 2, microbatches=1), placed(2.0, 2, microbatches=4)]
    row = PlacedSplitter(
        MeshFabric(make_preset("nvlink-v100-4")), TRAINING, lambda c: both
    ).row(2, 2)
    assert row.microbatches == 4
    assert row.name == "hybrid 2"


def test_alike_groups_are_placed_once_and_the_slowest_decides() -> None:
    """A100s and T4s."""
    asked: list[str] = []

    def place(cluster: Cluster) -> list[ReplicaStep]:
        asked.append(cluster.devices[0].kind)
        return [
            placed(
                {"a100": 1.0, "t4": 3.0}[cluster.devices[0].kind], cluster.num_devices
            )
        ]

    splitter = PlacedSplitter(
        MeshFabric(make_preset("mixed-a100-t4-4")), TRAINING, place
    )
    row = splitter.row(4, 1)
    assert row.parts is not None
    assert row.parts.alone == 3.0
    assert sorted(asked) == ["a100", "t4"]
    splitter.row(2, 1)
    assert len(asked) == 2


def test_what_does_not_fit_is_a_row_with_its_reason() -> None:
    """And has no time."""

    def place(cluster: Cluster) -> list[ReplicaStep]:
        raise InfeasibleError("too large")

    row = PlacedSplitter(MeshFabric(make_preset("nvlink-v100-4")), TRAINING, place).row(
        2, 1
    )
    assert row.parts is None
    assert row.note == "too large"
    assert row.seconds == np.inf


def test_beyond_the_table_nothing_is_known() -> None:
    """The row says so."""
    training = Training(10, 1000, EpochTable(((20.0, 5.0),)))
    splitter = PlacedSplitter(
        MeshFabric(make_preset("nvlink-v100-4")), training, lambda c: [placed(1.0, 1)]
    )
    row = splitter.row(4, 1)
    assert row.epochs is None
    assert row.seconds == np.inf
    assert "40" in row.note


def test_every_split_of_every_number() -> None:
    """Groups do not straddle copies of the cluster."""
    fabric = MeshFabric(make_preset("2xnvlink-v100-4"))
    splitter = PlacedSplitter(fabric, TRAINING, lambda c: [placed(1.0, c.num_devices)])
    rows = splitter.rows(device_counts(6), group_sizes(6, 4))
    found = {(row.groups, row.devices) for row in rows}
    assert found == {(1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4), (6, 1), (3, 2)}


def test_counts_and_sizes() -> None:
    """Powers of two and N; divisors."""
    assert device_counts(12) == [1, 2, 4, 8, 12]
    assert device_counts(1) == [1]
    assert group_sizes(12, 8) == [1, 2, 3, 4, 6, 8]
    with pytest.raises(InputError):
        device_counts(0)
    with pytest.raises(InputError, match="examples"):
        Training(1, 0, TRAINING.convergence)
