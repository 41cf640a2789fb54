from __future__ import annotations

import os
import time

import pytest

from gnnplace.report.environment import Cache
from gnnplace.units import age_text


def test_where_how_large_and_how_old(tmp_path):
    for name, days in (("a.json", 3.0), ("b.json", 0.0), ("c.txt", 9.0)):
        (tmp_path / name).write_text("12345")
        then = time.time() - days * 86_400
        os.utime(tmp_path / name, (then, then))
    told = str(Cache(tmp_path, ("*.json",)))
    assert told.startswith(f"{tmp_path} (2 files, 10 bytes, ")
    assert "the newest written a moment ago, the oldest 3 days ago" in told
    assert "(1 file, 5 bytes, written 9 days ago)" in str(Cache(tmp_path / "c.txt"))
    assert str(Cache(tmp_path / "none")).endswith("(nothing)")


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(-5.0, "a moment"), (1.5, "a moment"), (90.0, "90 seconds"), (7_300.0, "2 hours")],
)
def test_ages(seconds, told):
    assert age_text(seconds) == told
