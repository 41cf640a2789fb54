from __future__ import annotations

import json
import sys
import time

import pytest

import gnnplace
from gnnplace.placers.contract import training_chain
from gnnplace.placing.first_answer import Plain, writing_first_answer
from gnnplace.problem import write_problem


@pytest.fixture
def path(tmp_path):
    write_problem(tmp_path / "problem.json", training_chain())
    return tmp_path


def answered(path, what):
    output = path / "placement.json"
    with writing_first_answer(str(path / what), None, 1, str(output), {"x-mine": 1}):
        end = time.monotonic() + 60
        while not output.exists() and time.monotonic() < end:
            time.sleep(0.05)
    return output


def test_a_first_answer_is_what_simulate_says_of_it(path, capfd):
    output = answered(path, "problem.json")
    placement, problem = gnnplace.read_placement_for(str(output), training_chain())
    simulation = gnnplace.simulate(problem, placement)
    assert simulation.feasible
    assert placement.predicted_step_time == pytest.approx(
        simulation.step_time, rel=1e-12
    )
    assert json.loads(output.read_text())["x-mine"] == 1
    assert "first answer (single)" in capfd.readouterr().err


def test_a_first_answer_that_is_not_needed_any_more_is_given_up(path):
    begin = time.monotonic()
    with writing_first_answer(str(path / "problem.json"), None, 1, "none", {}):
        pass
    assert time.monotonic() - begin < 30
    assert sys.executable


def test_memory_is_kept():
    problem = training_chain(memory=48.0)
    result = Plain().place(problem)
    assert result.simulation.feasible
    assert result.note != "single"


def test_the_bound_of_a_first_answer_is_one():
    problem = training_chain()
    result = Plain().place(problem)
    assert (
        0 < result.lower_bound <= gnnplace.place(problem, placer="single").lower_bound
    )


def test_a_model_has_no_problem_file():
    assert gnnplace.is_problem_file("anything.json")
    assert not gnnplace.is_problem_file("inception-v3")
