"""A published layer on seven kinds of GPUs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.studies.costs.layers import layer_times, tf32
from benchmarks.studies.costs.sailor_data import data


def test_a_published_layer_on_seven_kinds() -> None:
    found = layer_times()
    assert len({row.gpu for row in found}) == 7
    assert len(found) == sum(len(mine) for mine in data()["layers"].values())
    assert np.mean([abs(row.off) for row in found]) < 0.1
    assert max(abs(row.off) for row in found) < 0.25
    one = next(row for row in found if (row.gpu, row.batch) == ("rtx-3090", 1))
    assert one.measured_backward == pytest.approx(0.012, rel=0.02)


def test_tf32_is_a_setting_that_is_put_back() -> None:
    before = torch.get_float32_matmul_precision()
    with tf32():
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before
