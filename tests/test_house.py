"""The ratchet: what is above its row, and what rose without a reason, is told."""

from __future__ import annotations

import sys

from tests.house import PACKAGE, Crossing, faults, standing


def test_a_figure_above_its_row_is_a_fault():
    rows = {"lines": {"most": 10}, "files": {"most": 2}}
    assert faults({"lines": 10, "files": 3}, rows, {}) == ["files: 3, and house.json allows 2"]


def test_a_row_rises_with_a_new_reason_alone():
    before = {"lines": {"most": 10, "why": "an old one"}}
    for why in (None, "", "an old one"):
        (fault,) = faults({}, {"lines": {"most": 11, "why": why}}, before)
        assert fault == "lines: raised from 10 to 11 without a new why"
    assert not faults({}, {"lines": {"most": 11, "why": "a second solver"}}, before)
    assert not faults({}, {"lines": {"most": 9}}, before)


def test_crossed_are_own_functions_and_not_imports():
    module = str(PACKAGE / "made_up.py")
    code = compile(
        "def outer():\n    inner()\ndef inner():\n    len('')\nouter()\n", module, "exec"
    )
    names: dict[str, object] = {}
    crossing = Crossing()
    sys.setprofile(crossing)
    exec(code, names)  # as an import: nothing of it counts
    sys.setprofile(None)
    assert crossing.figures() == {"files": 0, "functions": 0, "depth": 0}
    sys.setprofile(crossing)
    names["outer"]()
    sys.setprofile(None)
    assert crossing.figures() == {"files": 1, "functions": 2, "depth": 2}


def test_what_stands_is_counted():
    assert standing()["rooms"] <= 17
    assert standing()["files"] > 100
