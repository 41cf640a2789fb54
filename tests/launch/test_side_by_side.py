"""Each launcher's fastest plan side by side: one price on every road, and files that say it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import gnnplace
from gnnplace.cli.main import run
from gnnplace.errors import InfeasibleError, InputError, MismatchError
from gnnplace.launch.registry import LAUNCHERS
from gnnplace.plans.plan import OWN, Plan
from gnnplace.report.side_by_side import short_words, side_by_side_lines

MODEL, CLUSTER, BATCH = "HuggingFaceTB/SmolLM2-135M", "4xH100", 16


@pytest.fixture(scope="module")
def best() -> Plan:
    """Return the default answer for a small model."""
    return gnnplace.plan(MODEL, CLUSTER, batch=BATCH)[0]


def test_the_answer_is_the_fastest_of_the_alternatives(best):
    alternatives = best.file.alternatives
    assert set(alternatives) == {*LAUNCHERS, OWN}
    steps = [
        entry.step_time
        for entry in alternatives.values()
        if entry.step_time is not None
    ]
    assert steps == sorted(steps)
    assert best.file.step_time == steps[0]
    assert best.file.lower_bound == pytest.approx(best.file.step_time)
    for name, entry in alternatives.items():
        assert entry.feasible == (entry.reason is None)
        if entry.plan is None:
            assert entry.reason.startswith(name)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launchers_file_has_the_price_of_its_plan(best, launcher, tmp_path):
    entry = best.file.alternatives[launcher]
    if entry.plan is None:
        with pytest.raises(InfeasibleError, match=launcher):
            gnnplace.export_plan(best, launcher)
        return
    made = gnnplace.export_plan(best, launcher)
    path = tmp_path / "file"
    path.write_text(made.text)
    plan = gnnplace.read_launch_file(str(path), launcher)
    answer = gnnplace.price_launch_plan(
        plan, launcher, CLUSTER, model=MODEL, batch=BATCH
    )
    assert answer.answer.step_time == pytest.approx(entry.step_time, rel=1e-9)
    assert made.seconds == pytest.approx(entry.step_time, rel=1e-9)


def test_a_plan_in_words_is_priced_from_its_file_as_it_was_found(best, tmp_path):
    best.save(tmp_path / "plan.json")
    plan = gnnplace.read_plan(tmp_path / "plan.json")
    again = gnnplace.plan(MODEL, CLUSTER, given=plan)[0]
    assert again.step_time == pytest.approx(best.step_time, rel=1e-12)
    assert again.file.memory == best.file.memory
    with pytest.raises(MismatchError, match="other sizes"):
        gnnplace.plan("HuggingFaceTB/SmolLM2-360M", CLUSTER, given=plan)


def test_a_plan_in_words_is_explained_by_its_framework(best):
    explained = gnnplace.explain_plan(best, measured=2 * best.step_time)
    assert explained.answer.answer.step_time == pytest.approx(best.step_time, rel=1e-12)
    assert sum(explained.parts.values()) == pytest.approx(best.step_time, rel=1e-6)
    assert explained.causes


def test_a_framework_is_asked_for_alone():
    plan = gnnplace.plan(MODEL, CLUSTER, batch=BATCH, framework="pytorch")[0]
    assert set(plan.file.alternatives) == {"accelerate", OWN}
    assert plan.file.framework == "pytorch"
    with pytest.raises(InputError, match="known by their sizes"):
        gnnplace.plan("mlp", "cpu:2", framework="pytorch")


def test_one_launcher_has_several_plans():
    plans = gnnplace.plan(MODEL, CLUSTER, batch=BATCH, launcher="megatron-lm", top=3)
    steps = [plan.step_time for plan in plans]
    assert len(plans) == 3
    assert steps == sorted(steps)
    assert {plan.file.launcher for plan in plans} == {"megatron-lm"}


def test_few_devices_are_enough_for_a_rate():
    plan = gnnplace.plan(
        MODEL, CLUSTER, batch=BATCH, launcher=OWN, goal="gpus", rate=1e3
    )[0]
    assert len(plan.file.memory) == 1
    assert plan.file.rate >= 1e3


def test_the_table_has_a_row_for_every_launcher(best):
    lines = side_by_side_lines(best)
    for name in best.file.alternatives:
        assert any(line.split()[0].rstrip(":") == name for line in lines[1:])
    assert short_words("pp=3,layers=2+2+1,batch=8") == "pp=3,layers=2x2+1"


def test_a_search_that_ran_out_of_time_says_so_in_the_table(best):
    name, entry = next(iter(best.file.alternatives.items()))
    bound = 0.9 * entry.plan.step_time
    cut = entry.model_copy(
        update={"plan": entry.plan.model_copy(update={"lower_bound": bound})}
    )
    alternatives = {**best.file.alternatives, name: cut}
    file = best.file.model_copy(update={"alternatives": alternatives})
    assert not any("ran out of time" in line for line in side_by_side_lines(best))
    (line,) = [
        line
        for line in side_by_side_lines(replace(best, file=file))
        if "ran out of time" in line
    ]
    assert line.strip().startswith(f"{name}: ")
    assert "10.0% faster" in line


def test_the_command_writes_a_plan_that_is_converted_without_torch(tmp_path):
    path, script = tmp_path / "plan.json", tmp_path / "run.sh"
    code = f"""
