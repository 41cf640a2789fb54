"""Placements to start from: read, searched from, and never made worse."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import gnnplace
from gnnplace.cli.main import run
from gnnplace.errors import FormatError, InputError, MismatchError
from gnnplace.placers import SearchSpace, contract
from gnnplace.placers.starts import NOTE, read_start, space_with_start
from gnnplace.problem import write_problem
from gnnplace.problem.placement import Placement, write_placement
from gnnplace.train.data.random_families import RandomDraws, random_problem


@pytest.fixture(scope="module")
def problem():
    shape = RandomDraws(
        ops=(40, 60), devices=(4, 4), microbatches=(4,), clusters=("own",)
    )
    return random_problem("transformer", 3, shape)


@pytest.fixture(scope="module")
def good(problem):
    """What a search of some time finds."""
    return gnnplace.place(problem, placer="learned", budget=0.5)


@pytest.mark.parametrize(
    "placer", ["best", "learned", "gnn", "annealing", "etf", "single"]
)
def test_no_answer_is_worse_than_the_start(problem, good, placer):
    result = gnnplace.place(
        problem,
        placer=placer,
        budget=0.0,
        space=space_with_start(problem, good.placement),
    )
    assert result.step_time <= good.step_time
    assert result.simulation.feasible
    if placer == "single":
        assert result.note == NOTE
        assert result.lower_bound <= result.step_time


@pytest.mark.parametrize("placer", ["best", "learned", "annealing"])
def test_a_search_goes_on_from_the_start(problem, placer):
    """From devices that no decode gives, and with little time, more than the start is found."""
    space = SearchSpace(problem)
    units = np.random.default_rng(0).integers(4, size=problem.num_units)
    start = Placement(space.spread(space.allow(units)))
    before = gnnplace.simulate(problem, start).step_time
    result = gnnplace.place(
        problem, placer=placer, budget=0.05, space=space_with_start(problem, start)
    )
    assert result.step_time < before


def test_a_start_without_sequences_gets_them(problem, good):
    space = space_with_start(problem, Placement(good.placement.device))
    assert sorted(space.starts[0].order) == list(range(problem.num_ops))


def test_a_device_map_places_ops_by_module(tmp_path):
    problem = contract.training_chain(num_layers=4)
    names = [f"layers.{i // 2}" if i % 2 else "layers" for i in range(problem.num_ops)]
    problem = replace(problem, module=tuple(names), colocate=(None,) * problem.num_ops)
    path = tmp_path / "map.json"
    path.write_text(
        json.dumps({"layers.1": 1, "layers": problem.cluster.devices[0].name})
    )
    device = read_start(path, problem).device
    expected = [int(name == "layers.1") for name in names]
    assert device.tolist() == expected
    path.write_text(json.dumps({"heads": 0}))
    with pytest.raises(FormatError, match="names no module"):
        read_start(path, problem)
    path.write_text(json.dumps({"layers": 9}))
    with pytest.raises(FormatError, match=r"layers: no device is 9; the devices are "):
        read_start(path, problem)


def test_what_a_constraint_is_against_is_refused():
    problem = contract.training_chain()
    start = gnnplace.place(problem, placer="single", budget=0.0).placement
    device = problem.cluster.devices[int(start.device[0])].name
    space = space_with_start(problem, start)
    forbidden = gnnplace.apply_constraints(
        problem, gnnplace.as_constraints({"forbid": {"f0": [device]}})
    )
    with pytest.raises(InputError, match=r"start: op .* forbidden to it; loosen that"):
        space_with_start(forbidden, start)
    for changed in ({"constraints": {"max_devices": 1}}, {"objective": "throughput"}):
        with pytest.raises(InputError, match="without max-devices"):
            gnnplace.place(problem, space=space, **changed)


def test_the_command_starts_from_a_file(tmp_path, capsys, problem, good):
    what, start, output = (
        str(tmp_path / name) for name in ("p.json", "start.json", "out.json")
    )
    write_problem(what, problem)
    write_placement(start, good.placement, problem)
    place = ["place", what, "--placer", "etf", "--budget", "0"]
    assert run([*place, "--start", start, "-o", output]) == 0
    assert (
        json.loads((tmp_path / "out.json").read_text())["predicted_step_time"]
        <= good.step_time
    )
    capsys.readouterr()
    other = str(tmp_path / "other.json")
    write_problem(other, contract.training_chain())
    for arguments, words in (
        ([*place, "--start", str(tmp_path / "none.json")], "none.json"),
        ([*place, "--start", what], "p.json"),
        (["place", other, "--placer", "etf", "--start", start], "another problem"),
        (
            [*place, "--start", start, "--max-devices", "1"],
            "--start: not with --max-devices",
        ),
        (
            [*place, "--start", start, "--objective", "throughput"],
            "--start: searches for",
        ),
        (
            [*place, "--start", start, "--microbatches", "auto"],
            "--start: give the number",
        ),
    ):
        assert run([*arguments, "-o", output]) == 2
        error = capsys.readouterr().err.strip()
        assert words in error
        assert len(error.splitlines()) == 1
    with pytest.raises(MismatchError):
        read_start(start, contract.training_chain())
