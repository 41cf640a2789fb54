import numpy as np
import pytest

from gnnplace.costs.rows import (
    SHORTEST,
    Record,
    from_records,
    join_rows,
    read_rows,
    roofline,
    write_rows,
)
from gnnplace.errors import FormatError, InputError
from gnnplace.problem.cluster.gpus import get_figures

RECORDS = [
    Record(
        "matmul",
        "float32",
        1e-3,
        m=64,
        n=32,
        k=128,
        bytes=4 * (64 * 128 + 128 * 32 + 64 * 32),
    ),
    Record("bmm", "bfloat16", 2e-3, batch=8, m=64, n=32, k=16, bytes=1000),
    Record(
        "attention", "bfloat16", 1e-4, batch=4, m=128, n=128, k=64, window=1, bytes=5000
    ),
    Record(
        "attention_backward", "bfloat16", 1e-4, batch=4, m=128, n=128, k=64, bytes=5000
    ),
    Record("relu", "float32", 1e-4, m=1000, n=1000, bytes=8_000_000),
]


def test_operations_are_those_of_the_formulas() -> None:
    rows = from_records(RECORDS)
    attention = 4 * 4 * 128 * 128 * 64
    expected = [
        2 * 64 * 32 * 128,
        2 * 8 * 64 * 32 * 16,
        attention / 2,
        2.5 * attention,
        0,
    ]
    assert rows.flops.tolist() == expected
    scores = 4 * 128 * 128
    assert rows.exponentials.tolist() == [0, 0, scores / 2, scores, 0]


def test_the_roofline_is_the_larger_bound_above_the_shortest_kernel() -> None:
    rows, gpu = from_records(RECORDS), get_figures("h100")
    bound = [
        max(
            flops / gpu.flops(str(dtype)) + exponentials / gpu.exponentials,
            moved / gpu.bandwidth,
        )
        for flops, exponentials, dtype, moved in zip(
            rows.flops, rows.exponentials, rows.dtype, rows.bytes, strict=True
        )
    ]
    assert roofline("h100", rows) == pytest.approx(np.array(bound) + SHORTEST)


def test_a_size_twice_as_large_is_an_octave_away() -> None:
    one = Record("matmul", "float32", 1e-3, m=64, n=32, k=128)
    other = Record("matmul", "float32", 1e-3, m=128, n=32, k=128)
    at = from_records([one, other]).at
    assert np.linalg.norm(at[0] - at[1]) == 1.0


def test_a_file_gives_back_its_rows_and_the_same_bytes(tmp_path) -> None:
    path = tmp_path / "table.csv.gz"
    write_rows(path, {"h100": from_records(RECORDS), "a100": from_records(RECORDS[:2])})
    first = path.read_bytes()
    back = read_rows(path)
    assert list(back) == ["a100", "h100"]
    assert sorted(back["h100"].op) == sorted(row.op for row in RECORDS)
    assert back["h100"].flops.sum() == from_records(RECORDS).flops.sum()
    write_rows(path, back)
    assert path.read_bytes() == first


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind,op\n", "line 1: the columns"),
        ("HEAD\n", "no rows"),
        ("HEAD\nh100,relu,float32,1,1,1,1,0,8,-1\n", "line 2"),
        ("HEAD\nh100,relu,float32,1,1,1,1,0,8,nan\n", "line 2"),
        ("HEAD\nh100,relu,float32,1,1,1,1,0,8,1e-6\nh100,relu\n", "line 3"),
    ],
)
def test_a_broken_table_is_refused_with_its_line(
    tmp_path, text: str, told: str
) -> None:
    path = tmp_path / "mine.csv"
    head = "kind,op,dtype,batch,m,n,k,window,bytes,seconds"
    path.write_text(text.replace("HEAD", head))
    with pytest.raises(FormatError, match=told):
        read_rows(path)


def test_a_table_that_is_not_there_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.csv"):
        read_rows(tmp_path / "nowhere.csv")
    (tmp_path / "broken.csv.gz").write_bytes(b"not gzip")
    with pytest.raises(InputError, match=r"broken\.csv"):
        read_rows(tmp_path / "broken.csv.gz")


def test_rows_without_seconds_are_left_out() -> None:
    assert len(from_records([Record("relu", "float32", 0.0), RECORDS[0]])) == 1
    assert len(join_rows([from_records(RECORDS), from_records(RECORDS[:1])])) == 6
