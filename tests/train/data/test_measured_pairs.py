"""Measured pairs: what is run, kept, gone on with, and released; by workers that are made up."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch

from gnnplace.errors import FormatError, MismatchError
from gnnplace.measurements import Measured
from gnnplace.problem import Placement
from gnnplace.simulation import simulate
from gnnplace.train.data.build import build_store, capture_graph
from gnnplace.train.data.captured import CapturedModel
from gnnplace.train.data.captured_graph import write_captured
from gnnplace.train.data.datasets import verify
from gnnplace.train.data.measured_pairs import (
    PROFILES,
    ROWS,
    make_workbench,
    measure_pairs,
    profile_problem,
    read_pairs,
)
from gnnplace.train.data.placements import PAIRS
from gnnplace.train.data.recipes import RECIPES, recipe
from gnnplace.train.data.release import ReleaseStore, build_release
from gnnplace.train.workbench import StoreSettings, Workbench

torch.set_num_threads(1)
MODEL = CapturedModel("small", "mlp", "mlp?batch=8&depth=2&width=32", "sgd")
DISTURBED, FAILED = 3, 5  # numbers of the runs that end so


class MadeUp(Workbench):
    """Workers that take 1.1 times what the simulator says, but for two runs."""

    runs: list[Placement]

    def measure(self, placements):
        results = []
        for placement in placements:
            self.runs.append(placement)
            number = len(self.runs) - 1
            if number == FAILED:
                results.append(Measured(None, "no memory"))
            else:
                seconds = 1.1 * simulate(self.problem, placement).step_time
                results.append(Measured(seconds, disturbed=number == DISTURBED))
        return results


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data set of one model whose placements were measured by made-up workers."""
    folder = tmp_path_factory.mktemp("sets") / "data_sets" / "few"
    folder.mkdir(parents=True)
    write_captured(folder / "small.npz", capture_graph(MODEL))
    measure_pairs(folder, [MODEL], lambda line: None, made_up([]))
    return folder


def made_up(runs):
    def workbench(model):
        bench = MadeUp(model.spec, "cpu:2", store=StoreSettings("none"))
        bench.runs = runs
        return bench

    return workbench


def rows_of(folder):
    return [json.loads(line) for line in (folder / ROWS).read_text().splitlines()]


def test_a_row_says_what_was_run_by_what_and_what_came(folder):
    rows = rows_of(folder)
    assert len({row["device"] for row in rows}) == len(rows) == PAIRS
    assert [row["clock"] for row in rows].count("virtual") == 1
    assert rows[DISTURBED]["clock"] == "virtual"
    assert rows[FAILED]["measured"] is None
    assert rows[FAILED]["error"] == "no memory"
    for row in rows:
        assert row["spec"] == MODEL.spec
        assert row["commit"]
        assert row["versions"]["torch"] == torch.__version__
        assert row["machine"]["cores"] > 0
        assert "host" not in row["machine"]


def test_a_prediction_is_the_simulators_by_the_profile(folder):
    pairs = read_pairs(folder)["small"]
    problem = profile_problem(capture_graph(MODEL), pairs.profile)
    predicted = [
        simulate(problem, Placement(np.ascontiguousarray(device))).step_time
        for device in pairs.device.T
    ]
    assert predicted == pytest.approx(pairs.step_time, rel=1e-12)
    assert np.isnan(pairs.measured).nonzero()[0].tolist() == [FAILED]


def test_what_is_there_is_not_measured_again(folder, tmp_path):
    runs: list[Placement] = []
    measure_pairs(folder, [MODEL], lambda line: None, made_up(runs))
    assert not runs
    text = (folder / ROWS).read_text()
    for name in ("small.npz", PROFILES):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / ROWS).write_text("".join(text.splitlines(keepends=True)[:5]))
    assert not read_pairs(tmp_path)
    measure_pairs(tmp_path, [MODEL], lambda line: None, made_up(runs))
    assert len(runs) == PAIRS - 5
    same = [row["device"] for row in rows_of(folder)]
    assert [row["device"] for row in rows_of(tmp_path)] == same
    assert len((tmp_path / PROFILES).read_text().splitlines()) == 1


def test_a_graph_of_other_ops_and_a_broken_line_are_refused(folder, tmp_path):
    deeper = CapturedModel("small", "mlp", "mlp?batch=8&depth=3&width=32", "sgd")
    write_captured(tmp_path / "small.npz", capture_graph(deeper))
    with pytest.raises(MismatchError, match="not those of its model"):
        measure_pairs(tmp_path, [MODEL], lambda line: None, made_up([]))
    with pytest.raises(MismatchError, match="its profile has"):
        profile_problem(capture_graph(deeper), read_pairs(folder)["small"].profile)
    (tmp_path / ROWS).write_text('{"graph": "small"}\n')
    with pytest.raises(FormatError, match="line 1"):
        read_pairs(tmp_path)


def test_the_release_has_measured_pairs_and_what_they_were_predicted_by(folder):
    released = folder.parent / "release"
    assert build_release(released, ["few"], start=folder.parent.parent) == PAIRS
    store = ReleaseStore(released / "train.npz")
    problem, pairs = store.problem("small"), read_pairs(folder)["small"]
    assert store.cluster["small"] == "cpu:2"
    for device, seconds in zip(
        store.device["small"].T, store.step_time["small"], strict=True
    ):
        simulation = simulate(problem, Placement(np.ascontiguousarray(device)))
        assert simulation.step_time == pytest.approx(seconds, rel=1e-12)
    assert np.array_equal(store.measured["small"], pairs.measured, equal_nan=True)
    with (released / "pairs.csv").open(encoding="utf-8", newline="") as file:
        index = list(csv.DictReader(file))
    assert [row["measured_s"] for row in index].count("") == 1
    assert {row["clock"] for row in index} == {"wall", "virtual", ""}
    card = (released / "README.md").read_text()
    assert "**7 pairs of 1 graphs were measured**" in card
    assert "6 by the wall clock and 1 by the virtual clock" in card


def test_two_workers_run_a_models_placement():
    """The one real run of this file: a placement on two workers by the recipe's workbench."""
    bench = make_workbench(MODEL)
    device = np.zeros(bench.problem.num_ops, np.int32)
    (measured,) = bench.measure([Placement(device)])
    assert measured.error == ""
    assert measured.seconds > 0


def test_the_recipe_measures_enough_and_splits_as_the_others():
    models = recipe("measured").models
    assert len(models) * PAIRS >= 200
    others = [m for r in RECIPES.values() if r.name != "measured" for m in r.models]
    assert {m.family for m in models} <= {m.family for m in others}
    assert not {m.name for m in models} & {m.name for m in others}


def test_building_the_recipe_lists_its_measurements(folder):
    """The folder is whole: nothing is captured or measured, the card and the sums are written."""
    build_store(folder, [MODEL], lambda line: None, recipe("measured"))
    assert verify(folder) == 3
    described = json.loads((folder / "croissant.json").read_text())
    names = {entry["name"] for entry in described["distribution"]}
    assert names == {"small.npz", PROFILES, ROWS}
    assert "Eight placements of each were run" in described["rai:dataCollection"]
    assert "* **Measured pairs**" in (folder / "README.md").read_text()
