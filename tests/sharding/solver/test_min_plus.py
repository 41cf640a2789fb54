from __future__ import annotations

import numpy as np
import pytest

from gnnplace.sharding.solver.min_plus import min_plus


@pytest.mark.parametrize(
    ("rows", "inner", "columns"), [(1, 1, 1), (3, 5, 7), (2, 4, 513), (40, 31, 1), (1, 130, 600)]
)
def test_equals_numpy(rows, inner, columns):
    rng = np.random.default_rng(rows)
    a, b = rng.normal(size=(rows, inner)), rng.normal(size=(inner, columns))
    expected = (a[:, :, None] + b[None]).min(axis=1)
    np.testing.assert_array_equal(min_plus(a, b), expected)
