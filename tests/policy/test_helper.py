"""The process that compiles beside this one."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from gnnplace.policy import helper
from gnnplace.policy.helper import beside


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Processes that were started."""
    made: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def popen(*args: object, **options: object) -> subprocess.Popen[bytes]:
        made.append(real(*args, **options))  # type: ignore[call-overload]
        return made[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    return made


def test_it_is_waited_for(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper, "MODULE", "this")
    with beside(["learned"]):
        assert len(started) == 1
    assert started[0].returncode == 0


def test_one_that_fails_is_of_no_consequence(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper, "MODULE", "no_such_module")
    with beside(["learned"]):
        pass
    assert started[0].returncode != 0


def test_it_ends_with_an_interrupt(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper, "MODULE", "http.server")  # would go on for ever
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt), beside(["0"]):
        raise KeyboardInterrupt
    assert started[0].returncode is not None
    assert time.monotonic() - begin < 20


def test_a_single_core_has_none(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    with beside(["learned"]):
        pass
    assert started == []
