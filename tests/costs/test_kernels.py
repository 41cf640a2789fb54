from __future__ import annotations

import numpy as np
import pytest

from gnnplace.costs.frameworks.constants import load_hardware_constants
from gnnplace.costs.kernels import find_kernels
from gnnplace.costs.tables import load_shipped_tables
from gnnplace.errors import InputError
from gnnplace.problem.cluster.gpus import get_figures


def test_products_are_those_of_the_table_at_a_sustained_clock():
    """Every large measured product of H100, in the mean within 5 % of the clock's factor."""
    rows = load_shipped_tables().rows["h100"]
    large = rows.take(
        (rows.op == "matmul") & (rows.dtype == "bfloat16") & (rows.flops > 1e11)
    )
    own = find_kernels("h100", "flash")
    shapes = [tuple(int(size) for size in sizes[1:4]) for sizes in large.sizes[:40]]
    found = np.array([own.products([shape]) for shape in shapes])
    ratio = np.median(found / large.seconds[:40])
    assert ratio == pytest.approx(load_hardware_constants()["products.h100"], rel=0.05)


def test_longer_examples_attend_at_a_better_rate():
    """Half of the scores under the causal mask, at R S / (S + S0)."""
    own = find_kernels("h100", "flash")
    short, long = (own.attend(16384, length, 4096, 128) for length in (1024, 8192))
    half = own.rates["half"]
    assert long / short == pytest.approx((8192 + half) / (1024 + half))
    assert own.attend(16384, 8192, 4096, 64) > long


def test_bytes_pass_at_a_share_of_the_memorys_bandwidth():
    own = find_kernels("a100-80", "triton")
    assert own.stream(1e9) == pytest.approx(
        1e9 / (0.75 * get_figures("a100-80").bandwidth)
    )


def test_a_gpu_without_constants_is_named_with_those_that_have_some():
    with pytest.raises(
        InputError, match="'t4': no constants of a decoder's step are known; use"
    ):
        find_kernels("t4", "flash")
