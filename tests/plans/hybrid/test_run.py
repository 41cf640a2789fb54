"""``gnnplace hybrid --execute``, and DistributedDataParallel, on real processes."""

from __future__ import annotations

import json

import pytest

from gnnplace.cli import main as cli
from gnnplace.errors import InputError
from gnnplace.plans.hybrid.run import run_data_parallel
from gnnplace.tracing import load

HYBRID = ["hybrid", "mlp?batch=8&depth=2", "--execute", "--steps", "2", "--placer", "contiguous"]


def test_two_by_two(capsys: pytest.CaptureFixture[str]) -> None:
    """Four workers, bitwise equal to one device, with DDP and eager PyTorch beside."""
    more = ["--cluster", "cpu:4", "--group-devices", "2", "--budget", "0", "--json"]
    assert cli.run([*HYBRID, *more, "--mode", "emulated"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["bitwise"]
    assert (answer["groups"], answer["group_devices"], answer["mode"]) == (2, 2, "emulated")
    assert answer["ddp"]["workers"] == 2
    assert answer["ddp"]["gradient_error"] < 1e-5
    assert answer["predicted"] > 0
    assert answer["eager_one_core"] > 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "--cluster"),
        (["--cluster", "cpu:2", "--group-devices", "2"], "4 devices"),
        (["--cluster", "cpu:4", "--microbatches", "1,2"], "one number"),
        (["--cluster", "cpu:4", "--microbatches", "3"], "cannot be cut"),
    ],
)
def test_bad_requests_are_one_line(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2."""
    assert cli.run([*HYBRID, *more]) == 2
    assert said in capsys.readouterr().err


def test_gradients_are_those_of_accumulating() -> None:
    """Two processes; the error is that of another order of sums."""
    run = run_data_parallel(lambda: load("mlp?batch=8&depth=2"), 2, steps=3)
    assert run.workers == 2
    assert run.error < 1e-5
    assert len(run.steps) == 3
    assert run.cpu_time > 0
    assert min(run.steps) <= run.step_time <= max(run.steps)


def test_bad_requests_are_refused() -> None:
    """One worker, or a batch that cannot be cut."""
    with pytest.raises(InputError, match="two workers"):
        run_data_parallel(lambda: load("mlp?depth=2"), 1)
    with pytest.raises(InputError, match="cannot be cut"):
        run_data_parallel(lambda: load("mlp?batch=7&depth=2"), 2)
