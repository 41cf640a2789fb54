from __future__ import annotations

import csv
import io
import json

import pytest

import gnnplace
from gnnplace.cli.main import run
from gnnplace.errors import InputError
from gnnplace.problem.cluster import Cluster, Device

MODEL = "hf:llama?hidden_size=2048&num_hidden_layers=16&num_attention_heads=32&length=2048&batch=64"
ROWS = "dp,tp,microbatch_size,x-name\n4,2, 2,a\n1,3,1,b\n8,,4,c\n"


def test_answers_keep_the_rows_as_they_were_written(tmp_path, capsys):
    plans, answers = tmp_path / "plans.csv", tmp_path / "answers.csv"
    plans.write_text(ROWS)
    command = ["plan", MODEL, "--cluster", "nvswitch-h100-8", "--given", str(plans),
               "--framework", "nanotron", "-o", str(answers)]  # fmt: skip
    assert run(command) == 0
    told = capsys.readouterr().out.splitlines()
    found = list(csv.DictReader(io.StringIO(answers.read_text())))
    assert answers.read_text().splitlines()[1].startswith("4,2, 2,a,")
    assert [row["x-name"] for row in found] == ["a", "b", "c"]
    assert [row["feasible"] for row in found] == ["true", "false", "true"]
    assert found[1]["step_time"] == ""
    assert "no multiple of 3 shards" in found[1]["reason"]
    fastest = min((0, 2), key=lambda k: float(found[k]["step_time"]))
    assert f"x-name={found[fastest]['x-name']}" in told[2]


def test_a_table_without_framework_is_priced_as_plans_in_words_are(tmp_path):
    """Nothing else is captured or priced than for a plan alone: two captures, 2 s of processor."""
    plans = tmp_path / "plans.csv"
    plans.write_text("pp,dp,microbatch_size,x-a\n2,,2,b\n9,1,1,c\n")
    priced = gnnplace.price_plans("mlp?batch=8", "nvlink-a100-8", plans)
    (plan,) = gnnplace.plan(
        "mlp?batch=8", "nvlink-a100-8", given="pp=2,microbatch_size=2"
    )
    assert priced.answers[0].step_time == plan.step_time
    assert "has 8 devices" in priced.answers[1].reason


def test_what_a_framework_does_not_price_is_said():
    with pytest.raises(
        InputError, match="--framework nanotron: prices decoders of text"
    ):
        gnnplace.price_plans("mlp", "nvlink-a100-8", "dp=2", framework_name="nanotron")
    with pytest.raises(InputError, match="prices decoders of text"):
        gnnplace.price_plans(MODEL, "pcie-t4-4", "dp=2", framework_name="nanotron")


def test_a_framework_is_searched_for_decoders_alone(capsys):
    asked = ["--cluster", "nvswitch-h100-8", "--framework", "nanotron"]
    assert run(["plan", MODEL, *asked, "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["alternatives"]) == ["nanotron"]
    assert run(["plan", "mlp", *asked]) == 2
    assert "is no decoder of text that is known by its sizes" in capsys.readouterr().err


def test_one_plan_in_words_answers_as_any_plan_does(capsys):
    command = ["plan", MODEL, "--cluster", "nvswitch-h100-8", "--given", "tp=8",
               "--environment", "checked-collectives", "--json"]  # fmt: skip
    assert run(command) == 0
    found = json.loads(capsys.readouterr().out)
    low, high = found["interval"]
    assert low < found["step_time"] < high
    assert found["feasible"] is True
    assert found["reason"] is None
    # 64 micro-batches x 16 layers x 10 collectives x 8 ranks x 0.21 ms on the host.
    assert found["step_time"] > 64 * 16 * 10 * 8 * 2.1e-4


def test_costs_show_names_what_is_assumed(capsys):
    assert (
        run(["costs", "show", "--cluster", "dgx-h100-2x8", "--framework", "nanotron"])
        == 0
    )
    told = capsys.readouterr().out
    assert "servers of 8" in told
    assert "framework nanotron:" in told
    assert "products.a100" not in told


def test_a_kind_without_constants_is_named():
    devices = (Device(name="gpu:0", kind="toaster", memory=1.8e11),)
    with pytest.raises(InputError, match="toaster: has no constants of a step"):
        gnnplace.price_plans(
            MODEL, Cluster(devices, (), "x"), "dp=1", framework_name="nanotron"
        )


def test_captured_launches_of_any_model_wait_for_no_host(tmp_path):
    """An MLP of eight examples waits for launches on an A100; its bytes are the same."""
    plans = tmp_path / "plans.csv"
    plans.write_text(
        "pp,microbatch_size,cuda_graphs,compile\n1,8,,\n1,8,iteration,\n1,8,,on\n"
    )
    eager, graphs, fused = gnnplace.price_plans(
        "mlp?batch=8", "nvlink-a100-8", plans
    ).answers
    assert graphs.step_time < 0.9 * eager.step_time
    assert graphs.peak == eager.peak
    assert "priced and run as eager PyTorch" in fused.reason
