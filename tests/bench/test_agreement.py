from __future__ import annotations

import json

import pytest

from benchmarks.agreement import (
    AUTHORS,
    EQUAL,
    PAGE,
    drawn_row,
    is_drawn,
    key_of,
    page,
    read_rows,
)

FILE = json.loads(AUTHORS.read_text(encoding="utf-8"))
DRAWN = [case for case in FILE["cases"] if is_drawn(case)]


@pytest.mark.parametrize("case", DRAWN, ids=lambda case: " ".join(key_of(case)))
def test_ours_is_as_good_as_the_authors_code(case, tmp_path):
    assert drawn_row(case, tmp_path)["over"] == pytest.approx(1.0, abs=EQUAL)


def test_the_page_is_that_of_the_rows_and_no_case_lacks_one():
    rows = read_rows()
    assert [key_of(row) for row in rows] == [key_of(case) for case in FILE["cases"]]
    assert PAGE.read_text(encoding="utf-8") == page(rows, FILE["sources"])
