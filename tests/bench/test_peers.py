from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers import FILE, KEYS, figures, table


def test_the_table_is_that_of_the_figures_and_each_has_its_source():
    rows = figures()
    assert (FILE.parent / "peers.md").read_text(encoding="utf-8") == table(rows)
    assert all("arXiv" in row["who"] and row["source"] for row in rows)


def test_a_figure_without_a_source_is_refused(tmp_path: Path):
    (tmp_path / "peers.yaml").write_text("- {who: me, what: x, figure: '1'}\n")
    with pytest.raises(ValueError, match=r"row 1: give " + ", ".join(KEYS)):
        figures(tmp_path / "peers.yaml")
