"""``profile --links`` and ``hybrid --links``: a log of nccl-tests as it is."""

from __future__ import annotations

import json

import pytest

from gnnplace.cli.main import run
from gnnplace.problem.cluster import preset_names
from tests.problem.formats.test_nccl_tests import new


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
    hybrid = ["hybrid", str(output), "--batch", "8", "--budget", "0", "--json"]
    assert run([*hybrid, "--placer", "single", "--microbatches", "1"]) == 0
    without = json.loads(capsys.readouterr().out)
    assert (
        run([*hybrid, "--placer", "single", "--microbatches", "1", "--links", str(log)])
        == 0
    )
    assert json.loads(capsys.readouterr().out) != without


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
