from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import gnnplace
from gnnplace.cli.main import run
from gnnplace.costs.profiling.estimation import estimate_ops
from gnnplace.train.data.build import build_store, capture_graph, select
from gnnplace.train.data.captured import (
    CapturedModel,
    draw_captured_problem,
    open_shipped_store,
)
from gnnplace.train.data.captured_graph import read_captured
from gnnplace.train.data.datasets import find_dataset
from gnnplace.train.data.recipes import recipe

torch.set_num_threads(1)
HERE = Path(__file__).parent
SMALL = CapturedModel("small", "mlp", "mlp?batch=8&depth=2&width=32", "sgd")


def test_a_graph_costs_what_its_program_does():
    graph = capture_graph(SMALL)
    program = gnnplace.capture(SMALL.spec, fake=True)
    for i, kind in enumerate(graph.kinds):
        expected = estimate_ops(program, kind).sum()
        assert graph.work[i].sum() + graph.launch[i].sum() == pytest.approx(expected)
    parameters = sum(
        v.info.bytes for v in program.inputs.values() if v.kind == "parameter"
    )
    assert graph.state.sum() >= parameters


def test_building_keeps_what_is_there_and_makes_anew_what_is_of_another_model(tmp_path):
    lines: list[str] = []
    build_store(tmp_path, [SMALL], lines.append)
    made = (tmp_path / "small.npz").stat().st_mtime_ns
    build_store(tmp_path, [SMALL], lines.append)
    assert (tmp_path / "small.npz").stat().st_mtime_ns == made
    assert "kept" in lines[-1]
    deeper = CapturedModel("small", "mlp", "mlp?batch=8&depth=3&width=32", "sgd")
    build_store(tmp_path, [deeper], lines.append)
    assert read_captured(tmp_path / "small.npz").origin["spec"] == deeper.spec
    (tmp_path / "small.npz").write_bytes(b"half")
    build_store(tmp_path, [deeper], lines.append)
    card = (tmp_path / "README.md").read_text()
    assert "| small | mlp |" in card
    assert "## train: 1 graphs" in card


def test_the_shipped_graphs_are_what_the_command_makes():
    [model] = select(["mlp-small"])
    shipped, made = open_shipped_store().graph("mlp-small"), capture_graph(model)
    assert np.array_equal(shipped.graph.consumer, made.graph.consumer)
    assert np.allclose(shipped.work, made.work, rtol=1e-6)
    assert (
        draw_captured_problem(open_shipped_store(), "mlp-small", 0).num_ops
        <= shipped.num_ops * 8
    )


def test_models_are_chosen_by_name_or_family():
    assert {m.family for m in select(["resnet", "bert-mini"])} == {"resnet", "bert"}
    assert len(select(["resnet", "bert-mini"])) == 4


def test_mistakes_are_one_line(tmp_path, capsys):
    assert run(["data", "build", str(tmp_path), "--models", "moon"]) == 2
    assert "model 'moon' is unknown; families: gpt2" in capsys.readouterr().err
    assert run(["data", "drop", str(tmp_path)]) == 2
    assert run(["data", "build", str(tmp_path), "--recipe", "soup"]) == 2
    assert run(["data", "verify", str(tmp_path)]) == 2
    (tmp_path / "file").touch()
    assert run(["data", "build", str(tmp_path / "file"), "--models", "mlp"]) == 2
    assert capsys.readouterr().err.count("\n") == 4


def test_what_is_built_can_be_verified_and_what_is_damaged_is_found(tmp_path, capsys):
    build_store(tmp_path, [SMALL], lambda line: None)
    assert run(["data", "verify", str(tmp_path)]) == 0
    assert "1 graphs, as their checksums say" in capsys.readouterr().err
    path = tmp_path / "small.npz"
    path.write_bytes(path.read_bytes()[:-1])
    assert run(["data", "verify", str(tmp_path)]) == 2
    assert "small.npz: changed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["networks/recommender-4", "searched-cnn/searched-cnn-03"]
)
def test_the_datasets_are_what_their_recipes_make(name):
    dataset, graph = name.split("/")
    [model] = select([graph], recipe(dataset).models)
    committed, made = find_dataset(dataset, HERE).graph(graph), capture_graph(model)
    assert np.array_equal(committed.graph.consumer, made.graph.consumer)
    assert np.allclose(committed.work, made.work, rtol=1e-6)
    assert np.allclose(committed.graph.size, made.graph.size)


def test_a_card_says_what_how_and_what_is_missing(tmp_path):
    build_store(tmp_path, [SMALL], lambda line: None)
    card = (tmp_path / "README.md").read_text()
    for text in (
        "**What**",
        "**Costs**",
        "--recipe store",
        "CC-BY-4.0",
        "**Known gaps**",
    ):
        assert text in card
    assert "Versions: gnnplace" in card