import sys
from gnnplace.cli import run_and_exit
model = ["plan", "{MODEL}", "--cluster", "{CLUSTER}", "--batch", "{BATCH}", "--json"]
convert = ["convert", r"{path}", "--to", "megatron-lm", "-o", r"{script}"]
for words in ([*model, "--framework", "megatron-lm", "-o", r"{path}"], convert):
    try:
        assert run_and_exit(words) == 0
    except SystemExit as end:
        assert not end.code
assert "torch" not in sys.modules
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    answer = json.loads(run.stdout[: run.stdout.rindex("}") + 1])
    assert set(answer["alternatives"]) == {"megatron-lm", "megatron-bridge"}
    assert answer["plan"]["launcher"] in answer["alternatives"]
    assert "--bf16" in Path(script).read_text()


def test_where_nothing_fits_the_answer_says_what_is_lacking():
    plan = gnnplace.plan("meta-llama/Llama-3.1-405B", "1xRTX4090")[0]
    assert not plan.feasible
    assert "nothing fits" in plan.reason
    assert "take at least" in plan.reason
    with pytest.raises(InfeasibleError, match="megatron-lm: nothing fits"):
        gnnplace.plan("meta-llama/Llama-3.1-405B", "1xRTX4090", launcher="megatron-lm")


@pytest.mark.parametrize(
    ("launcher", "precision", "words"),
    [
        (
            "megatron-lm",
            "bf16-mixed",
            "half parameters .* take --precision bf16-master",
        ),
        ("nanotron", "16-mixed", "bf16 parameters .* take --precision bf16-master"),
        ("torchtitan", "16-mixed", "fp32 parameters .* take --precision bf16-mixed"),
        ("accelerate", "16-master", "fp32 parameters; take --precision 16-mixed"),
    ],
)
def test_a_precision_that_a_launcher_lacks_is_said(launcher, precision, words):
    """With what it has instead."""
    message = f"{launcher}: precision {precision}: .*{words}"
    with pytest.raises(InfeasibleError, match=message):
        gnnplace.plan("llama-3.2-1b", "8xH100", launcher=launcher, precision=precision)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (MODEL, "dp=4,microbatch_size=1,zero=1"),
        (
            "mistralai/Mixtral-8x7B-v0.1",
            "dp=4,tp=2,ep=4,etp=1,microbatch_size=1,zero=1",
        ),
        (MODEL, "dp=4,microbatch_size=1,recompute=modules:layernorm+mlp"),
    ],
)
def test_words_that_are_given_for_a_launcher_have_its_price(
    model, words, tmp_path, capsys
):
    """The plan, the table of its framework, and the launcher's file answer alike."""
    cluster = "8xH100" if "tp=2" in words else CLUSTER
    words = f"{words},batch={BATCH}"
    for launcher in ("megatron-lm", "megatron-bridge"):
        plan = gnnplace.plan(model, cluster, given=words, launcher=launcher)[0]
        assert plan.file.launcher == launcher
        assert plan.file.framework == "megatron-lm"
        path = tmp_path / f"{launcher}.txt"
        path.write_text(gnnplace.export_plan(plan, launcher).text)
        read = gnnplace.read_launch_file(str(path), launcher)
        answer = gnnplace.price_launch_plan(read, launcher, cluster, model=model)
        assert answer.answer.step_time == pytest.approx(plan.step_time, rel=1e-9)
    command = ["plan", model, "--cluster", cluster, "--framework", "megatron-lm"]
    assert run([*command, "--given", words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows["step_time"] == pytest.approx(plan.step_time, rel=1e-9)
