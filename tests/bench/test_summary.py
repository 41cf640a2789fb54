from __future__ import annotations

import io

from rich.console import Console

from gnnplace.bench.summary import parts, print_standings
from tests.bench.rows import row


def test_seen_problems_and_clocks_stand_apart():
    rows = [row("a", "heft", 1.0), row("b", "heft", 1.0, seen=True)]
    rows += [row("c", "heft", 1.0, suite="run", clock="measured")]
    rows += [row("d", "heft", None, suite="run")]
    assert {title: len(part) for title, part in parts(rows).items()} == {
        "s": 1,
        "s-seen": 1,
        "run": 2,
    }
    rows += [row("c", "etf", 1.0, suite="run", clock="emulated")]
    assert {title: len(part) for title, part in parts(rows).items()} == {
        "s": 1,
        "s-seen": 1,
        "run-measured": 1,
        "run-emulated": 1,
        "run-failed": 1,
    }


def test_wide_tables_are_in_files_alone(tmp_path):
    rows = [row(str(i), "heft", 1.0, family=f"family-{i}") for i in range(12)]
    out = Console(file=io.StringIO(), width=200)
    print_standings(rows, out, folder=str(tmp_path / "tables"))
    printed = out.file.getvalue()
    assert "12 problems" in printed
    assert "step times predicted" in printed
    assert "by family" not in printed
    text = (tmp_path / "tables" / "summary.md").read_text()
    assert "by family" in text
    assert "12 rows of commits c" in text
    assert "12 rows of commits c" in (tmp_path / "tables" / "summary.html").read_text()
