"""DistributedDataParallel on real processes."""

from __future__ import annotations

import pytest

from gnnplace.errors import InputError
from gnnplace.plans.hybrid.ddp import run_data_parallel
from gnnplace.tracing import load


def test_gradients_are_those_of_accumulating() -> None:
    """Two processes; the error is that of another order of sums."""
    run = run_data_parallel(lambda: load("mlp?batch=8"), 2, steps=3)
    assert run.workers == 2
    assert run.error < 1e-5
    assert len(run.steps) == 3
    assert run.cpu_time > 0
    assert min(run.steps) <= run.step_time <= max(run.steps)


def test_bad_requests_are_refused() -> None:
    """One worker, or a batch that cannot be cut."""
    with pytest.raises(InputError, match="two workers"):
        run_data_parallel(lambda: load("mlp"), 1)
    with pytest.raises(InputError, match="cannot be cut"):
        run_data_parallel(lambda: load("mlp?batch=7"), 2)
