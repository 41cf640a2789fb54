from __future__ import annotations

from threading import Timer

import pytest

from tests import leftovers


@pytest.fixture
def shared(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "SHARED", str(tmp_path))
    return tmp_path


def test_shared_memory_that_stays_is_told(shared, monkeypatch):
    monkeypatch.setattr(leftovers, "LONGEST", 0.1)
    with pytest.raises(AssertionError, match="mine"), leftovers.nothing_shared():
        (shared / "mine").touch()


def test_what_another_test_shares_for_a_while_is_waited_for(shared):
    (shared / "before").touch()
    with leftovers.nothing_shared():
        (shared / "sem.mp").touch()
        Timer(0.3, (shared / "sem.mp").unlink).start()
    assert [path.name for path in shared.iterdir()] == ["before"]
