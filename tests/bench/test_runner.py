from __future__ import annotations

import io
import json
import time

import pytest
from rich.console import Console

from gnnplace.bench.cells import CellTimeoutError, time_limit
from gnnplace.bench.rows import IDENTITY, read_rows
from gnnplace.bench.runner import Override, run_suite
from gnnplace.bench.standings import read_best_known
from gnnplace.cli.main import run
from gnnplace.errors import FormatError
from gnnplace.placers import contract
from gnnplace.placers.baselines import Single
from gnnplace.problem import write_problem

SUITE = """
name: tiny
problems:
  - {file: chain.json}
  - {file: chain.json, microbatches: 2}
  - {family: layered, seed: 3}
  - {file: missing.json}
placers: [single, heft]
seeds: [0, 1]
"""


@pytest.fixture
def suite(tmp_path):
    write_problem(tmp_path / "chain.json", contract.training_chain())
    (tmp_path / "tiny.yaml").write_text(SUITE)
    return tmp_path


def start(suite):
    out = Console(file=io.StringIO(), width=160)
    lines: list[str] = []
    assert (
        run_suite(str(suite / "tiny.yaml"), str(suite / "results"), out, lines.append)
        == 0
    )
    return read_rows(suite / "results" / "tiny.jsonl"), out.file.getvalue(), lines


def test_every_cell_is_a_row_with_its_origin(suite):
    rows, summary, _ = start(suite)
    assert len(rows) == 4 * 2 * 2
    assert len({tuple(row[key] for key in IDENTITY) for row in rows}) == len(rows)
    failed = [row for row in rows if not row["feasible"]]
    assert {row["problem"] for row in failed} == {"file=missing.json"}
    assert all("missing.json" in row["error"] for row in failed)
    for row in rows:
        assert row["commit"]
        assert row["versions"]["torch"]
        assert row["machine"]["cores"] >= 1
        assert row["seconds"] >= 0
        if row["feasible"]:
            assert 0 < row["lower_bound"] <= row["step_time"]
    assert "heft" in summary
    assert len({row["digest"] for row in rows if row["feasible"]}) == 3


def test_rows_tell_family_and_cluster(suite):
    rows, _, _ = start(suite)
    told = {
        (row["problem"], row["family"], row["cluster"])
        for row in rows
        if row["feasible"]
    }
    assert ("family=layered seed=3", "layered", "drawn") in told
    assert ("file=chain.json", "chain.json", "drawn") in told


def test_parts_share_the_problems_and_overrides_replace_the_placers(suite):
    out = Console(file=io.StringIO(), width=160)
    found = []
    for k in (1, 2):
        override = Override(
            placers=("m-topo",), seeds=(7,), budgets=(0.0,), part=(k, 2)
        )
        run_suite(
            str(suite / "tiny.yaml"), str(suite / "r"), out, lambda line: None, override
        )
        found.append(read_rows(suite / "r" / f"tiny-{k}-of-2.jsonl"))
    assert [len(rows) for rows in found] == [2, 2]
    assert {(row["placer"], row["seed"]) for rows in found for row in rows} == {
        ("m-topo", 7)
    }
    assert len({row["problem"] for rows in found for row in rows}) == 4


def test_a_cell_pays_for_its_own_search_space(monkeypatch, suite):
    spaces = []
    made = Single.search

    def search(self, space, rng, deadline):
        spaces.append(space)
        return made(self, space, rng, deadline)

    monkeypatch.setattr(Single, "search", search)
    monkeypatch.setattr("gnnplace.bench.kinds.warm_placers", lambda names: None)
    start(suite)
    assert (
        len({id(space) for space in spaces})
        == len({id(s.problem) for s in spaces})
        == 6
    )


def test_rows_are_summed_up_and_the_best_known_kept(suite, capsys):
    start(suite)
    rows, best = str(suite / "results" / "tiny.jsonl"), str(suite / "best.json")
    more = [
        "--best-known",
        best,
        "--rival",
        "heft",
        "--dirty",
        "-o",
        str(suite / "tables"),
    ]
    assert run(["bench", "summary", rows, "--record", *more]) == 0
    assert "gap closed" in capsys.readouterr().out
    assert len(read_best_known(best)) == 3
    text = (suite / "tables" / "summary.md").read_text()
    assert "| heft | 0 s |" in text
    assert "missing.json" in text  # of the failed cells
    for plot in ("tiny-seconds.svg", "tiny-profiles.svg"):
        assert "<svg" in (suite / "tables" / plot).read_text()
        assert plot in text
    page = (suite / "tables" / "summary.html").read_text()
    assert page.count("<svg") == 2
    assert "Share of problems" in page
    assert run(["bench", "summary", rows, "--only", "layered", "--dirty"]) == 0
    assert "1 problems" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["summary", "ROWS", "--record"], "--record needs --best-known"),
        (["summary", "ROWS", "--only", "moon"], "contains 'moon'"),
        (["summary", "missing.jsonl"], "missing.jsonl: no such file"),
        ([], "the following arguments are required: suite"),
        (["SUITE", "-o", "r", "--part", "3/2"], "part 3/2"),
        (["SUITE", "-o", "r", "--part", "3"], "--part '3': give K/N"),
        (["SUITE", "-o", "r", "--budgets", "a"], "--budgets 'a': give numbers"),
        (["SUITE", "-o", "r", "--placers", "magic"], "placer 'magic': unknown"),
    ],
)
def test_mistakes_of_the_command_line_are_one_line(suite, more, message, capsys):
    (suite / "rows.jsonl").write_text("")
    named = {"ROWS": str(suite / "rows.jsonl"), "SUITE": str(suite / "tiny.yaml")}
    assert run(["bench", *(named.get(word, word) for word in more)]) == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1


def test_an_interrupted_run_goes_on_where_it_stopped(suite):
    rows, _, _ = start(suite)
    path = suite / "results" / "tiny.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:5], lines[5][:40]]))
    again, _, said = start(suite)
    assert len(again) == len(rows)
    assert "11 cells to run, 5 rows" in said[0]
    assert [json.loads(line) for line in lines[:5]] == again[:5]
    _, _, said = start(suite)
    assert "0 cells to run" in said[0]


def test_a_row_that_is_none_is_named(suite):
    start(suite)
    path = suite / "results" / "tiny.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "nonsense", *lines[1:]]) + "\n")
    with pytest.raises(FormatError, match="line 2"):
        read_rows(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            SUITE.replace("family: layered", "family: layered, model: mlp"),
            "exactly one",
        ),
        (SUITE.replace("placers: [single, heft]", "placers: [magic]"), "'magic'"),
        (SUITE + "budgets: [-1.0]\n", "budgets[0]"),
        (SUITE + "colour: blue\n", "colour: unknown key"),
        ("name: [", "not YAML"),
    ],
)
def test_malformed_suites_are_one_line(suite, text, message, capsys):
    (suite / "tiny.yaml").write_text(text)
    assert run(["bench", str(suite / "tiny.yaml"), "-o", str(suite / "r")]) == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1


@pytest.mark.timed
def test_a_cell_that_takes_too_long_is_stopped():
    begin = time.perf_counter()
    with (
        pytest.raises(CellTimeoutError, match=r"timed out after 0\.1 s"),
        time_limit(0.1),
    ):
        time.sleep(5)
    assert time.perf_counter() - begin < 1
