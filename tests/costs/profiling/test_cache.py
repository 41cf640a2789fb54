"""The cache on disk: keyed by content, forgiving, movable."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from gnnplace.costs.profiling import cache
from gnnplace.costs.profiling.cache import (
    MOST_AGE,
    MOST_LOAD,
    PAUSE,
    Conditions,
    read_conditions,
    spread,
    watch_conditions,
    watch_load,
)
from gnnplace.files import cache_folder
from tests.costs.profiling.programs import captured, small

SPIN = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GNNPLACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


NOW = datetime.now(UTC)
QUIET = Conditions(NOW, NOW, 0.01, 0.02)
LOUD = Conditions(NOW, NOW, 0.6, 0.02)


class Measured:
    """Gives 1, 2, 3 ... and stands for the machine while it does."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *conditions: Conditions
    ) -> None:
        self.count, self.conditions = 0, conditions
        monkeypatch.setattr(cache, "watch_conditions", self.made)

    def made(self, measure: Callable[[], tuple[int, float]]) -> tuple[int, Conditions]:
        given = self.conditions[min(self.count, len(self.conditions) - 1)]
        return measure()[0], replace(
            given, when=datetime.now(UTC), tried=datetime.now(UTC)
        )

    def __call__(self) -> tuple[int, float]:
        self.count += 1
        return self.count, 0.0

    def kept(self, said: list[str] | None = None, **more: bool) -> int:
        told = None if said is None else said.append
        fits = lambda value: isinstance(value, int)  # noqa: E731
        found = cache.get_or_measure(
            "ops", "k", self, what="it", fits=fits, progress=told, **more
        )
        assert isinstance(found, int)
        return found


def aged(folder: Path, **past: timedelta) -> None:
    """Makes the entry as old as is said."""
    path = folder / "ops" / "k.json"
    data = json.loads(path.read_text())
    for name, age in past.items():
        data[name] = (datetime.now(UTC) - age).isoformat()
    path.write_text(json.dumps(data))


def test_an_entry_comes_back(folder: Path) -> None:
    assert cache.load("ops", "k") is None
    cache.store("ops", "k", [1.0, 2.0], QUIET)
    assert cache.load("ops", "k") == ([1.0, 2.0], QUIET)
    assert [p.name for p in (folder / "ops").iterdir()] == ["k.json"]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"other": 1}',
        '{"value": 1, "when": 3}',
        '{"value": 1, "when": "soon"}',
    ],
)
def test_a_broken_entry_is_measured_anew(folder: Path, text: str) -> None:
    cache.store("ops", "k", [1.0], QUIET)
    (folder / "ops" / "k.json").write_text(text)
    assert cache.load("ops", "k") is None


def test_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("GNNPLACE_CACHE", str(blocked))
    cache.store("ops", "k", [1.0], QUIET)
    assert cache.load("ops", "k") is None


def test_a_quiet_measurement_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Measured(monkeypatch, QUIET)
    assert [measure.kept(), measure.kept()] == [1, 1]


def test_a_value_that_does_not_fit_is_measured_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measure = Measured(monkeypatch, QUIET)
    cache.store("ops", "k", "no number", QUIET)
    assert [measure.kept(), measure.kept()] == [1, 1]


def test_an_old_measurement_is_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = Measured(monkeypatch, QUIET)
    measure.kept()
    aged(folder, when=MOST_AGE - timedelta(hours=1))
    assert measure.kept() == 1
    aged(folder, when=MOST_AGE + timedelta(hours=1))
    assert measure.kept() == 2
    aged(folder, when=-timedelta(hours=1))  # from the future: the clock was set
    assert measure.kept() == 3


def test_a_noisy_measurement_is_made_twice_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    louder = replace(LOUD, load=0.9)
    assert Measured(monkeypatch, LOUD, louder).kept(said) == 1
    assert "once more: others took 60%" in said[0]
    assert "busy machine" in said[1]
    assert "--fresh" in said[1]


def test_of_two_the_quieter_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    assert Measured(monkeypatch, LOUD, QUIET).kept(said) == 2
    assert len(said) == 1


@pytest.mark.parametrize(("load", "times"), [(0.9, 2), (0.0, 4)])
def test_a_noisy_one_is_tried_again_when_the_machine_is_quiet(
    folder: Path, monkeypatch: pytest.MonkeyPatch, load: float, times: int
) -> None:
    monkeypatch.setattr(cache, "load_now", lambda: load)
    measure = Measured(monkeypatch, LOUD)
    measure.kept()
    measure.kept()
    assert measure.count == 2  # it was tried just now
    aged(folder, tried=PAUSE + timedelta(minutes=1))
    measure.kept()
    assert measure.count == times


def test_a_worse_try_does_not_replace_what_is_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "load_now", lambda: 0.0)
    measure = Measured(monkeypatch, LOUD)
    assert measure.kept() == 1
    aged(folder, tried=PAUSE + timedelta(minutes=1))
    measure.conditions = (replace(LOUD, load=0.9),)
    assert measure.kept() == 1
    assert measure.kept() == 1
    assert measure.count == 4  # two tries, of two each


def test_measured_anew_measures_each_thing_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measure = Measured(monkeypatch, QUIET)
    assert measure.kept() == 1
    with cache.measure_anew():
        assert [measure.kept(), measure.kept()] == [2, 2]
    assert measure.kept() == 2


def test_default_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GNNPLACE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/gnnplace")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "gnnplace"


def test_digest_is_of_content() -> None:
    a, b = small("mlp", width=8, depth=1), captured("mlp", width=8, depth=1)
    assert cache.program_digest(a) == cache.program_digest(b)
    assert cache.program_digest(a) == cache.program_digest(
        replace(b, name="x", initial={})
    )
    assert cache.program_digest(a) != cache.program_digest(
        small("mlp", width=16, depth=1)
    )
    assert cache.program_digest(a) != cache.program_digest(replace(a, ops=a.ops[:-1]))
    changed = replace(a.ops[-1], args=(*a.ops[-1].args[:-1], 0.5))
    assert cache.program_digest(a) != cache.program_digest(
        replace(a, ops=(*a.ops[:-1], changed))
    )


def test_keys_depend_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache.make_cache_key("ops", "x")
    assert cache.make_cache_key("ops", "x") == before
    assert cache.make_cache_key("ops", "y") != before
    monkeypatch.setattr(cache, "describe_profiled_machine", lambda: {"cpu": "another"})
    assert cache.make_cache_key("ops", "x") != before


def test_conditions_come_back_from_plain_data() -> None:
    now = datetime.now(UTC)
    made = Conditions(now, now, 0.25, 0.5)
    assert read_conditions(made.data()) == made


@pytest.mark.alone
def test_what_others_do_is_load_and_what_is_done_here_is_not() -> None:
    def busy() -> tuple[int, float]:
        end = time.perf_counter() + 1.0
        while time.perf_counter() < end:
            pass
        return 1, 0.3

    value, alone = watch_conditions(busy)
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(2)]
    try:
        time.sleep(0.3)  # a child that is not reaped yet counts as another process
        load = watch_load()
        time.sleep(1.0)
        loaded = load()
    finally:
        for process in others:
            process.kill()
            process.wait()
    assert (value, alone.noise) == (1, 0.3)
    assert loaded > alone.load
    assert loaded > MOST_LOAD


def test_spread() -> None:
    assert spread(np.array([1.0])) == 0.0
    assert spread(np.zeros(3)) == 0.0
    assert spread(np.array([1.0, 2.0, 3.0, 4.0, 5.0])) == pytest.approx(2 / 3)
