from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.optimize import linprog

from gnnplace.simulation.bounds.work import UPDATES, work_weights
from tests.random_problems import seeds


def split(columns: np.ndarray, counts: np.ndarray) -> float:
    """The least time of the busiest device if units may be split, by linear programming."""
    rows, kinds = columns.shape
    allowed = np.isfinite(columns).ravel()
    cost = np.zeros(rows * kinds + 1)
    cost[-1] = 1.0
    load = np.zeros((kinds, rows * kinds + 1))
    for k in range(kinds):
        load[k, k:-1:kinds] = np.where(np.isfinite(columns[:, k]), columns[:, k], 0.0)
        load[k, -1] = -counts[k]
    whole = np.zeros((rows, rows * kinds + 1))
    for i in range(rows):
        whole[i, i * kinds : (i + 1) * kinds] = 1.0
    most = [*np.where(allowed, 1.0, 0.0).tolist(), None]
    limits = [(0.0, high) for high in most]
    return float(linprog(cost, load, np.zeros(kinds), whole, np.ones(rows), limits).fun)


@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_it_is_the_linear_programme_and_never_above_it(seed):
    rng = np.random.default_rng(seed)
    columns = rng.uniform(1.0, 9.0, (30, 3))
    columns[rng.random((30, 3)) < 0.2] = np.inf
    columns[~np.isfinite(columns).any(axis=1)] = 1.0
    counts = rng.integers(1, 4, 3).astype(float)
    weight, bound = work_weights(columns, counts, UPDATES)
    best = split(columns, counts)
    assert bound <= best * (1 + 1e-9)
    assert bound >= best * 0.99
    assert (weight * counts).sum() == pytest.approx(1.0)
