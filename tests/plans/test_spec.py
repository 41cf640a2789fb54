from __future__ import annotations

import pytest

from gnnplace.errors import FormatError, InputError
from gnnplace.plans.spec import PlanSpec, parse_spec, read_plan_table


def test_a_row_is_read_and_an_empty_cell_left_out(tmp_path):
    path = tmp_path / "plans.csv"
    path.write_text("dp,tp,x-job,zero,recompute\n2,4,a,1,\n,,b,,block:3\n")
    table = read_plan_table(path)
    assert table.specs == (PlanSpec(dp=2, tp=4, zero=1), PlanSpec(recompute="block:3"))
    assert table.cells[1] == ("", "", "b", "", "block:3")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "empty"),
        ("dp,tp\n", "has no row"),
        ("dp,tpp\n1,1\n", "line 1, column 2: 'tpp' is unknown"),
        ("dp,dp\n1,1\n", "line 1, column 2: 'dp' is repeated"),
        ("dp,tp\n1,0\n", "line 2: tp=0: must be a whole number from 1 on"),
        ("dp,zero\n1,1\n2,4\n", "line 3: zero=4: must be one of 0, 1, 2, 3"),
        ("dp,layers\n1,6+\n", "line 2: layers=6\\+: must be one of equal"),
        ("dp,tp\n1\n", "line 2: has 1 cells, the first line 2"),
    ],
)
def test_what_cannot_be_read_is_named_by_line_and_column(tmp_path, text, told):
    path = tmp_path / "plans.csv"
    path.write_text(text)
    with pytest.raises(FormatError, match=told):
        read_plan_table(path)


def test_words_are_those_of_a_row():
    assert parse_spec("dp=2, tp=8,schedule=interleaved:2") == PlanSpec(
        dp=2, tp=8, schedule="interleaved:2"
    )
    assert parse_spec("dp=2 tp=8  pp = 4") == parse_spec("dp=2,tp=8,pp=4")
    assert parse_spec("schedule=interleaved:2").num_chunks == 2
    with pytest.raises(InputError, match="'dp' is repeated"):
        parse_spec("dp=2,dp=2")
    with pytest.raises(InputError, match="'dq=2': must be NAME=VALUE"):
        parse_spec("dq=2")
