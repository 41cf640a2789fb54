"""What a command prints is so: devices left idle, kinds played by the CPU, splits of nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gnnplace.cli.main import run
from gnnplace.placers import contract
from gnnplace.problem import write_problem


@pytest.fixture
def idle_path(tmp_path):
    problem = contract.training_chain()
    devices = problem.cluster.devices
    odd = (*devices[:-1], devices[-1].model_copy(update={"kind": "abacus"}))
    path = tmp_path / "problem.json"
    write_problem(path, replace(problem, cluster=replace(problem.cluster, devices=odd)))
    return str(path)


def test_devices_that_nothing_can_run_on_are_said(idle_path, tmp_path, capsys):
    output = str(tmp_path / "p.json")
    told = "no op has a time for kind 'abacus', so nothing can run on d2"
    assert run(["place", idle_path, "--placer", "etf", "-o", output]) == 0
    assert told in capsys.readouterr().err
    assert run(["simulate", idle_path, output, "--json"]) == 0
    captured = capsys.readouterr()
    assert told in captured.err
    assert json.loads(captured.out)["feasible"]
    assert run(["compare", idle_path, "--placers", "etf", "--budget", "0"]) == 0
    assert told in capsys.readouterr().err


def test_a_split_that_splits_nothing_is_called_one_device(capsys):
    slow = ["--bandwidth", "1000", "--devices", "2"]
    assert run(["shard", "mlp", *slow]) == 0
    out = capsys.readouterr().out
    assert "no layer is split: use one device" in out
    assert "times as fast as data parallelism on 2" in out


@pytest.mark.alone
def test_seconds_of_a_cpu_that_plays_a_gpu_are_not_compared(tmp_path, capsys):
    output, options = str(tmp_path / "p.json"), ["--cluster", "nvlink-a100-2"]
    place = [
        "place",
        "mlp?batch=4",
        *options,
        "--placer",
        "contiguous",
        "--budget",
        "0",
    ]
    assert run([*place, "--groups", "20", "-o", output]) == 0
    capsys.readouterr()
    execute = ["execute", "mlp?batch=4", output, *options, "--steps", "2", "--no-eager"]
    assert run([*execute, "--store", "none"]) == 0
    out = capsys.readouterr().out
    assert "not to be compared" in out
    assert "kind a100" in out
    assert run([*execute, "--store", "none", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["comparable"] is False


def test_fidelity_refuses_devices_that_are_not_here(tmp_path, capsys):
    code = run(
        ["fidelity", "mlp", "--cluster", "nvlink-a100-2", "-o", str(tmp_path / "f")]
    )
    assert code == 2
    assert "'a100' cannot be measured here" in capsys.readouterr().err
