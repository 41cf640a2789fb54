from __future__ import annotations

import numpy as np
import pytest

from gnnplace.sharding.solver.classes import Classes, each_alone, joint, table_classes


@pytest.mark.parametrize("seed", range(20))
def test_equal_rows_and_columns_are_found(seed):
    rng = np.random.default_rng(seed)
    small = rng.random((int(rng.integers(1, 6)), int(rng.integers(1, 6))))
    of_rows, of_columns = (
        rng.integers(0, k, int(rng.integers(1, 30))) for k in small.shape
    )
    table = small[np.ix_(of_rows, of_columns)]
    rows, columns = table_classes(table)
    assert len(rows) == len(np.unique(table, axis=0))
    assert len(columns) == len(np.unique(table, axis=1).T)
    np.testing.assert_array_equal(table[rows.first][rows.of], table)
    np.testing.assert_array_equal(table[:, columns.first][:, columns.of], table)


def test_numbers_whose_bits_differ_high_up_are_told_apart():
    table = np.ldexp(1.0, np.arange(64)).reshape(64, 1)
    assert len(table_classes(table)[0]) == 64


def test_joint_classes_are_those_that_any_part_tells_apart():
    a, b = np.array([0, 0, 1, 1, 1]), np.array([0, 1, 1, 1, 0])
    parts = [Classes(x, np.unique(x, return_index=True)[1]) for x in (a, b)]
    both = joint(parts)
    assert len(both) == 4
    for i in range(5):
        for j in range(5):
            assert (both.of[i] == both.of[j]) == (a[i] == a[j] and b[i] == b[j])
    assert joint([parts[0], parts[0]]) is parts[0]
    alone = each_alone(5)
    assert joint([parts[0], alone]) is alone
