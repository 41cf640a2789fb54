from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from gnnplace.graph import code
from gnnplace.graph.jit import KERNELS, inner, kernel


@inner()
def doubled(values):
    for i in range(len(values)):
        values[i] *= 2.0


@kernel
def twice_doubled(values):
    doubled(values)
    doubled(values)
    return values[0] / values[1]


def test_an_inner_kernel_is_called_by_a_kernel_and_from_python():
    values = np.array([1.0, 2.0])
    assert twice_doubled(values) == 0.5
    assert values.tolist() == [4.0, 8.0]
    doubled(values)
    assert values.tolist() == [8.0, 16.0]


def test_division_by_zero_is_numpys():
    assert twice_doubled(np.array([1.0, 0.0])) == np.inf


def test_kernels_are_listed():
    assert doubled in KERNELS
    assert twice_doubled in KERNELS


def test_without_the_compiler_kernels_are_python():
    code = "from gnnplace.graph import jit, kernels; print(type(kernels.least_first).__name__)"
    off = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    said = subprocess.run(
        [sys.executable, "-c", code], env=off, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "function"


SOURCE = """
import numpy as np
import pytest
from gnnplace.graph.jit import inner, kernel

@inner()
def doubled(values):
    for i in range(len(values)):
        values[i] *= 2.0

@kernel
def once(values):
    doubled(values)
    return values[0]

@kernel
def twice(values):
    doubled(values)
    doubled(values)
    return values[0]

if __name__ == "__main__":
    import sys
    for name in sys.argv[1:]:
        made = globals()[name]
        found = made(np.ones(1))
        print(found, "read" if made.stats.cache_hits else "compiled", len(doubled.signatures))
"""


@pytest.fixture
def run(tmp_path):
    """Runs kernels by name in a process of its own; result, where from, overloads of the inner."""
    (tmp_path / "made.py").write_text(SOURCE)

    def run(*names):
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        command = [sys.executable, str(tmp_path / "made.py"), *names]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    return run


def test_kernels_are_read_from_disk(run):
    assert run("once") == ["2.0 compiled 1"]
    assert run("once") == ["2.0 read 0"]


def test_an_inner_kernel_from_disk_is_compiled_into_another_kernel(run):
    assert run("once") == ["2.0 compiled 1"]
    assert run("twice") == ["4.0 compiled 1"]


def test_files_that_cannot_be_read_are_made_anew(run, tmp_path):
    run("once")
    for path in (tmp_path / "cache").rglob("*.nb?"):
        spoilt = path.read_bytes().replace(b"numba.core.types", b"numba.gone.types")
        path.write_bytes(spoilt)
    assert run("once") == ["2.0 compiled 1"]
    assert run("once") == ["2.0 read 0"]


def test_constants_and_short_numbers_are_no_types_of_their_own():
    @inner()
    def next_one(value):
        return value + 1

    @kernel
    def sums(values):
        return next_one(0) + next_one(7) + next_one(len(values)) + next_one(values[0])

    assert sums(np.array([4], np.int32)) == 1 + 8 + 2 + 5
    assert len(next_one.signatures) == 1


def test_kernels_of_a_room_are_made_anew_when_files_below_change(tmp_path, monkeypatch):
    for room in ("graph", "simulation"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "kernels.py").write_text("from numba import njit\n")
    (tmp_path / "graph" / "names.py").write_text("ORDER = 1\n")
    monkeypatch.setattr(code, "PACKAGE", tmp_path)

    def stamps():
        code.kernels_stamp.cache_clear()
        return code.kernels_stamp("graph"), code.kernels_stamp("simulation")

    try:
        first = stamps()
        (tmp_path / "graph" / "names.py").write_text("ORDER = 2\n")
        assert stamps() == first
        (tmp_path / "simulation" / "kernels.py").write_text("from numba import jit\n")
        second = stamps()
        assert second[0] == first[0]
        assert second[1] != first[1]
        (tmp_path / "graph" / "kernels.py").write_text("from numba import jit\n")
        assert stamps()[0] != second[0]
        assert stamps()[1] != second[1]
    finally:
        code.kernels_stamp.cache_clear()


def test_kernels_of_the_package_are_stamped_by_contents():
    made = next(each for each in KERNELS if each.py_func.__module__.startswith("gnnplace.graph."))
    assert made._cache._cache_file._source_stamp == code.kernels_stamp("graph")
