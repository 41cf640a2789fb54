from __future__ import annotations

import os
import subprocess
import sys

import numpy as np

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
