"""Submissions: packed, simulated again, refused if they are not what they say, ranked if whole."""

import json
from pathlib import Path

import pytest

from benchmarks.submissions import SUBMITTED, submission_files, suite_lines
from gnnplace.bench.rows import read_rows
from gnnplace.bench.submissions import (
    check_files,
    check_rows,
    compute_coverage,
    index_placement,
    read_row_placement,
    read_submission,
    write_submission,
)
from gnnplace.bench.suite import ProblemEntry, read_suite
from gnnplace.cli.main import run as gnnplace
from gnnplace.errors import FormatError
from gnnplace.placers.contract import training_chain
from gnnplace.placing.roster import place

SUITE = "benchmarks/suites/smoke.yaml"
MOST_BYTES = 20_000_000  # of all committed submissions


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory):
    """Rows of two placers on the first problem of the suite `smoke`, and one that failed."""
    folder = tmp_path_factory.mktemp("submitted")
    part = f"1/{len(read_suite(SUITE).problems)}"
    options = ["--placers", "heft,etf", "--budgets", "0", "--part", part, "--keep"]
    assert gnnplace(["bench", SUITE, "-o", str(folder), *options]) == 0
    (path,) = folder.glob("*.jsonl")
    failed = json.loads(path.read_text().splitlines()[0])
    failed |= {
        "placer": "m-topo",
        "feasible": False,
        "step_time": None,
        "error": "too slow",
    }
    del failed["kept"]
    with path.open("a") as file:
        file.write(json.dumps(failed) + "\n")
    return path


@pytest.fixture(scope="module")
def packed(rows_file, tmp_path_factory):
    """The same rows as a submission of Ada's."""
    out = tmp_path_factory.mktemp("packed") / "ada.jsonl"
    assert (
        gnnplace(["bench", "pack", str(rows_file), "--by", "Ada", "-o", str(out)]) == 0
    )
    return out


def test_what_was_packed_is_what_it_says_and_failures_are_in_it(packed):
    count, entries = check_files([packed])
    assert count == 3
    rows = read_rows(packed)
    assert {row["by"] for row in rows} == {"Ada"}
    assert [row["feasible"] for row in rows] == [True, True, False]
    assert all(row["code"].startswith("gnnplace@") for row in rows)
    assert {row["parameters"] for row in rows} == {0}
    assert all(row["processor_seconds"] > 0 for row in rows)
    assert len(entries) == 3


def test_a_compressed_submission_is_the_same(packed, tmp_path):
    rows = read_submission(packed)
    write_submission(tmp_path / "ada.jsonl.xz", rows)
    assert read_submission(tmp_path / "ada.jsonl.xz") == rows
    (tmp_path / "cut.jsonl.xz").write_bytes(
        (tmp_path / "ada.jsonl.xz").read_bytes()[:50]
    )
    assert gnnplace(["bench", "check", str(tmp_path / "cut.jsonl.xz")]) == 2


def other_device(row):
    row["placement"]["device"][0] = 99


