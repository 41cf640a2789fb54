"""The store keeps what it is given: from several writers, and whenever one is killed."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import pytest

from gnnplace.errors import InputError
from gnnplace.measurements import (
    MeasurementStore,
    Outcome,
    Selection,
    open_store,
    store_url,
)
from tests.measurements.writer import BATCH, run_record, step_record


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "store.db"


def writer(path, name, runs, batches):
    arguments = [
        sys.executable,
        "-m",
        "tests.measurements.writer",
        path,
        name,
        runs,
        batches,
    ]
    return subprocess.Popen(
        [str(a) for a in arguments], stdout=subprocess.PIPE, text=True
    )


def test_a_run_comes_back_as_it_was_given(path):
    store, run = MeasurementStore(path), run_record()
    store.begin(run)
    steps = [
        step_record(3, 2.0),
        step_record(4, 1.0),
        step_record(5, 9.0, interrupted=True),
    ]
    store.add_steps(run.id, steps)
    store.end(run.id, Outcome("ok", verified=True, bitwise=False))
    (found,) = MeasurementStore(path).runs()
    assert (found.model, found.placer, found.predicted, found.microbatches) == (
        "m",
        "heft",
        0.5,
        2,
    )
    # The interrupted one is out.
    assert (found.steps, found.wall, found.virtual) == (3, 1.5, 1.0)
    assert (found.outcome.status, found.outcome.verified, found.outcome.bitwise) == (
        "ok",
        True,
        False,
    )
    assert found.machine == {"cores": 2}
    assert store.steps(run.id) == steps
    assert store.problem(found.problem) == run.problem
    assert store.placement(run.id) == run.placement


def test_one_problem_is_kept_once(path):
    store = MeasurementStore(path)
    for _ in range(3):
        store.begin(run_record())
    store.begin(run_record(number=1))
    assert len({run.problem for run in store.runs()}) == 2
    with sqlite3.connect(path) as raw:
        assert raw.execute("select count(*) from gnnplace_problems").fetchone() == (2,)


def test_an_outcome_is_never_changed(path):
    store, run = MeasurementStore(path), run_record()
    store.begin(run)
    assert store.runs()[0].outcome.status == "open"
    store.end(run.id, Outcome("failed", "worker died"))
    store.end(run.id, Outcome("ok"))
    assert store.runs()[0].outcome.error == "worker died"
    assert store.runs()[0].step_time is None


def test_a_batch_of_steps_is_kept_whole_or_not_at_all(path):
    store, run = MeasurementStore(path), run_record()
    store.begin(run)
    store.add_steps(run.id, [step_record(1)])
    with pytest.raises(InputError, match="written"):
        store.add_steps(run.id, [step_record(0), step_record(1)])  # 1 is there already
    assert [step.step for step in store.steps(run.id)] == [1]


def test_steps_of_a_run_that_never_began_are_refused(path):
    with pytest.raises(InputError, match="FOREIGN KEY"):
        MeasurementStore(path).add_steps("nobody", [step_record(0)])


def test_writers_at_once_lose_nothing(path):
    writers = [writer(path, f"w{k}", 6, 5) for k in range(4)]
    assert [w.wait(60) for w in writers] == [0] * 4
    runs = MeasurementStore(path).runs()
    assert Counter(run.model for run in runs) == {f"w{k}": 6 for k in range(4)}
    assert {run.steps for run in runs} == {5 * BATCH}
    assert {run.outcome.status for run in runs} == {"ok"}


def test_killed_writers_leave_whole_batches_and_block_nobody(path):
    rng = random.Random(0)
    MeasurementStore(path)
    told: set[tuple[str, int]] = set()
    for round_ in range(4):
        writers = [writer(path, f"w{round_}.{k}", 1000, 3) for k in range(2)]
        for w in writers:
            told.update(_told(w.stdout.readline()))  # it writes
        time.sleep(rng.uniform(0.0, 0.3))
        for w in writers:
            w.send_signal(signal.SIGKILL)
        for w in writers:
            told.update(entry for line in w.stdout for entry in _told(line))
            w.wait()
    store = MeasurementStore(path)
    _intact(path)
    runs = {run.id: run for run in store.runs()}
    assert all(run.steps % BATCH == 0 for run in runs.values())
    for run, batch in told:  # what a writer was told to be kept is there
        assert runs[run].steps >= (batch + 1) * BATCH
    store.begin(run_record("after"))
    assert store.runs()[0].model == "after"


def _told(line):
    return [(line.split()[0], int(line.split()[1]))] if line.endswith("\n") else []


def _intact(path):
    with sqlite3.connect(path) as raw:
        assert raw.execute("pragma journal_mode").fetchone() == ("wal",)
        assert raw.execute("pragma integrity_check").fetchone() == ("ok",)
        assert raw.execute("pragma foreign_key_check").fetchall() == []


def test_pruning_beside_a_writer_forgets_what_it_should(path):
    store = MeasurementStore(path)
    old = replace(run_record("old", 7), began="2020-01-01T00:00:00.000000+00:00")
    store.begin(old)
    store.add_steps(old.id, [step_record(0)])
    busy = writer(path, "new", 20, 3)
    busy.stdout.readline()
    assert store.prune(Selection(before="2021-01-01")) == 1
    assert busy.wait(60) == 0
    assert {run.model for run in store.runs()} == {"new"}
    assert store.steps(old.id) == []
    with pytest.raises(InputError, match="nothing"):
        store.problem("0" * 64)
    _intact(path)


def test_selections(path):
    store = MeasurementStore(path)
    runs = [run_record("a", 1), run_record("b", 2, mode="emulated"), run_record("a", 3)]
    for k, run in enumerate(runs):
        store.begin(replace(run, began=f"2026-01-0{k + 1}T00:00:00.000000+00:00"))
    store.end(runs[0].id, Outcome("ok"))
    store.end(runs[1].id, Outcome("failed", "x"))

    def found(**selection):
        return [run.id for run in store.runs(Selection(**selection))]

    assert found() == [runs[2].id, runs[1].id, runs[0].id]
    assert found(model="a") == [runs[2].id, runs[0].id]
    assert found(mode="emulated") == [runs[1].id]
    assert found(before="2026-01-02") == [runs[0].id]
    assert found(failed=True) == [runs[2].id, runs[1].id]
    store.end(runs[2].id, Outcome("interrupted"))
    assert found(failed=True) == [runs[2].id, runs[1].id]
    assert found(run=runs[0].id[:12]) == [runs[0].id]
    assert found(fingerprint=runs[2].fingerprint) == [runs[2].id]
    assert found(fingerprint="%") == []
    assert store.prune(Selection(model="a"), keep=1) == 1
    assert found() == [runs[2].id, runs[1].id]


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("nosuch://x", "nosuch"),
        ("postgresql+nodriver://u:secret@h/db", "nodriver"),
        ("/proc/nowhere/store.db", "opened"),
    ],
)
def test_a_store_that_cannot_be_opened_is_told_in_one_line(url, complaint):
    with pytest.raises(InputError, match=complaint) as failure:
        MeasurementStore(url)
    assert "\n" not in str(failure.value)
    assert "secret" not in str(failure.value)


def test_a_file_that_is_something_else_is_refused(path):
    path.parent.mkdir()
    path.write_text("not a database, and long enough to be looked at" * 40)
    with pytest.raises(InputError, match="not a database"):
        MeasurementStore(path)


def test_a_store_of_another_version_is_refused(path):
    MeasurementStore(path)
    with sqlite3.connect(path) as raw:
        raw.execute("update gnnplace_store set version = 99")
    with pytest.raises(InputError, match="99"):
        MeasurementStore(path)


def test_where_the_store_is_by_default(monkeypatch, tmp_path):
    monkeypatch.setenv("GNNPLACE_STORE", "postgresql://h/db")
    assert store_url() == "postgresql://h/db"
    assert store_url("own.db") == "own.db"
    monkeypatch.delenv("GNNPLACE_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert store_url() == str(tmp_path / "gnnplace" / "measurements.db")


def test_none_keeps_nothing_by_the_option_and_by_the_variable(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert open_store("none") is None
    monkeypatch.setenv("GNNPLACE_STORE", "none")
    assert open_store() is None
    assert open_store("own.db") is not None
    with pytest.raises(InputError, match="store 'none': it means that nothing is kept"):
        MeasurementStore("none")
    assert [path.name for path in tmp_path.iterdir()] == ["own.db"]
