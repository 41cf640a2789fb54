from __future__ import annotations

import importlib
import os
import re
import subprocess
import time

import numpy as np
import pytest

from gnnplace.graph.jit import kernel
from gnnplace.placers.search.coarse_problem import LEAST_OPS
from gnnplace.placing import warming
from gnnplace.placing.roster import THROUGHPUT
from gnnplace.placing.warming import warm_beside
from gnnplace.policy import learned


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.setattr(warming, "cache_folder", lambda: tmp_path)
    return tmp_path


def test_a_warm_placer_is_remembered(notes):
    assert not warming.is_warm(["single"])
    warming.warm(["single"])
    assert warming.is_warm(["single"])
    assert not warming.is_warm(["single", "heft"])
    assert not warming._is_noted("single", THROUGHPUT, warming.find_scope(None))


def test_what_only_large_problems_need_is_left_to_them(notes):
    warming.warm(["single"], num_ops=10)
    assert warming.is_warm(["single"], num_ops=10)
    assert not warming.is_warm(["single"], num_ops=LEAST_OPS)
    assert not warming.is_warm(["single"])
    warming.warm(["single"], num_ops=LEAST_OPS)
    assert warming.is_warm(["single"])


def test_a_large_problem_warms_the_search_on_groups(notes, monkeypatch):
    warmed = []
    monkeypatch.setattr(warming, "_search_groups", warmed.append)
    warming.warm(["narrow"], num_ops=10)
    assert warmed == []
    warming.warm(["narrow"], num_ops=LEAST_OPS)
    assert len(warmed) == 2


def test_a_small_problem_warms_the_graph_network_without_a_budget_alone(
    notes, monkeypatch
):
    asked = []
    monkeypatch.setattr(learned, "_ask", lambda *what: asked.append(what))
    warming.warm(["learned"], num_ops=10, budget=2.0)
    assert asked == []
    assert warming.is_warm(["learned"], num_ops=10, budget=2.0)
    assert not warming.is_warm(["learned"], num_ops=10, budget=0.0)
    with pytest.raises(AttributeError):  # nothing was decoded
        warming.warm(["learned"], num_ops=10, budget=0.0)
    assert len(asked) == 1


def test_what_is_about_to_be_compiled_is_told_at_once(notes):
    lines = []
    warming.warm(["single"], progress=lines.append)
    assert lines[0].startswith("compiling kernels (once; kept in ")


def test_other_sources_are_not_warm(notes, monkeypatch):
    warming.warm(["single"])
    monkeypatch.setattr(warming, "ROOMS", ("graph",))
    assert not warming.is_warm(["single"])


def test_an_unknown_placer_is_no_error_here(notes):
    warming.warm(["nobody"])
    assert not warming.is_warm(["nobody"])


def test_what_is_compiled_is_told(notes, monkeypatch):
    """The kernel stands in a file of its own, so that no earlier run has left it compiled."""
    (notes / "one_more_kernel.py").write_text(
        "def one_more(values):\n    return values[0] + 1.0\n"
    )
    monkeypatch.syspath_prepend(notes)
    one_more = kernel(importlib.import_module("one_more_kernel").one_more)
    lines = []
    monkeypatch.setattr(warming, "EVERY", 0.0)
    with warming._report_progress(lines.append, ["best"], large=True):
        assert one_more(np.array([1.0])) == 2.0
    assert len(lines) == 1
    ready, number = map(int, re.search(r": (\d+) of (\d+)$", lines[0]).groups())
    assert ready < number >= 131


def test_what_is_there_is_not_told(notes):
    warming.warm(["single"])
    lines = []
    warming.warm(["single"], progress=lines.append)
    assert lines == []


def test_search_is_compiled_without_a_budget():
    from gnnplace.placers.search.annealing import anneal_until_better

    warming.warm(["learned"])
    assert len(anneal_until_better.signatures) == 1


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
    monkeypatch.setattr(warming, "MODULE", "this")
    with warm_beside(["learned"]):
        assert len(started) == 1
    assert started[0].returncode == 0


def test_one_that_fails_is_of_no_consequence(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warming, "MODULE", "no_such_module")
    with warm_beside(["learned"]):
        pass
    assert started[0].returncode != 0


def test_it_ends_with_an_interrupt(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warming, "MODULE", "http.server")  # would go on for ever
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt), warm_beside(["0"]):
        raise KeyboardInterrupt
    assert started[0].returncode is not None
    assert time.monotonic() - begin < 20


def test_a_single_core_has_none(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    with warm_beside(["learned"]):
        pass
    assert started == []
