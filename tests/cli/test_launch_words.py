"""`explain FILE --words`: what a launch file says, without model, cluster and torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gnnplace.cli.main import run

SCRIPT = """#!/bin/bash
T=$1
torchrun --nproc_per_node 8 --nnodes ${SLURM_NNODES:-2} pretrain_gpt.py --num-layers 8 \\
  --hidden-size 256 --num-attention-heads 8 --seq-length 128 --vocab-size 512 --swiglu --bf16 \\
  --tensor-model-parallel-size $T --sequence-parallel --micro-batch-size 2 --global-batch-size 32 \\
  --fp8-format hybrid --brand-new-flag
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    return str(path)


def test_words_have_values_lines_and_defaults(script, capsys):
    assert run(["explain", script, "--words", "--json", "--set", "T=4"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data) == {"launcher", "words", "sizes", "not_priced", "needs", "notes"}
    assert data["launcher"] == "megatron-lm"
    assert data["words"]["tp"] == {"value": 4, "line": 5, "default": False}
    assert data["words"]["zero"] == {"value": 0, "line": None, "default": True}
    assert data["words"]["precision"]["value"] == "bf16-master"
    assert data["sizes"]["num_hidden_layers"] == 8
    assert data["sizes"]["head_dim"] == 32
    (entry,) = data["not_priced"]
    assert (entry["key"], entry["line"]) == ("--fp8-format", 6)
    assert data["notes"] == [
        "flags that are not known, and not priced: --brand-new-flag",
        "defaults of the script, where nothing is set: SLURM_NNODES=2",
    ]
    assert run(["explain", script, "--words", "--set", "1=4"]) == 0
    text = capsys.readouterr().out
    assert "tp = 4  (line 5)" in text
    assert "not priced: line 6: --fp8-format" in text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            [],
            "run.sh: --tensor-model-parallel-size needs T; only the run's environment",
        ),
        (["--set", "T"], "--set T: must be NAME=VALUE"),
        (["--set", "T=1", "--set", "T=2"], "--set T: is given twice"),
        (["--from", "nemoo"], "launcher 'nemoo': unknown"),
    ],
)
def test_what_cannot_be_read_is_one_line(options, told, script, capsys):
    assert run(["explain", script, "--words", *options]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_what_a_file_leaves_open_is_filled_by_options(tmp_path, capsys):
    path = tmp_path / "ds.json"
    path.write_text(
        '{"gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"},\n'
        ' "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}'
    )
    model = "hf:llama?num_hidden_layers=4&hidden_size=512&num_attention_heads=8&vocab_size=512"
    price = [
        "plan",
        f"{model}&length=128",
        "--given",
        str(path),
        "--cluster",
        "nvlink-a100-8",
    ]
    assert run([*price, "--batch", "64"]) == 2
    assert (
        "ds.json: does not say microbatch_size: give --microbatch-size"
        in capsys.readouterr().err
    )
    filled = [*price, "--batch", "64", "--microbatch-size", "2", "--json"]
    assert run([*filled, "--precision", "bf16-master"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["step_time"] > 0
    assert data["framework"] == "pytorch"  # whose constants have ZeRO 3
    assert any("offload_param" in line for line in data["notes"])


def test_words_need_no_torch_and_few_modules(script):
    """It starts Python once: half a second to one, of which most is imports (563 modules)."""
    code = (
        "import sys; from gnnplace.cli.main import run; "
        f"run(['explain', {script!r}, '--words', '--set', 'T=4', '--quiet']); "
        "heavy = {'torch', 'numba', 'scipy', 'networkx'} & set(sys.modules); "
        "sys.exit(f'{heavy} {len(sys.modules)}' if heavy or len(sys.modules) > 620 else 0)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr


ACCELERATE = """# gnnplace: {"batch": 64, "microbatch_size": 2}
distributed_type: FSDP
mixed_precision: bf16
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}
"""


def test_a_file_of_one_launcher_becomes_one_of_another(script, tmp_path, capsys):
    written = str(tmp_path / "ds.json")
    told = ["convert", script, "--to", "deepspeed", "--set", "T=4", "-o", written]
    assert run(told) == 0
    lines = capsys.readouterr().out
    assert "not carried: line 6: --fp8-format" in lines
    assert "not carried: sp:" in lines
    assert run(["explain", written, "--words", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["launcher"] == "deepspeed"
    assert data["words"]["tp"]["value"] == 4
    assert data["words"]["microbatch_size"]["value"] == 2
    assert (
        run(["convert", script, "--to", "accelerat", "--set", "T=4", "-o", written])
        == 2
    )
    assert "did you mean 'accelerate'" in capsys.readouterr().err


def test_devices_that_a_file_does_not_say_are_filled(tmp_path, capsys):
    path = tmp_path / "accelerate.yaml"
    path.write_text(ACCELERATE)
    told = ["convert", str(path), "--to", "torchtitan", "-o", str(tmp_path / "plan.py")]
    assert run([*told, "--model", "hf:llama"]) == 2
    assert "give --gpus N" in capsys.readouterr().err
    assert run(["explain", str(path), "--words", "--json", "--gpus", "16"]) == 0
    words = json.loads(capsys.readouterr().out)["words"]
    assert words["dp"]["value"] == 16
    path.write_text(f"{ACCELERATE}num_processes: 8\n")
    assert run(["explain", str(path), "--words", "--gpus", "16"]) == 2
    assert "--gpus 16: the launch file says 8; leave it out" in capsys.readouterr().err


def test_a_slow_run_is_explained_by_its_launch_file(script, capsys):
    told = ["explain", script, "--set", "T=4", "--cluster", "dgx-h100-2x8", "--json"]
    assert run([*told, "--measured", "10s"]) == 0
    data = json.loads(capsys.readouterr().out)
    first = data["suspects"][0]
    assert first["share"] > 0
    assert first["seconds"] == pytest.approx(10.0 - data["step_time"], rel=0.01)
    assert run([*told[:-1], "--measured", "1us"]) == 0
    text = capsys.readouterr().out
    assert "faster than predicted: nothing of the run is slow" in text


def test_a_plan_for_servers_of_two_kinds_reaches_a_launcher(tmp_path, capsys):
    cluster, plan, script = (
        str(tmp_path / name) for name in ("mine.yaml", "plan.json", "run.sh")
    )
    (tmp_path / "mine.yaml").write_text(
        "servers:\n  - {gpus: 2, kind: h100}\n  - {gpus: 2, kind: a100-80}\n"
        "network: {bandwidth: 400Gb/s}\n"
    )
    asked = ["plan", "llama-3.1-8b", "--cluster", cluster, "--launcher", "megatron-lm"]
    assert run([*asked, "-o", plan]) == 0
    data = json.loads((tmp_path / "plan.json").read_text())
    assert data["lower_bound"] == pytest.approx(data["step_time"], rel=1e-6)
    assert run(["convert", plan, "--to", "megatron-lm", "-o", script]) == 0
    assert (
        "--pipeline-model-parallel-layout 'Et*24|t*8L'"
        in (tmp_path / "run.sh").read_text()
    )
    capsys.readouterr()
    even = "tp=2,pp=2,sp=on,microbatch_size=2"
    assert (
        run([*asked[:-2], "--framework", "megatron-lm", "--given", even, "--json"]) == 0
    )
    given = json.loads(capsys.readouterr().out)
    assert given["step_time"] > 1.2 * data["step_time"]
