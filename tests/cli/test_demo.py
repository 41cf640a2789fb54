"""The whole road, on a small model and with real workers."""

from __future__ import annotations

import json
import subprocess

import pytest

from gnnplace.cli.main import run
from gnnplace.run.workers.tasks import available_cores

pytestmark = pytest.mark.timeout(280)


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """Commands in a folder of their own, in this process, which has imported everything."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def gnnplace_here(*arguments: str) -> subprocess.CompletedProcess:
        code = run(list(arguments))
        said = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, said.out, said.err)

    return gnnplace_here


@pytest.mark.skipif(len(available_cores()) < 2, reason="two workers need two cores")
def test_demo_runs_verifies_and_reports(tmp_path, here):
    done = here("demo", "--model", "mlp?width=64", "--budget", "0.1", "--steps", "3")
    assert done.returncode == 0, done.stderr
    assert "bitwise equal" in done.stdout
    assert "measured" in done.stdout
    assert "predicted" in done.stdout
    assert "placing with heft" in done.stderr
    page = (tmp_path / "demo-output" / "report.html").read_text()
    assert "mlp on 2 devices" in page
    trace = json.loads((tmp_path / "demo-output" / "trace.json").read_text())
    names = {
        e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"
    }
    assert {"predicted, best", "measured, best"} <= names


@pytest.mark.skipif(len(available_cores()) < 2, reason="two workers need two cores")
def test_a_users_own_model_profiled_placed_and_executed_with_micro_batches(
    tmp_path, here
):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "def build(batch=8):\n"
        "    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1),\n"
        "                          nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))\n"
        "    x, y = torch.randn(batch, 64), torch.randint(0, 10, (batch,))\n"
        "    return model, (x, y), nn.CrossEntropyLoss()\n"
    )
    place = ["place", "mine:build", "--cluster", "cpu:2", "--microbatches", "2"]
    placed = here(*place, "--placer", "contiguous", "-o", "p.json")
    assert placed.returncode == 0, placed.stderr
    execute = ["execute", "mine:build", "p.json"]
    ran = here(*execute, "--steps", "3", "--trace", "t.json", "--json")
    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout)
    assert answer["verified"] is True
    assert answer["mode"] == "measured"
    assert answer["step_time"] > 0
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    emulated = here(*execute, "--mode", "emulated", "--steps", "2")
    assert emulated.returncode == 0, emulated.stderr
    assert "emulated step time" in emulated.stdout


def test_capture_says_what_it_found(tmp_path, here):
    done = here("capture", "mlp", "-o", "graph.json")
    assert done.returncode == 0, done.stderr
    assert "ops captured" in done.stdout
    graph = json.loads((tmp_path / "graph.json").read_text())
    assert all(op["estimated"] for op in graph["ops"])
    (tmp_path / "broken.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x if x.sum() > 0 else -x\n"
        "def build():\n"
        "    return Net(), (torch.randn(3),)\n"
    )
    failed = here("capture", "broken:build", "-o", "g.json")
    assert failed.returncode == 2
    assert "broken.py" in failed.stderr
    assert "Traceback" not in failed.stderr
    # Progress.
    told = [line for line in failed.stderr.splitlines() if not line.startswith("  ")]
    assert len(told) == 1
    assert not (tmp_path / "g.json").exists()
