"""One model to measure placements of: lazily, by its own name in the store, with what it keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

import gnnplace
from gnnplace.cli.main import run
from gnnplace.measurements import MeasurementStore
from gnnplace.run.workers.tasks import available_cores
from gnnplace.train.workbench import (
    CaptureSettings,
    MeasurementSettings,
    StoreSettings,
    Workbench,
)

MODEL = "mlp?batch=8&depth=2"


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    store = tmp_path_factory.mktemp("bench") / "store.db"
    return Workbench(
        MODEL,
        "cpu:2",
        capture=CaptureSettings(microbatches=2),
        measurement=MeasurementSettings(mode="emulated", steps=2),
        store=StoreSettings(str(store)),
    )


def place(bench, name):
    return gnnplace.place(bench.problem, placer=name, budget=0).placement


def test_nothing_happens_before_it_is_asked():
    Workbench(
        "there is no such model",
        "no such cluster",
        store=StoreSettings("/no/such/folder/store.db"),
    )


def test_placements_are_measured_once_by_each_name(bench):
    placements = [place(bench, "single"), place(bench, "contiguous")]
    found = bench.measure(placements)
    assert all(m.seconds > 0 and not m.error for m in found)
    assert set(found[0].ops) == set(bench.problem.graph.names)
    other = bench.with_label("other")
    assert other.problem is bench.problem
    assert not other.measure(placements[:1])[0].stored
    assert bench.with_label(MODEL).measure(placements[:1])[0].stored
    runs = MeasurementStore(bench._store.url).runs()
    assert sorted(r.model for r in runs) == [MODEL, MODEL, "other"]


def test_what_is_kept_can_be_executed_and_says_how_it_was_captured(
    bench, tmp_path, capsys
):
    path = tmp_path / "p.json"
    bench.keep(path, place(bench, "contiguous"))
    steps = ["--steps", "1", "--no-eager", "--mode", "emulated", "--store", "none"]
    assert run(["execute", MODEL, str(path), *steps]) == 0
    shown = capsys.readouterr().out
    assert "bitwise equal" in shown
    assert "memory of cpu:0" in shown or not Path("/proc/self/clear_refs").exists()


def test_there_is_room_for_as_many_as_have_cores_of_their_own(bench):
    assert bench.room == max(1, len(available_cores()) // 2)
