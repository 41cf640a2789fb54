from __future__ import annotations

import numpy as np
import pytest
import torch

from gnnplace import api
from gnnplace.cli import run
from gnnplace.data_command import build_store, capture_graph, select
from gnnplace.profiling import estimate_ops
from gnnplace.zoo.captured import captured_problem, shipped_store
from gnnplace.zoo.captured_graph import read_captured
from gnnplace.zoo.captured_models import CapturedModel

torch.set_num_threads(1)
SMALL = CapturedModel("small", "mlp", "mlp?batch=8&depth=2&width=32", "sgd")


def test_a_graph_costs_what_its_program_does():
    graph = capture_graph(SMALL)
    program = api.capture(SMALL.spec, fake=True)
    for i, kind in enumerate(graph.kinds):
        expected = estimate_ops(program, kind).sum()
        assert graph.work[i].sum() + graph.launch[i].sum() == pytest.approx(expected)
    parameters = sum(v.info.bytes for v in program.inputs.values() if v.kind == "parameter")
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
    shipped, made = shipped_store().graph("mlp-small"), capture_graph(model)
    assert np.array_equal(shipped.graph.consumer, made.graph.consumer)
    assert np.allclose(shipped.work, made.work, rtol=1e-6)
    assert captured_problem(shipped_store(), "mlp-small", 0).num_ops <= shipped.num_ops * 8


def test_models_are_chosen_by_name_or_family():
    assert {m.family for m in select(["resnet", "bert-mini"])} == {"resnet", "bert"}
    assert len(select(["resnet", "bert-mini"])) == 4


def test_mistakes_are_one_line(tmp_path, capsys):
    assert run(["data", "build", str(tmp_path), "--models", "moon"]) == 2
    assert "model 'moon' is unknown; families: gpt2" in capsys.readouterr().err
    assert run(["data", "drop", str(tmp_path)]) == 2
    (tmp_path / "file").touch()
    assert run(["data", "build", str(tmp_path / "file"), "--models", "mlp"]) == 2
    assert capsys.readouterr().err.count("\n") == 2
