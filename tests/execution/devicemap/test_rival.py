"""Accelerate's own map as a baseline."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from gnnplace.errors import InfeasibleError, UnsupportedError
from gnnplace.execution.devicemap.rival import NAME, Accelerate, balanced_map, on_devices
from gnnplace.placers import contract
from tests.execution.devicemap.small import build, captured


def test_ops_follow_the_longest_module_name_and_units_stay_whole():
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
    """Halves of a chain, and what fits nowhere is refused."""
    chain = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    found = balanced_map(chain, {0: 1e9, 1: 1e9})
    assert [found[name] for name in "0123"] == sorted(found.values())
    assert set(found.values()) == {0, 1}
    with pytest.raises(InfeasibleError, match=r"would keep module '.*' on disk"):
        balanced_map(chain, {0: 2e4, 1: 2e4})


def test_its_step_is_simulated_and_its_absence_is_one_line(monkeypatch):
    """A row beside the placers; without the package one line that says what to install."""
    problem = captured()[1]
    result = Accelerate(build()[0]).place(problem)
    assert result.placer == NAME
    assert result.step_time >= result.lower_bound > 0
    assert "memory of inference" in result.note
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'gnnplace\[peers\]'"):
        Accelerate(build()[0]).place(problem)
