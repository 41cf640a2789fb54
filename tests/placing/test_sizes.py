"""Numbers of micro-batches: all that the batch allows, pruned by bounds, the best one chosen."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

import gnnplace
from gnnplace.cli.main import run
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.placers import contract
from gnnplace.placing.sizes import SizedModel, choose, try_sizes
from gnnplace.problem import write_problem

OPTIONS = gnnplace.CaptureOptions()


@pytest.fixture
def path(tmp_path):
    def write(**changes):
        path = tmp_path / "problem.json"
        write_problem(path, contract.training_chain(**changes))
        return str(path)

    return write


def test_a_chain_is_cut_and_beats_the_whole_batch(path):
    """Times of a file are divided evenly, so that more micro-batches fill the pipeline better."""
    sizes = try_sizes(
        SizedModel(path(), None, OPTIONS),
        partial(gnnplace.place, placer="interleaved", budget=0.0),
    )
    chosen = choose(sizes)
    assert [size.microbatches for size in sizes] == [1, 2, 4, 8, 16, 32]
    assert chosen.microbatches > 1
    assert chosen.result.step_time < 0.8 * sizes[0].result.step_time
    assert chosen.problem.microbatches == chosen.microbatches
    assert all(size.work == pytest.approx(sizes[0].work) for size in sizes)


def test_a_size_that_cannot_be_better_is_not_placed(path, monkeypatch):
    placed = []

    def place(problem):
        placed.append(problem.microbatches)
        return partial(gnnplace.place, placer="single", budget=0.0)(problem)

    monkeypatch.setattr(
        "gnnplace.placing.sizes.lower_bound",
        lambda p: np.inf if p.microbatches > 2 else 0.0,
    )
    sizes = try_sizes(SizedModel(path(), None, OPTIONS), place)
    assert placed == [1, 2]
    assert all("not placed" in size.note for size in sizes[2:])
    assert choose(sizes).microbatches == 1  # equal, and simpler


def test_memory_may_need_micro_batches(path):
    """The whole batch does not fit; its shares do."""
    for memory in (30.0, 26.0, 24.0, 22.0, 20.0, 18.0):
        sizes = try_sizes(
            SizedModel(path(memory=memory), None, OPTIONS),
            partial(gnnplace.place, placer="contiguous", budget=0.0),
        )
        if sizes[0].result is None:
            break
    chosen = choose(sizes)
    assert "memory" in sizes[0].note
    assert chosen.microbatches > 1
    assert chosen.result.simulation.feasible


def test_nothing_fits_is_infeasible(path):
    with pytest.raises(InfeasibleError, match="no size"):
        choose(
            try_sizes(
                SizedModel(path(memory=1.0), None, OPTIONS),
                partial(gnnplace.place, placer="contiguous", budget=0.0),
            )
        )


def test_a_model_is_profiled_at_every_share_of_its_batch(monkeypatch):
    sizes = try_sizes(
        SizedModel("mlp?batch=4&width=16&depth=1", "cpu:2", OPTIONS),
        partial(gnnplace.place, placer="contiguous", budget=0.0),
    )
    assert [size.microbatches for size in sizes] == [1, 2, 4]
    assert [size.program.microbatches for size in sizes] == [1, 1, 1]
    assert not any(size.problem.estimated.any() for size in sizes)
    with pytest.raises(InputError, match="nosuch"):
        try_sizes(
            SizedModel("nosuch", "cpu:2", OPTIONS),
            partial(gnnplace.place, placer="contiguous", budget=0.0),
        )


def test_place_auto_writes_a_placement_that_says_its_size(path, tmp_path, capsys):
    output = str(tmp_path / "p.json")
    arguments = ["place", path(), "--placer", "interleaved", "--microbatches", "auto"]
    assert run([*arguments, "--budget", "0", "-o", output]) == 0
    assert "chosen" in capsys.readouterr().out
    data = json.loads((tmp_path / "p.json").read_text())
    assert (
        data["x-capture"]["microbatches"]
        == gnnplace.count_placed_microbatches(data)
        > 1
    )
    assert run(["simulate", path(), output, "--json"]) == 0
    assert (
        json.loads(capsys.readouterr().out)["step_time"] == data["predicted_step_time"]
    )


@pytest.mark.campaign
def test_demo_auto_shows_sizes_and_measures_the_whole_batch_beside(tmp_path, capsys):
    arguments = ["demo", "--model", "mlp?batch=4&width=64", "--microbatches", "auto"]
    arguments += ["--budget", "0.05", "--steps", "2", "--mode", "emulated"]
    assert run([*arguments, "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "chosen" in out
    split = json.loads((tmp_path / "problem.json").read_text())["microbatches"] > 1
    assert ("one device, whole batch" in out) == split


@pytest.mark.parametrize("count", ["many", "0", "-2"])
def test_any_other_word_is_refused(path, count, tmp_path, capsys):
    arguments = [
        "place",
        path(),
        "--microbatches",
        count,
        "-o",
        str(tmp_path / "p.json"),
    ]
    assert run(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
