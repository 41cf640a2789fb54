"""The cache on disk: keyed by content, forgiving, movable."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gnnplace.profiling import cache
from tests.profiling.programs import small


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GNNPLACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_entry_comes_back(folder: Path) -> None:
    assert cache.load("ops", "k") is None
    cache.store("ops", "k", [1.0, 2.0])
    assert cache.load("ops", "k") == [1.0, 2.0]
    assert [p.name for p in (folder / "ops").iterdir()] == ["k.json"]


def test_a_broken_entry_is_measured_anew(folder: Path) -> None:
    cache.store("ops", "k", [1.0])
    for text in ("{", "[]", '{"other": 1}'):
        (folder / "ops" / "k.json").write_text(text)
        assert cache.load("ops", "k") is None


def test_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("GNNPLACE_CACHE", str(blocked))
    cache.store("ops", "k", [1.0])
    assert cache.load("ops", "k") is None


def test_default_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GNNPLACE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.cache_folder() == Path("/somewhere/gnnplace")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_folder() == Path.home() / ".cache" / "gnnplace"


def test_digest_is_of_content() -> None:
    a, b = small("mlp", width=8, depth=1), small("mlp", width=8, depth=1)
    assert cache.program_digest(a) == cache.program_digest(b)
    assert cache.program_digest(a) == cache.program_digest(replace(b, name="x", initial={}))
    assert cache.program_digest(a) != cache.program_digest(small("mlp", width=16, depth=1))
    assert cache.program_digest(a) != cache.program_digest(replace(a, ops=a.ops[:-1]))
    changed = replace(a.ops[-1], args=(*a.ops[-1].args[:-1], 0.5))
    assert cache.program_digest(a) != cache.program_digest(replace(a, ops=(*a.ops[:-1], changed)))


def test_keys_depend_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache.key("ops", "x")
    assert cache.key("ops", "x") == before
    assert cache.key("ops", "y") != before
    monkeypatch.setattr(cache, "machine", lambda: {"cpu": "another"})
    assert cache.key("ops", "x") != before
