"""``profile --links`` and ``plan --goal epochs --links``: a log of nccl-tests as it is."""

from __future__ import annotations

import json

import pytest

from gnnplace.cli.main import run
from gnnplace.problem.cluster import preset_names
from tests.costs.test_nccl_tests import new


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "nccl.log"
    path.write_text(new(), encoding="utf-8")
    return path


def test_profile_takes_its_figures(log, tmp_path, capsys):
    output = tmp_path / "p.json"
    given = ["profile", "mlp", "--cluster", "nvswitch-h200-8", "-o", str(output)]
    assert run(given) == 0
    before = json.loads(output.read_text())["links"][0]
    assert (before["bandwidth"], before["fabric"]) == (347.7e9, "nvswitch-h200")
    assert run([*given, "--links", str(log)]) == 0
    assert (
        "56 links inside of servers take 8.52 us and 229 GB/s"
        in capsys.readouterr().err
    )
    link = json.loads(output.read_text())["links"][0]
    assert link["bandwidth"] == pytest.approx(229.3e9, rel=1e-3)
    assert link["channel"] == before["channel"]


@pytest.mark.parametrize("cluster", ["nvswitch-h200-8", "2xnvswitch-h200-8"])
def test_a_study_takes_its_figures(cluster, log, capsys):
    plan = ["plan", "mlp", "--cluster", cluster, "--goal", "epochs", "--json"]
    assert run(plan) == 0
    without = json.loads(capsys.readouterr().out)["training"]
    assert run([*plan, "--links", str(log)]) == 0
    study = json.loads(capsys.readouterr().out)["training"]
    assert "nccl.log" in study["origin"]["all_reduce"]
    steps = [[row["step"] for row in answer["rows"]] for answer in (without, study)]
    assert steps[0][0] == steps[1][0]
    assert all(a != b for a, b in zip(*steps, strict=True) if a != steps[0][0])
    assert run([*plan[:4], "--links", str(log)]) == 2
    assert "--links: is for --goal epochs" in capsys.readouterr().err


def test_a_bad_line_is_one_line(log, tmp_path, capsys):
    log.write_text(new().replace("45.65", "fast"), encoding="utf-8")
    given = [
        "profile",
        "mlp",
        "--cluster",
        "nvswitch-h200-8",
        "-o",
        str(tmp_path / "p.json"),
    ]
    assert run([*given, "--links", str(log)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{log}: line 19: size, time, algbw and busbw must be numbers" in error
    assert not (tmp_path / "p.json").exists()


def test_help_lists_the_presets(capsys):
    with pytest.raises(SystemExit):
        run(["profile", "--help"])
    told = "".join(capsys.readouterr().out.split())
    assert all(name in told for name in preset_names())
