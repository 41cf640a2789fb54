"""Functions by module, by file and by package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnnplace.errors import InputError
from gnnplace.tracing.callables import find_callable


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """What a test imports is not there for the next; the path is as it was."""
    known, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - known:
        del sys.modules[name]
    assert sys.path == path


def _written(path: Path, value: int, above: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{above}\ndef build():\n    return {value}\n")
    return path


@pytest.mark.parametrize("name", ["misc_a.py", "./misc_a.py", "sub/misc_b.py", "code.py"])
def test_a_file_by_its_path(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = _written(tmp_path / name, 3)
    assert find_callable(name, "build", name)() == 3
    assert find_callable(str(path), "build", name)() == 3  # absolute


def test_two_files_of_one_name(tmp_path: Path) -> None:
    first, second = _written(tmp_path / "a/misc_c.py", 1), _written(tmp_path / "b/misc_c.py", 2)
    assert find_callable(str(first), "build", "")() == 1
    assert find_callable(str(second), "build", "")() == 2
    assert find_callable(str(first), "build", "")() == 1


def test_a_file_finds_those_beside_it(tmp_path: Path) -> None:
    _written(tmp_path / "beside_d.py", 5)
    path = _written(tmp_path / "misc_d.py", 0, "from beside_d import build as other")
    assert find_callable(str(path), "other", "")() == 5


def test_a_file_of_a_package(tmp_path: Path) -> None:
    _written(tmp_path / "pack_e/__init__.py", 0)
    _written(tmp_path / "pack_e/layers.py", 7)
    path = _written(tmp_path / "pack_e/misc.py", 0, "from .layers import build as other")
    found = find_callable(str(path), "other", "")
    assert found() == 7
    assert found.__module__ == "pack_e.layers"


def test_code_that_fails_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "misc_f.py"
    path.write_text("x = 1\ny = x / 0\n")
    with pytest.raises(InputError, match=r"ZeroDivisionError: .* at .*misc_f.py:2"):
        find_callable(str(path), "build", "misc_f.py:build")


def test_a_module_in_a_folder_is_told_how_to_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _written(tmp_path / "sub_g/misc.py", 0)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"write sub_g/misc\.py:NAME"):
        find_callable("sub_g/misc", "build", "sub_g/misc:build")