def other_order(row):
    ops = max(row["placement"]["sequence"], key=len)
    ops[0] = ops[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row.update(step_time=row["step_time"] * 0.999), "the row says"),
        (
            lambda row: row.update(
                digest="1:0123456789ab", step_time=row["step_time"] * 0.999
            ),
            "digest is",
        ),
        (
            lambda row: row.update(problem="family=layered seed=7"),
            "has no such problem",
        ),
        (lambda row: row.update(suite="smoke@9"), "rows of smoke@1"),
        (lambda row: row.pop("placement"), "'placement' is missing"),
        (lambda row: row.pop("code"), "'code' is missing"),
        (other_device, "whole numbers from 0 to 7"),
        (other_order, "not those that are on the device"),
    ],
)
def test_a_row_that_is_not_what_it_says_is_refused_in_one_line(
    change, message, packed, tmp_path, capsys
):
    row = json.loads(packed.read_text().splitlines()[0])
    change(row)
    (tmp_path / "changed.jsonl").write_text(json.dumps(row) + "\n")
    assert gnnplace(["bench", "check", str(tmp_path / "changed.jsonl")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_another_digest_is_accepted_only_of_costs_that_are_computed(
    packed, tmp_path, monkeypatch, capsys
):
    row = json.loads(packed.read_text().splitlines()[0])
    row["digest"] = "1:0123456789ab"  # as a processor with other exponentials has it
    path = tmp_path / "elsewhere.jsonl"
    path.write_text(json.dumps(row) + "\n")
    assert gnnplace(["bench", "check", str(path)]) == 0
    # Costs that a file says are the same everywhere.
    monkeypatch.setattr(ProblemEntry, "is_computed", False)
    assert gnnplace(["bench", "check", str(path)]) == 2
    assert "digest is" in capsys.readouterr().err


def test_costs_of_a_file_are_not_computed_whatever_its_family():
    profile = ProblemEntry(profile="vgg16.txt", family="vgg", cluster="pcie-v100-4")
    assert not profile.is_computed
    assert not ProblemEntry(file="mine.json", family="mine").is_computed
    assert ProblemEntry(family="layered").is_computed


def test_a_cell_has_one_row(packed, tmp_path, capsys):
    line = packed.read_text().splitlines()[0]
    (tmp_path / "lucky.jsonl").write_text(f"{line}\n{line}\n")
    assert gnnplace(["bench", "check", str(tmp_path / "lucky.jsonl")]) == 2
    assert "2 rows of one cell" in capsys.readouterr().err


def complete(packed):
    """Rows of a complete submission; their step times are made up, nobody simulates them here."""
    row = json.loads(packed.read_text().splitlines()[0])
    entries = read_suite(SUITE).problems
    return [
        row | {"problem": entry.key, "digest": f"1:{i}"}
        for i, entry in enumerate(entries)
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda rows: rows[1:],
            "1 of 7 cells have no row: 1 of 7 problems are missing",
        ),
        (lambda rows: rows[:1], "6 of 7 cells have no row"),
        (
            lambda rows: [row | {"budget": 3.0} for row in rows],
            "the budgets of smoke@1 are 0.3",
        ),
        (
            lambda rows: [row | {"trained_on": "undeclared"} for row in rows],
            "nothing says what",
        ),
        (
            lambda rows: [row | {"seen_how": "trained on problem p"} for row in rows],
            "trained on problems of the suite",
        ),
        (
            lambda rows: [
                {k: v for k, v in row.items() if k != "placement"} for row in rows
            ],
            "7 of 7 rows keep no placement",
        ),
    ],
)
def test_what_is_incomplete_is_not_ranked_and_says_why(change, reason, packed):
    (whole,) = compute_coverage(complete(packed))
    assert whole.ranked
    (entry,) = compute_coverage(change(complete(packed)))
    assert not entry.ranked
    assert reason in "; ".join(entry.reasons)


def test_one_lucky_row_stands_below_the_ranking_with_its_coverage(packed):
    slow = [
        row | {"by": "Bob", "step_time": 2 * row["step_time"]}
        for row in complete(packed)
    ]
    lucky = complete(packed)[:1]
    text = "\n".join(suite_lines([*slow, *lucky], []))
    ranking, _, below = text.partition("Not ranked:")
    assert "heft (Bob)" in ranking
    assert "heft (Ada)" not in ranking
    assert "| heft (Ada) | 0 s | 1.000 | 1 of 7 | 6 of 7 cells have no row" in below


def test_failed_cells_count_as_rows(packed):
    rows = complete(packed)
    rows[0] = rows[0] | {"feasible": False, "step_time": None}
    (entry,) = compute_coverage(rows)
    assert entry.ranked


def test_a_placement_by_numbers_is_the_placement():
    problem = training_chain()
    placement = place(problem, placer="heft", budget=0.0).placement
    row = {"placement": json.loads(json.dumps(index_placement(placement)))}
    assert read_row_placement(row, problem, "row").key == placement.key
    row["placement"]["device"].pop()
    with pytest.raises(FormatError, match=r"has .* ops, the problem"):
        read_row_placement(row, problem, "row")


@pytest.mark.parametrize("path", submission_files(), ids=lambda path: path.name)
def test_what_is_committed_is_what_it_says(path):
    """Of each file the rows of one small problem; the campaign checks them all."""
    rows = read_submission(path)
    smallest = min(rows, key=lambda row: row.get("num_ops", 10**9))["problem"]
    check_rows([row for row in rows if row["problem"] == smallest], str(path))
    assert all(
        entry.ranked for entry in compute_coverage(rows) if "gnnplace" in path.name
    )


@pytest.mark.campaign
@pytest.mark.parametrize("path", submission_files(), ids=lambda path: path.name)
def test_every_committed_row_is_what_it_says(path):
    check_files([path])


def test_committed_placements_stay_small():
    assert sum(path.stat().st_size for path in Path(SUBMITTED).iterdir()) < MOST_BYTES
