"""Groups of devices as plans: rows are what plans take, the answer is a plan that runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gnnplace.cli import main as cli
from gnnplace.planning import make_study_plan, study_hybrid
from gnnplace.planning.plans import plan_model
from gnnplace.plans import HybridOptions

MODEL = "mlp?batch=8&depth=2"
AXES = ("pp", "shards")


@pytest.mark.parametrize("cluster", ["nvlink-v100-4", "2xnvlink-v100-4"])
def test_a_study_takes_what_plans_take(cluster: str) -> None:
    """Every row is the faster plan of its groups, to the last digits."""
    study = study_hybrid(MODEL, cluster)
    assert study.origin["step"].startswith("predicted by joint plans")
    assert study.alternative is None  # no branches: single ops are not placed
    for row in study.rows:
        words = [
            f"dp={row.groups},microbatch_size={size},{axis}={row.devices}"
            for axis in AXES
            for size in (2, 8)
        ]
        given = {"batch": 8 * row.groups, "cluster": cluster}
        plans = [plan_model(MODEL, given=each, **given)[0] for each in words]
        assert row.parts is not None
        fastest = min(plan.step_time for plan in plans)
        assert row.parts.total == pytest.approx(fastest, rel=1e-9)
        assert 0 <= row.parts.exposed <= row.parts.all_reduce * (1 + 1e-9)


def test_the_answer_is_planned_as_its_row() -> None:
    """Groups, devices of a group and micro-batches; the batch of all groups."""
    study = study_hybrid(MODEL, "cpu:4", options=HybridOptions(least_epochs=1.0))
    best = study.advice.best
    assert best is not None
    plan = make_study_plan(study)
    assert plan.file.batch == best.global_batch
    assert plan.microbatches == best.microbatches
    assert len(plan.file.stages[0].devices) == best.groups
    devices = sum(len(s.rows[0]) for s in plan.file.stages)
    assert devices == best.devices
    assert best.parts is not None
    assert plan.step_time == pytest.approx(best.parts.total, rel=1e-9)


def test_the_answer_runs_beside_ddp(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Workers compute what one device does, with DDP and one device timed by turns."""
    path = str(tmp_path / "plan.json")
    table = tmp_path / "epochs.csv"
    table.write_text("batch,epochs\n8,8\n16,1\n", encoding="utf-8")
    command = ["plan", MODEL, "--cluster", "cpu:2", "--goal", "epochs", "--json"]
    assert cli.run([*command, "--epochs-table", str(table), "-o", path]) == 0
    best = json.loads(capsys.readouterr().out)["training"]["best"]
    assert best["groups"] == 2
    options = ["--steps", "2", "--train", "3", "--beside", "--json"]
    assert cli.run(["execute", MODEL, path, *options]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["verified"]
    assert answer["predicted_step_time"] == pytest.approx(best["step"], rel=1e-9)
    assert set(answer["beside"]) == {"data parallelism (DDP)", "one device"}
