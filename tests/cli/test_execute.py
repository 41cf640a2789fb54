"""`gnnplace execute MODEL plan.json`: words, JSON, exit codes."""

import json

import pytest

from gnnplace.cli.main import run

MODEL = "gpt2?layers=1&width=32&heads=2&vocabulary=64&length=16&batch=4"
WORDS = "pp=2,microbatch_size=1"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    where = str(tmp_path_factory.mktemp("plans") / "plan.json")
    assert (
        run(["plan", MODEL, "--cluster", "cpu:2", "--given", WORDS, "-o", where]) == 0
    )
    return where


def changed(path, target, change):
    """The plan's file after a change, in another file."""
    with open(path) as file:
        data = json.load(file)
    change(data)
    with open(target, "w") as file:
        json.dump(data, file)
    return str(target)


def test_a_plan_is_run_and_told_with_its_predicted_time(path, tmp_path, capsys):
    page = tmp_path / "page.html"
    args = ["execute", MODEL, path, "--steps", "2", "--train", "2", "--html", str(page)]
    assert run([*args, "--json"]) == 0
    assert "What a run of it gave" in page.read_text()
    answer = json.loads(capsys.readouterr().out)
    assert answer["verified"] is True
    assert answer["step_time"] > 0
    assert answer["predicted_step_time"] > 0
    assert len(answer["losses"]) == len(answer["losses_of_one_device"]) == 2


def test_times_on_cpus_are_said_to_be_estimated(path, capsys):
    assert run(["plan", MODEL, "--cluster", "cpu:2", "--given", WORDS]) == 0
    assert "times on CPUs are estimated" in capsys.readouterr().out


def test_broken_actions_are_one_line_and_exit_2(path, tmp_path, capsys):
    def change(data):
        data["actions"][0].remove("0SEND_F1")

    broken = changed(path, tmp_path / "broken.json", change)
    assert run(["execute", MODEL, broken]) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1
    assert told[0].endswith("broken.json: actions: 0SEND_F1 is missing")


def test_a_plan_of_another_model_fails_in_one_line(path, capsys):
    assert (
        run(["execute", MODEL.replace("width=32", "width=64"), path, "--train", "1"])
        == 2
    )
    told = capsys.readouterr().err.strip().splitlines()
    assert "made for another model" in told[-1]


def test_devices_of_a_preset_are_not_here(path, tmp_path, capsys):
    def change(data):
        for k, stage in enumerate(data["stages"]):
            stage["devices"] = [[[f"gpu:{k}"]]]
        data["memory"] = {
            f"gpu:{k}": own for k, own in enumerate(data["memory"].values())
        }
        data["cluster"] = "pcie-a100-2"

    other = changed(path, tmp_path / "other.json", change)
    assert run(["execute", MODEL, other]) == 2
    assert "'gpu:0' is no worker of this machine" in capsys.readouterr().err
