from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.peers import (
    FILE,
    KEYS,
    balanced_map,
    balanced_time,
    figures,
    on_devices,
    table,
)
from gnnplace.errors import InfeasibleError
from gnnplace.placers import contract
from gnnplace.simulation import lower_bounds
from tests.run.device_maps.mapped import build, captured


def test_the_table_is_that_of_the_figures_and_each_has_its_source():
    rows = figures()
    assert (FILE.parent / "peers.md").read_text(encoding="utf-8") == table(rows)
    assert all("arXiv" in row["who"] and row["source"] for row in rows)


def test_a_figure_without_a_source_is_refused(tmp_path: Path):
    (tmp_path / "peers.yaml").write_text("- {who: me, what: x, figure: '1'}\n")
    with pytest.raises(ValueError, match=r"row 1: give " + ", ".join(KEYS)):
        figures(tmp_path / "peers.yaml")


def test_ops_follow_the_longest_module_name_and_units_stay_whole():
    chain = contract.training_chain(num_layers=3)
    modules = {"0": "net.low", "1": "net.low.inner", "2": "net.high"}
    named = replace(
        chain, module=tuple(modules[name[1:]] for name in chain.graph.names)
    )
    device = on_devices(named, {"net": 0, "net.low": 1, "net.low.inner": 2})
    index = named.graph.index
    for layer, expected in enumerate((1, 2, 0)):
        assert {int(device[index[f"{x}{layer}"]]) for x in "fbu"} == {expected}
    assert (on_devices(chain, {"net": 1}) == 0).all()  # ops of no module
    assert device.dtype == np.int32


def test_accelerate_cuts_a_chain_where_the_bytes_are():
    """Halves of a chain, and what fits nowhere is refused."""
    chain = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    found = balanced_map(chain, {0: 1e9, 1: 1e9})
    assert [found[name] for name in "0123"] == sorted(found.values())
    assert set(found.values()) == {0, 1}
    with pytest.raises(InfeasibleError, match=r"would keep module '.*' on disk"):
        balanced_map(chain, {0: 2e4, 1: 2e4})


def test_its_step_is_simulated():
    """Accelerate's map takes a step that no placement's lower bound is above."""
    problem = captured()[1]
    assert balanced_time(build()[0], problem) >= lower_bounds(problem).best > 0
