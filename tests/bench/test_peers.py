from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.peers import FILE, KEYS, device_map, figures, on_devices, table
from gnnplace.placers import contract


def test_the_table_is_that_of_the_figures_and_each_has_its_source():
    rows = figures()
    assert (FILE.parent / "peers.md").read_text(encoding="utf-8") == table(rows)
    assert all("arXiv" in row["who"] and row["source"] for row in rows)


def test_a_figure_without_a_source_is_refused(tmp_path: Path):
    (tmp_path / "peers.yaml").write_text("- {who: me, what: x, figure: '1'}\n")
    with pytest.raises(ValueError, match=r"row 1: give " + ", ".join(KEYS)):
        figures(tmp_path / "peers.yaml")


def test_ops_follow_the_longest_module_name_and_units_stay_whole():
    from dataclasses import replace

    chain = contract.training_chain(num_layers=3)
    modules = {"0": "net.low", "1": "net.low.inner", "2": "net.high"}
    named = replace(chain, module=tuple(modules[name[1:]] for name in chain.graph.names))
    device = on_devices(named, {"net": 0, "net.low": 1, "net.low.inner": 2})
    index = named.graph.index
    for layer, expected in enumerate((1, 2, 0)):
        assert {int(device[index[f"{x}{layer}"]]) for x in "fbu"} == {expected}
    assert (on_devices(chain, {"net": 1}) == 0).all()  # ops of no module
    assert device.dtype == np.int32


def test_accelerate_cuts_a_chain_where_the_bytes_are():
    chain = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    found = device_map(chain, 2)
    assert [found[name] for name in "0123"] == sorted(found.values())
    assert set(found.values()) == {0, 1}
