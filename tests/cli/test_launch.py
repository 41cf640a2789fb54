"""Plans out to launchers and back, and explained, on the command line."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from gnnplace.cli.main import run
from gnnplace.launch.registry import read_launch_file
from gnnplace.launch.torchtitan import MODELS
from gnnplace.plans.launchers import NAMES
from tests.cli.pages import DOCS

MODEL = "hf:gpt2?n_layer=2&n_embd=64&n_head=4&vocab_size=128&n_positions=32&length=32"
ON = ["--cluster", "nvlink-a100-8"]


def test_a_plan_goes_out_comes_back_and_is_explained(tmp_path, capsys):
    """It takes some seconds: four commands capture the model."""
    plan, script, back = (
        str(tmp_path / x) for x in ("plan.json", "train.sh", "back.json")
    )
    words = "dp=2,tp=2,pp=2,microbatch_size=2,layers=1+1,zero=1"
    asked = [
        "--batch",
        "16",
        "--precision",
        "bf16-master",
        "--given",
        words,
        "-o",
        plan,
    ]
    assert run(["plan", MODEL, *ON, *asked]) == 0
    assert json.loads(Path(plan).read_text())["model"] == MODEL
    assert run(["convert", plan, "--to", "megatron-lm", "-o", script]) == 0
    assert "not carried" not in capsys.readouterr().out
    assert run(["convert", script, "--from", "megatron-lm", *ON, "-o", back]) == 0
    one, other = (json.loads(Path(path).read_text()) for path in (plan, back))
    assert other["step_time"] == pytest.approx(one["step_time"])
    assert [s["placements"] for s in other["stages"]] == [
        s["placements"] for s in one["stages"]
    ]
    capsys.readouterr()
    assert run(["explain", plan, "--json", "--measured", "3s"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bound"] == "host"  # a toy: its kernels take microseconds
    assert sum(found["parts"].values()) == pytest.approx(found["step_time"])
    assert found["changes"][0]["step_time"] < found["step_time"]
    assert found["measured"]["seconds"] == 3.0
    gaps = [abs(x["seconds"] - (3.0 - found["step_time"])) for x in found["suspects"]]
    assert gaps == sorted(gaps)
    assert run(["explain", plan, "--measured", "1us"]) == 0
    told = capsys.readouterr().out
    assert "faster than predicted" in told
    assert "bound by launches that kernels wait for" in told
    assert run(["explain", script, "--cluster", "dgx-h100-2x8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["parts"].values()) == pytest.approx(found["step_time"])
    yaml = tmp_path / "config.yaml"
    assert run(["convert", plan, "--to", "accelerate", "-o", str(yaml)]) == 3
    assert "no pipeline stages" in capsys.readouterr().err
    assert not yaml.exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["convert", "FILE", "-o", "OUT"], "give --from FORMAT, or --to LAUNCHER"),
        (["convert", "FILE", "--to", "slurm", "-o", "OUT"], "cannot be read"),
        (
            ["convert", "FILE", "--from", "megatron", "-o", "OUT"],
            "did you mean 'megatron-lm'",
        ),
        (
            ["convert", "FILE", "--from", "accelerate", "-o", "OUT"],
            "--cluster: is needed",
        ),
        (
            ["convert", "FILE", "--from", "accelerate", *ON, "-o", "OUT"],
            "cannot be read",
        ),
        (["plan", *ON, "--given", "dp=2"], "MODEL: is missing"),
        (["explain", "FILE"], "cannot be read"),
        (["explain", "FILE", "FILE", "--measured", "1s"], "is of a plan"),
    ],
)
def test_what_is_missing_is_one_line(words, told, tmp_path, capsys):
    put = {"FILE": str(tmp_path / "none"), "OUT": str(tmp_path / "out")}
    assert run([put.get(word, word) for word in words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_file_of_json_is_priced_as_the_launchers_others_are(tmp_path, capsys):
    """DeepSpeed's file has no sizes; a model that is no decoder is captured instead, in 2 s."""
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": 16, "zero_optimization": {"stage": 1}}')
    assert run(["plan", MODEL, *ON, "--given", str(path)]) == 0
    assert "as megatron-deepspeed trains" in capsys.readouterr().out
    assert run(["plan", "mlp", *ON, "--given", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["batch"] == 16


@pytest.mark.parametrize("name", NAMES)
def test_the_five_steps_of_every_launchers_page_lead_to_a_file(
    name, tmp_path, monkeypatch, capsys
):
    """Up to 6 s: plans of 64 GPUs are enumerated. Accelerate's own parser reads its file."""
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "launchers" / f"{name}.md").read_text()
    command = next(
        x for x in re.findall("`(gnnplace plan MODEL [^`]*)`", page) if name in x
    )
    words = shlex.split(command.replace("MODEL", f"'{MODELS['llama3_8b'][1].model}'"))[
        1:
    ]
    assert run(words) == 0
    file = Path(words[-1])
    last = re.search(r"(?m)^5\. .*", page)
    assert last is not None
    assert file.stem in last[0]  # what starts the run names it
    plan = read_launch_file(file, name)
    assert plan.dp is None or plan.world == 64
    if name == "accelerate":
        from accelerate.commands.launch import (
            _validate_launch_command,
            launch_command_parser,
        )

        args = launch_command_parser().parse_args(
            ["--config_file", str(file), "train.py"]
        )
        assert _validate_launch_command(args)[0].num_processes == 64
    else:
        assert plan.batch == 512
    if plan.sizes is not None:
        said = capsys.readouterr().out.splitlines()
        assert run(["plan", "--given", str(file), "--cluster", "dgx-h100-8x8"]) == 0
        again = capsys.readouterr().out.splitlines()
        step = re.compile(r": (\S+) s a step, predicted")
        (found,), (read,) = (step.findall(" ".join(lines)) for lines in (said, again))
        assert float(read) == pytest.approx(float(found), rel=1e-3)


def test_a_module_of_torchtitan_is_no_toml(tmp_path, capsys):
    output = str(tmp_path / "plan.toml")
    question = [
        "plan",
        "llama-3.1-8b",
        "--cluster",
        "8xH100",
        "--launcher",
        "torchtitan",
    ]
    assert run([*question, "-o", output]) == 2
    assert "is a Python module" in capsys.readouterr().err
    assert run(["convert", "plan.json", "--to", "torchtitan", "-o", output]) == 2
    assert "end it with .py" in capsys.readouterr().err
