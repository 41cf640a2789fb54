"""Rows of splits: the arithmetic by hand, groups that differ, what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from gnnplace.errors import InfeasibleError, InputError
from gnnplace.plans.hybrid.convergence import CriticalBatch, EpochTable, Training
from gnnplace.plans.hybrid.fabric import ClusterCopies
from gnnplace.plans.hybrid.gradients import ReplicaStep
from gnnplace.plans.hybrid.splits import Splitter, device_counts, group_sizes
from gnnplace.problem.cluster import Cluster, preset

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
    splitter = Splitter(
        ClusterCopies(preset("nvlink-v100-4")),
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


def test_steps_are_rounded_up() -> None:
    """1,000 examples in batches of 30."""
    splitter = Splitter(
        ClusterCopies(preset("nvlink-v100-4")), TRAINING, lambda c: [placed(1.0, 1)]
    )
    assert splitter.row(3, 1).steps == 34


def test_the_best_number_of_micro_batches_is_taken() -> None:
    """With the all-reduce counted."""
    both = [placed(3.0, 2, microbatches=1), placed(2.0, 2, microbatches=4)]
    row = Splitter(
        ClusterCopies(preset("nvlink-v100-4")), TRAINING, lambda c: both
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

    splitter = Splitter(ClusterCopies(preset("mixed-a100-t4-4")), TRAINING, place)
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

    row = Splitter(ClusterCopies(preset("nvlink-v100-4")), TRAINING, place).row(2, 1)
    assert row.parts is None
    assert row.note == "too large"
    assert row.seconds == np.inf


def test_beyond_the_table_nothing_is_known() -> None:
    """The row says so."""
    training = Training(10, 1000, EpochTable(((20.0, 5.0),)))
    splitter = Splitter(
        ClusterCopies(preset("nvlink-v100-4")), training, lambda c: [placed(1.0, 1)]
    )
    row = splitter.row(4, 1)
    assert row.epochs is None
    assert row.seconds == np.inf
    assert "40" in row.note


def test_every_split_of_every_number() -> None:
    """Groups do not straddle copies of the cluster."""
    fabric = ClusterCopies(preset("nvlink-v100-4"))
    splitter = Splitter(fabric, TRAINING, lambda c: [placed(1.0, c.num_devices)])
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
