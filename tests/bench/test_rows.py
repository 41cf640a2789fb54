"""Digests: what tells two problems of one name apart, and joins them with committed rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gnnplace.bench.rows import (
    mend_last_line,
    read_rows,
    set_aside,
)
from gnnplace.bench.standings import merge_best_known
from gnnplace.bench.suite import check_suite_name, read_suite
from gnnplace.errors import FormatError
from gnnplace.placers.contract import branches as toy
from gnnplace.problem import compute_digest
from gnnplace.problem.cluster import Cluster, Device
from gnnplace.problem.cluster.cluster import Link

ROOT = Path(__file__).parents[2] / "benchmarks"


def test_committed_rows_are_joined_again():
    """Every eighth problem of the suite; loading all forty takes ten seconds."""
    rows = read_rows(ROOT / "results" / "standard" / "standard.jsonl")
    known = {row["problem"]: row["digest"] for row in rows}
    for entry in read_suite(ROOT / "suites" / "standard.yaml").problems[::8]:
        assert compute_digest(entry.load(ROOT / "suites")) == known[entry.key], (
            entry.key
        )


def test_a_field_more_with_a_default_moves_no_digest():
    class Later(Device):
        cooling: str = "air"

    class LaterLink(Link):
        lanes: int = 0

    problem = toy()
    cluster = problem.cluster

    def with_more(device: dict[str, object], link: dict[str, object]) -> str:
        devices = tuple(Later(**one.model_dump(), **device) for one in cluster.devices)
        links = tuple(LaterLink(**one.model_dump(), **link) for one in cluster.links)
        return compute_digest(replace(problem, cluster=Cluster(devices, links)))

    told = compute_digest(problem)
    assert with_more({}, {}) == told
    assert (
        len({told, with_more({"cooling": "water"}, {}), with_more({}, {"lanes": 2})})
        == 3
    )


def test_what_a_problem_says_moves_its_digest():
    problem = toy()
    told = {
        compute_digest(problem),
        compute_digest(replace(problem, state=problem.state + 1.0)),
    }
    device, *others = problem.cluster.devices
    spare = (device.model_copy(update={"reserve": 1.0}), *others)
    told.add(
        compute_digest(replace(problem, cluster=Cluster(spare, problem.cluster.links)))
    )
    assert len(told) == 3


def test_a_digest_without_the_version_of_its_rule_is_refused(tmp_path):
    path, row = (
        tmp_path / "rows.jsonl",
        {"problem": "p", "placer": "etf", "seed": 0, "budget": 0.0},
    )
    path.write_text(json.dumps(row | {"digest": "0123456789ab"}) + "\n")
    with pytest.raises(FormatError, match="line 1: not a result row: digest"):
        read_rows(path)


def test_rows_may_lack_what_has_a_default(tmp_path):
    path, row = (
        tmp_path / "rows.jsonl",
        {"problem": "p", "placer": "etf", "seed": 0, "budget": 0.0},
    )
    found = row | {"placer": "heft", "feasible": True, "step_time": 1.0, "commit": None}
    path.write_text(f"{json.dumps(row)}\n{json.dumps(found)}\n")
    failed, ran = read_rows(path)
    assert (failed["feasible"], failed["step_time"], failed["commit"]) == (
        False,
        None,
        "",
    )
    [best] = merge_best_known({}, [failed, ran]).values()
    assert (best.placer, best.step_time, best.commit) == ("heft", 1.0, "")


def test_a_last_line_without_a_newline_is_a_row_and_reading_writes_nothing(tmp_path):
    path, row = (
        tmp_path / "rows.jsonl",
        {"problem": "p", "placer": "etf", "seed": 0, "budget": 0.0},
    )
    lines = [json.dumps(row | {"seed": seed}) for seed in range(3)]
    path.write_text("\n".join(lines))
    assert [found["seed"] for found in read_rows(path)] == [0, 1, 2]
    assert path.read_text() == "\n".join(lines)
    mend_last_line(path)
    assert path.read_text() == "\n".join([*lines, ""])
    cut_short = "\n".join([*lines, lines[0][:20]])
    path.write_text(cut_short)
    assert len(read_rows(path)) == 3
    assert path.read_text() == cut_short
    mend_last_line(path)
    assert path.read_text() == "\n".join([*lines, ""])


def test_rows_that_are_set_aside_stay_in_a_file_beside(tmp_path):
    path, row = (
        tmp_path / "rows.jsonl",
        {"problem": "p", "placer": "etf", "seed": 0, "budget": 0.0},
    )
    path.write_text(
        "".join(json.dumps(row | {"seed": seed}) + "\n" for seed in range(3))
    )
    aside = set_aside(path, read_rows(path)[1:2])
    assert [found["seed"] for found in read_rows(path)] == [0, 2]
    assert [found["seed"] for found in read_rows(aside)] == [1]


@pytest.mark.parametrize(
    "name", ["../mine", "/tmp/mine", "a/b", "a\\b", ".hidden", "mine@2"]
)
def test_a_suites_name_cannot_leave_the_folder(name):
    with pytest.raises(ValueError, match="names the file of rows"):
        check_suite_name(name)
