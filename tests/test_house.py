"""The ratchet: what is above its row, and what rose without a reason, is told."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

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


OWNERS = ("simulation/transfer.py", "costs/")
DIVIDED = re.compile(r"/ [\w.()\[\]]*(bandwidth|_shared|_together)|[sS]izes?\[\w+\] \* \w+\.pace")
ALLOWED = {
    "problem/formats/attributed.py": "bytes of a device's own memory, which no link carries",
}


def code_of(path: Path) -> str:
    """A module without its docstrings and comments."""
    return ast.unparse(_Bare().visit(ast.parse(path.read_text(encoding="utf-8"))))


class _Bare(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.Expr | ast.Pass:
        return ast.Pass() if isinstance(node.value, ast.Constant) else node


def test_bytes_are_divided_by_bandwidth_where_transfers_are_owned_alone():
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(OWNERS) and DIVIDED.search(code_of(path)):
            found[name] = DIVIDED.search(code_of(path)).group()
    assert set(found) == set(ALLOWED), found


MODELS = ("zoo/", "bench/models/")
"""Networks whose layers have the names that their papers give them."""


def test_no_two_classes_share_a_name():
    named = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(MODELS):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    named[node.name].append(name)
    assert {name: paths for name, paths in named.items() if len(paths) > 1} == {}
