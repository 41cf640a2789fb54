"""Where a placement of single ops is faster, a plan says so, with a command that makes it."""

import shlex
from dataclasses import replace

import pytest

import gnnplace
from gnnplace.cli import run_and_exit
from gnnplace.files import read_json
from gnnplace.plans.handover import find_op_placement
from gnnplace.plans.job import TrainingJob
from gnnplace.plans.segments.chains import capture_chain
from gnnplace.problem.cluster.presets import make_preset
from gnnplace.report.plans import plan_lines

MODEL = "recommender?tables=2&depth=1"


@pytest.fixture(scope="module")
def plan():
    return gnnplace.plan(MODEL, "pcie-a100-4", batch=64, optimizer="sgd", budget=0.1)[0]


def test_branches_are_handed_over_with_a_command_that_works(
    plan, tmp_path, monkeypatch
):
    other = plan.op_placement
    assert other is not None
    assert other.step_time <= 0.97 * plan.step_time
    assert any(other.command in line for line in plan_lines(plan))
    assert plan.answer()["op_placement"]["command"] == other.command
    words = shlex.split(other.command)
    assert words[:3] == ["gnnplace", "place", f"{MODEL}&batch=64"]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run_and_exit([*words[1:], "--budget", "0.5", "--placer", "portfolio"])
    assert ended.value.code in (0, None)
    made = read_json("placement.json")["predicted_step_time"]
    assert made == pytest.approx(other.step_time, rel=0.1)


def test_nothing_is_handed_over_that_cannot_be_compared(plan):
    machine = make_preset("pcie-a100-4")
    chain = capture_chain(TrainingJob(MODEL, batch=64, optimizer="sgd"), machine)
    for other in (
        replace(chain, precision="bf16-mixed"),
        replace(chain, optimizer="adam"),
    ):
        assert (
            find_op_placement(
                plan, other, machine, TrainingJob(MODEL), named="pcie-a100-4"
            )
            is None
        )
    many = make_preset("superpod-a100-80-2x8")
    assert (
        find_op_placement(
            plan, chain, many, TrainingJob(MODEL), named="superpod-a100-80-2x8"
        )
        is None
    )
    line = capture_chain(TrainingJob("mlp?depth=2", optimizer="sgd"), machine)
    assert (
        find_op_placement(
            plan, line, machine, TrainingJob("mlp?depth=2"), named="pcie-a100-4"
        )
        is None
    )
