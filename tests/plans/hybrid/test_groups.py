"""``gnnplace hybrid --execute``: a plan of groups, with DistributedDataParallel beside it."""

from __future__ import annotations

import json

import pytest

from gnnplace.cli import main as cli
from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.planning.plans import plan_model
from gnnplace.plans.hybrid.groups import Running, grouped_plan
from gnnplace.plans.hybrid.study import Search, study_hybrid

MODEL = "mlp?batch=8&depth=2"
AXES = ("pp", "shards")
HYBRID = ["hybrid", MODEL, "--execute", "--steps", "2"]


def test_two_by_two(capsys: pytest.CaptureFixture[str]) -> None:
    """Four workers compute what one device does, with DDP and one device beside."""
    more = ["--cluster", "cpu:4", "--group-devices", "2", "--json"]
    assert cli.run([*HYBRID, *more]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["verified"]
    assert answer["predicted_step_time"] > 0
    assert set(answer["beside"]) == {"data parallelism (DDP)", "one device"}


def test_the_groups_are_those_asked_for() -> None:
    """Replicas of groups, each of so many devices, each share in micro-batches."""
    plan = grouped_plan(MODEL, resolve_cluster("cpu:4"), Running(2, 2, 2))
    assert len(plan.file.stages[0].devices) == 2
    assert sum(len(stage.rows[0]) for stage in plan.file.stages) == 2
    assert plan.microbatches == 2
    alone = grouped_plan(MODEL, resolve_cluster("cpu:4"), Running(4, 1))
    assert len(alone.file.stages[0].devices) == 4


def test_a_study_of_plans_takes_what_plans_take() -> None:
    """Every row of one copy of the cluster is the faster plan of its groups, to the last digits."""
    search = Search(
        placer="plan", microbatches=(1, 3)
    )  # a batch of eight has no thirds
    study = study_hybrid(MODEL, "nvlink-v100-4", search=search)
    assert study.origin["step"].startswith("predicted by joint plans")
    for row in study.rows:
        words = [
            f"dp={row.groups},microbatch_size=8,{axis}={row.devices}" for axis in AXES
        ]
        given = {"batch": 8 * row.groups, "cluster": "nvlink-v100-4"}
        plans = [plan_model(MODEL, given=each, **given)[0] for each in words]
        assert row.parts is not None
        assert row.parts.total == pytest.approx(
            min(plan.step_time for plan in plans), rel=1e-9
        )


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
