"""Submitted rows: packed, simulated again, refused where they are not what they say."""

import json

import pytest

from benchmarks.submissions import SUBMITTED, check, run
from gnnplace.bench.suite import read_suite
from gnnplace.cli.main import run as gnnplace

SUITE = "benchmarks/suites/smoke.yaml"


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Rows of two placers on the first problem of the suite `smoke`."""
    folder = tmp_path_factory.mktemp("submitted")
    part = f"1/{len(read_suite(SUITE).problems)}"
    options = ["--placers", "heft,etf", "--budgets", "0", "--part", part, "--keep"]
    assert gnnplace(["bench", SUITE, "-o", str(folder), *options]) == 0
    (rows,) = folder.glob("*.jsonl")
    out = folder / "packed" / "ada.jsonl"
    out.parent.mkdir()
    assert run(["pack", str(rows), "--by", "Ada", "-o", str(out)]) == 0
    return out


def test_what_was_packed_is_what_it_says(packed):
    assert check([packed]) == 2
    assert {json.loads(line)["by"] for line in packed.read_text().splitlines()} == {"Ada"}


def other_device(row):
    op = next(iter(row["placement"]["device"]))
    row["placement"]["device"][op] = "gpu:99"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda row: row.update(step_time=row["step_time"] * 0.999), "the row says"),
        (lambda row: row.update(digest="1:0123456789ab"), "digest is"),
        (lambda row: row.update(problem="family=layered seed=7"), "has no such problem"),
        (lambda row: row.update(suite="smoke@9"), "rows of smoke@1"),
        (lambda row: row.pop("placement"), "'placement' is missing"),
        (other_device, "gpu:99"),
    ],
)
def test_a_row_that_is_not_what_it_says_is_refused_in_one_line(
    change, told, packed, tmp_path, capsys
):
    row = json.loads(packed.read_text().splitlines()[0])
    change(row)
    (tmp_path / "changed.jsonl").write_text(json.dumps(row) + "\n")
    assert run(["check", str(tmp_path / "changed.jsonl")]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.strip().splitlines()) == 1


def test_what_is_committed_is_what_it_says():
    check(sorted(SUBMITTED.glob("*.jsonl")))
