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
        ([], "run.sh: --tensor-model-parallel-size needs T; only the run's environment"),
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
    price = ["plan", f"{model}&length=128", "--given", str(path), "--cluster", "nvlink-a100-8"]
    assert run([*price, "--batch", "64"]) == 2
    assert (
        "ds.json: does not say microbatch_size: give --microbatch-size" in capsys.readouterr().err
    )
    filled = [*price, "--batch", "64", "--microbatch-size", "2", "--json"]
    assert run([*filled, "--precision", "bf16-master"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["step_time"] > 0
    assert data["framework"] == "pytorch"  # whose constants have ZeRO 3
    assert any("offload_param" in line for line in data["notes"])


def test_words_need_no_torch(script):
    """It starts Python once, 0.8 s."""
    code = (
        "import sys; from gnnplace.cli.main import run; "
        f"run(['explain', {script!r}, '--words', '--set', 'T=4', '--quiet']); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
