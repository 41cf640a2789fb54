from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
from numba import njit

from gnnplace.graph.ahead import ahead
from gnnplace.graph.jit import kernel


@kernel
def summed(row, table, order):
    """Sums entries as they are listed, each asked for one before."""
    total = 0.0
    for k in range(len(order)):
        if k + 1 < len(order):
            ahead(row, order[k + 1])
            ahead(table, order[k + 1])
        total += row[order[k]] + table[order[k], 1]
    return total


def test_what_is_asked_for_changes_nothing():
    row, table = np.arange(5.0), np.arange(10.0).reshape(5, 2)
    order = np.array([3, 0, 4], np.int32)
    assert summed(row, table, order) == 7.0 + 7.0 + 1.0 + 9.0
    assert row.tolist() == list(range(5))


def test_the_instruction_is_made():
    made = njit(summed.py_func)  # not from the cache, which has no text
    made(np.zeros(2), np.zeros((2, 2)), np.zeros(1, np.int32))
    assert "llvm.prefetch" in next(iter(made.inspect_llvm().values()))


def test_in_python_it_is_nothing():
    code = "from gnnplace.graph.ahead import ahead; print(ahead([1], 0))"
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "None\n"
