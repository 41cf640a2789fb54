"""docs/howto/graphs.md, block by block, in an empty folder."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import networkx as nx
import pytest

from gnnplace.cli.main import run
from gnnplace.problem import read_problem
from tests.problem.formats import test_chakra, test_onnx

TEXT = (Path(__file__).parents[3] / "docs/howto/graphs.md").read_text(encoding="utf-8")
# Whose script test_placeto.py runs.
PAGE, _, _ = TEXT.partition("## The graphs of Placeto")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_bytes(test_onnx.model())
    (tmp_path / "rank.0.et").write_bytes(test_chakra.binary(test_chakra.nodes()))
    return tmp_path


def test_every_block_runs(folder, capsys):
    """3 s: the first command loads the command line."""
    first, second = ({} for _ in range(2))
    for block, names in zip(blocks("python"), (first, second), strict=True):
        assert len(block.splitlines()) <= 18
        exec(compile(block, "graphs.md", "exec"), names)
    assert float(capsys.readouterr().out) > 2.19e-3  # input, left, sum
    assert first["problem"].estimated.tolist() == [False, False, True, False]
    assert second["again"].edge_index.tolist() == [[0, 0, 1, 2], [1, 2, 3, 3]]
    Path("branches.json").write_text(json.dumps(nx.node_link_data(first["graph"])))
    nx.write_graphml(first["graph"], "branches.graphml")
    sizes = []
    for line in "".join(blocks("bash")).splitlines():
        assert run(shlex.split(line)[1:]) == 0
        sizes.append(read_problem("problem.json").num_ops)
    assert sizes == [4, 4, 4, 5, 3, 3, 3]
