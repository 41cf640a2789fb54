from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from gnnplace.cli.main import run
from gnnplace.sharding.solver import search
from tests.costs.test_nccl_tests import new
from tests.sharding.problems import clique, every_point, random_problem, write_files

SMALL = "mlp?depth=1&width=64&batch=8"
TITLE = "{http://www.w3.org/2000/svg}title"


@pytest.fixture
def problem():
    return random_problem(5, nodes=4, edges=6, memory=True)


@pytest.fixture
def path(tmp_path, problem):
    return str(write_files(tmp_path, problem))


def make_plan_answer(arguments, capsys):
    assert run(arguments) == 0
    return json.loads(capsys.readouterr().out)


def failure(arguments, capsys):
    code = run(arguments)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return code, error


def test_the_best_strategy(problem, path, capsys):
    answer = make_plan_answer(["shard", path, "--json"], capsys)
    assert set(answer) == {"cost", "memory", "configuration", "seconds", "exact"}
    configuration = tuple(answer["configuration"][name] for name in problem.names)
    assert answer["cost"] == problem.value(configuration)
    assert answer["memory"] == problem.bytes(configuration)
    assert answer["cost"] == pytest.approx(
        min(cost for cost, _ in every_point(problem))
    )
    assert answer["exact"] is True
    assert 0 < answer["seconds"] < 1


def test_in_words(problem, path, capsys):
    assert run(["shard", path]) == 0
    text = capsys.readouterr().out
    assert "proven best" in text
    assert all(name in text for name in problem.names)


def test_a_fault_is_one_line_and_exit_2(tmp_path, path, capsys):
    np.savez(tmp_path / "random.npz", other=np.ones(2))  # No table is left.
    code, error = failure(["shard", path, "--json"], capsys)
    assert code == 2
    assert "edges[0].cost: the npz file has no array" in error
    code, error = failure(["shard", str(tmp_path / "none.json")], capsys)
    assert code == 2
    assert "none.json" in error


def test_the_frontier_is_a_list(problem, path, capsys):
    answers = make_plan_answer(["shard", path, "--pareto", "--json"], capsys)
    costs, memories = [a["cost"] for a in answers], [a["memory"] for a in answers]
    assert costs == sorted(costs)
    assert memories == sorted(memories, reverse=True)
    assert costs[0] == pytest.approx(min(cost for cost, _ in every_point(problem)))
    assert memories[-1] == pytest.approx(
        min(memory for _, memory in every_point(problem))
    )
    assert run(["shard", path, "--pareto", "--epsilon", "0.1"]) == 0
    assert "strategies (within 0.1" in capsys.readouterr().out


def test_the_best_within_a_limit(problem, path, capsys):
    points = every_point(problem)
    limit = sorted(memory for _, memory in points)[len(points) // 4]
    answer = make_plan_answer(
        ["shard", path, "--memory-limit", str(limit), "--json"], capsys
    )
    assert answer["memory"] <= limit
    assert answer["cost"] == pytest.approx(min(t for t, m in points if m <= limit))
    code, error = failure(["shard", path, "--memory-limit", "0"], capsys)
    assert code == 3
    assert "smallest takes" in error


def test_an_error_without_a_frontier_is_refused(path, capsys):
    code, error = failure(["shard", path, "--epsilon", "0.1"], capsys)
    assert code == 2
    assert "--pareto" in error


def test_models_and_devices_are_checked(path, capsys):
    assert "zoo name" in failure(["shard", "nothing"], capsys)[1]
    assert "--devices" in failure(["shard", SMALL, "--devices", "0"], capsys)[1]
    assert "--devices" in failure(["shard", path, "--devices", "4"], capsys)[1]


def test_faster_links_cost_less(capsys):
    network = ["shard", SMALL, "--devices", "4", "--json"]
    slow = make_plan_answer([*network, "--bandwidth", "1e9"], capsys)
    fast = make_plan_answer([*network, "--bandwidth", "1e11"], capsys)
    assert fast["cost"] < slow["cost"]
    assert "bandwidth" in failure([*network, "--bandwidth", "0"], capsys)[1]


def test_the_frontier_is_drawn(problem, path, tmp_path, capsys):
    for name in ("f.svg", "f.html"):
        drawn = tmp_path / name
        assert run(["shard", path, "--pareto", "-o", str(drawn)]) == 0
        printed = capsys.readouterr().out
        told = [
            e
            for e in ElementTree.fromstring(drawn.read_text()).iter()
            if e.tag == TITLE
        ]
        knee = "knee" in printed
        assert len(told) == printed.count("\n") - 3 + knee
        assert ("knee:" in drawn.read_text()) == knee


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--pareto", "-o", "f.png"], ".svg or .html"),
        (["-o", "f.svg"], "--pareto"),
        (["--executable"], "no model to run"),
        (["--pareto", "--epsilon", "-1"], "epsilon"),
        (["--pareto", "--memory-limit", "-5"], "--memory-limit -5"),
    ],
)
def test_options_that_make_no_sense_are_refused(path, options, told, capsys):
    code, error = failure(["shard", path, *options], capsys)
    assert code == 2
    assert told in error


