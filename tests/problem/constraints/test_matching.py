"""Patterns over module names."""

from __future__ import annotations

import pytest

from gnnplace.errors import InputError
from gnnplace.problem.constraints.matching import Names, devices_matched

MODULES = ["encoder", "encoder.layers.0", "encoder.layers.10", "head", None]


@pytest.mark.parametrize(
    ("pattern", "ops"),
    [
        ("encoder", [0, 1, 2]),
        ("encoder.*", [0, 1, 2]),
        ("encoder.layers.?", [1]),
        ("encoder.layers.1*", [2]),
        ("*layers*", [1, 2]),
        ("*", [0, 1, 2, 3]),
        ("[h]ead", [3]),
    ],
)
def test_patterns(pattern, ops):
    """A pattern matches a module and all inside it; ops without a module are never matched."""
    found = Names(MODULES, ["a"] * 5).matched(pattern, "pin")
    assert found.ops.nonzero()[0].tolist() == ops


def test_names_of_ops_stand_in_for_modules():
    """Where no op has a module, the copies of an op are matched by its name."""
    found = Names([None] * 3, ["conv#0", "conv#1", "relu"]).matched("conv", "pin")
    assert found.ops.tolist() == [True, True, False]
    assert str(found) == "pin: 1 module, 2 ops"


def test_what_matches_nothing_is_refused_with_what_is_near():
    """A slip of the pen shows what was meant."""
    with pytest.raises(InputError, match=r"no module matches 'encodr.\*'; near: 'encoder'"):
        Names(MODULES, ["a"] * 5).matched("encodr.*", "pin encodr.*=gpu:0")
    with pytest.raises(InputError, match="no device is named 'gpu:9'; devices: gpu:"):
        devices_matched(["gpu:9"], ["gpu:0", "gpu:1"], "pin")


def test_devices_by_pattern():
    """Devices may be named by a pattern."""
    names = ["gpu:0", "gpu:1", "cpu:0"]
    assert devices_matched(["gpu:*"], names, "pin").tolist() == [True, True, False]
