"""The script of docs/howto/plan-to-script.md runs as it stands, and goes on under another plan."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs" / "howto" / "plan-to-script.md"
GIVEN = (
    "pp=2,dp=2,microbatch_size=2,zero=1",
    "pp=4,microbatch_size=4,schedule=zero-bubble",
)


def script():
    """The code of the page."""
    return DOCS.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]


def test_the_page_shows_a_whole_script():
    compile(script(), "train.py", "exec")
    assert "runner.step(batch)" in script()


@pytest.mark.campaign
def test_the_script_trains_by_a_plan_and_goes_on_by_another(tmp_path):
    (tmp_path / "train.py").write_text(script())
    epochs = []
    for words, precision in zip(GIVEN, ("bf16-mixed", "32-true"), strict=True):
        plan = [
            sys.executable,
            "-m",
            "gnnplace",
            "plan",
            "train:build",
            "--cluster",
            "cpu:4",
            "--batch",
            "16",
            "--precision",
            precision,
            "--given",
            words,
            "-o",
            "plan.json",
        ]
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "4",
            "train.py",
        ]
        subprocess.run(plan, cwd=tmp_path, check=True, timeout=200)
        done = subprocess.run(
            torchrun,
            cwd=tmp_path,
            check=True,
            timeout=300,
            capture_output=True,
            text=True,
        )
        epochs += re.findall(r"epoch (\d+): loss ([\d.]+)", done.stdout)
    assert [int(number) for number, _ in epochs] == [0, 1, 2, 3]
    losses = [float(loss) for _, loss in epochs]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]
