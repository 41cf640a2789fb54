"""``gnnplace hybrid --execute``: real processes from the command line."""

from __future__ import annotations

import json

import pytest

from gnnplace.cli import main as cli

HYBRID = ["hybrid", "mlp?batch=8", "--execute", "--steps", "2", "--placer", "contiguous"]


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