def test_a_problem_without_memory_has_no_frontier_to_draw(tmp_path, capsys):
    path = str(write_files(tmp_path, random_problem(5, nodes=4, edges=6)))
    code, error = failure(
        ["shard", path, "--pareto", "-o", str(tmp_path / "f.svg")], capsys
    )
    assert code == 2
    assert "memory" in error


def test_beyond_the_memory_limit_the_answer_says_its_gap(tmp_path, monkeypatch, capsys):
    path = str(write_files(tmp_path, clique(8, 6)))
    monkeypatch.setattr(search, "LARGE", 0)
    # No table may be kept: only bounds are left.
    monkeypatch.setattr(search, "MEMORY_LIMIT", 1.0)
    answer = make_plan_answer(["shard", path, "--json"], capsys)
    assert answer["exact"] is False
    assert answer["bound"] < answer["cost"]
    assert run(["shard", path]) == 0
    assert "of it above the best" in capsys.readouterr().out


def test_a_cluster_says_what_collectives_take(tmp_path, capsys):
    """A faster fabric costs less; devices are the cluster's; a log of one's own goes before it."""
    asked = ["shard", SMALL, "--flops", "1e6", "--json", "--cluster"]
    slow = make_plan_answer([*asked, "pcie-rtx-pro-6000-8"], capsys)
    fast = make_plan_answer([*asked, "nvswitch-b200-8"], capsys)
    assert fast["cost"] < slow["cost"]
    log = tmp_path / "nccl.log"
    log.write_text(new(), encoding="utf-8")
    own = make_plan_answer([*asked, "pcie-a100-8", "--links", str(log)], capsys)
    assert fast["cost"] < own["cost"] < slow["cost"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--cluster", "pcie-a100-8"], "its links name no measured fabric"),
        (["--cluster", "nvswitch-h100-8", "--devices", "16"], "has 8"),
        (
            ["--cluster", "nvswitch-h100-8", "--bandwidth", "1e9"],
            "--bandwidth, --cluster",
        ),
        (["--links", "nccl.log"], "--links: --cluster is needed"),
    ],
)
def test_what_a_cluster_does_not_go_with(arguments, told, capsys):
    code, error = failure(["shard", SMALL, *arguments], capsys)
    assert (code, told in error) == (2, True)


def test_the_least_memory_within_a_time(problem, path, capsys):
    points = every_point(problem)
    limit = sorted(time for time, _ in points)[len(points) // 4]
    arguments = ["shard", path, "--goal", "memory", "--time-limit", str(limit)]
    answer = make_plan_answer([*arguments, "--json"], capsys)
    assert answer["cost"] <= limit
    assert answer["memory"] == pytest.approx(min(m for t, m in points if t <= limit))
    assert answer["devices"] == problem.devices
    assert run(arguments) == 0
    text = capsys.readouterr().out
    assert text.startswith("least memory within")
    assert "proven least memory" in text
    code, error = failure([*arguments[:-1], "1e-30"], capsys)
    assert (code, "the fastest takes" in error) == (3, True)


def test_the_fewest_devices_within_limits(capsys):
    asked = ["shard", SMALL, "--flops", "1e6", "--devices"]
    points = {
        count: make_plan_answer([*asked, str(count), "--pareto", "--json"], capsys)
        for count in (1, 2, 4)
    }
    least = {count: answers[-1]["memory"] for count, answers in points.items()}
    assert least[1] > least[2] > least[4]
    goal = [*asked, "4", "--goal", "gpus"]
    memory = ["--memory-limit", f"{least[2]:.0f}"]
    fewest = make_plan_answer([*goal, *memory, "--json"], capsys)
    assert fewest["devices"] == 2
    assert fewest["memory"] <= least[2] + 1
    fastest = str(points[4][0]["cost"])
    assert (
        make_plan_answer([*goal, "--time-limit", fastest, "--json"], capsys)["devices"]
        == 4
    )
    assert run([*goal, *memory]) == 0
    text = capsys.readouterr().out
    assert "fewest devices within" in text
    assert "2 devices (on 1: memory limit: no strategy takes at most" in text
    code, error = failure([*goal, "--memory-limit", "1000"], capsys)
    assert (code, "no split on up to 4 devices" in error) == (3, True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--goal", "speed"], "must be one of time, memory, gpus"),
        (["--goal", "memory"], "needs --time-limit"),
        (["--goal", "gpus"], "needs --memory-limit or --time-limit"),
        (["--goal", "gpus", "--time-limit", "1"], "has its own number of devices"),
        (["--time-limit", "1"], "is for --goal memory and --goal gpus"),
        (
            ["--goal", "memory", "--time-limit", "1", "--memory-limit", "1"],
            "--memory-limit: is for",
        ),
        (
            ["--pareto", "--goal", "memory", "--time-limit", "1"],
            "--pareto finds every trade",
        ),
    ],
)
def test_goals_and_limits_that_make_no_sense_are_refused(path, options, told, capsys):
    code, error = failure(["shard", path, *options], capsys)
    assert (code, told in error) == (2, True), error
